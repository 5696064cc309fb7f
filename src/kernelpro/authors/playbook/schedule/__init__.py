"""Schedules: how the stages of a program are executed, independent of the language.

design.py             the design of a candidate (how each stage is executed), stored in a comment line
moves.py              seeds, moves and fallbacks: which designs are tried
gpu_moves.py          moves that the CUDA and Triton backends share
passes.py             groups a stage's steps into passes over a row, and chooses values to cache between them
online_reductions.py  reductions computed in the same pass as the reduction that they depend on
contractions.py       reads stages as matrix products
launches.py           whether launches take as long as the kernels
masked_loads.py       loads whose values a mask discards
"""
