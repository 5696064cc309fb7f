"""Producer/consumer fusion. In: the lazy values of graph/. Out: a program of stages (ir/stages.py).

fuser.py                the algorithm: decides which stage computes and stores each value
stage_builder.py        a stage under construction, and attempts to fuse values into it
formulas.py             cheaper formulas on a GPU
loop_simplification.py  merges and splits the loops of a finished stage
"""
