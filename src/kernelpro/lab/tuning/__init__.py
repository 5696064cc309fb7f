"""Tuning: searches the constants that a candidate declares as tunable in comments. It needs no LLM.

A point is one value for each tunable; the default point is the source as written.

tunables.py     parses declarations, applies points to a source
constraints.py  evaluates the conditions between tunables
tuner.py        searches the points
race.py         times points against the default, in one process
design_race.py  times different designs against each other, before any of them is judged
"""
