"""Runs: the search loop, its store, final judging and export. Ties authors, policies and pools together."""
