"""Tunables: what a candidate declares in comments on its constants, and the search over them, without an LLM.

tunables.py     the declarations; constraints.py: the conditions among them
tuner.py        the search
"""
