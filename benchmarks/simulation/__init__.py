"""Simulated searches: policies on synthetic or recorded tasks, without a GPU and without an author."""
