"""A user's package of two files."""
