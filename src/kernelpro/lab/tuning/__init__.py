"""Tuning: the search over the constants that a candidate declares as tunable in comments; no LLM is involved.

tunables.py     parses declarations, applies points to a source
constraints.py  evaluates the conditions between tunables
tuner.py        searches
race.py         times points beside the default, in one process
design_race.py  the same for different designs, before any of them is judged
"""
