"""Runs: the search loop, its store, final judging and export. Connects authors, policies and pools."""
