"""Schedules: how the stages of a program are executed, independent of the language.

design.py             the design of a candidate, and its comment line
moves.py              seeds, moves and fallbacks: how one design leads to the next
passes.py             a stage's steps as passes over a row
online_reductions.py  reductions that share the pass of the reduction they depend on
contractions.py       stages as tiled matrix products
masked_loads.py       loads that a mask makes unnecessary
"""
