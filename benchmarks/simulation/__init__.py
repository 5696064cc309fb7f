"""Searches without a GPU and without an author: policies against simulated or recorded landscapes."""
