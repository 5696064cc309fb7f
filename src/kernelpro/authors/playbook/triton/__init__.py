"""Triton kernels: a stage becomes one kernel or a few, launched one after another.

backend.py        writes the candidate and chooses a kernel for each stage
builder.py        collects kernels, launches, scratch memory and tunables
syntax.py         prints expressions, masked loads and reductions; functions.py: functions that kernels call
stage_kernel.py   what the kernels of all stages share, including totals over all rows
elementwise.py    stages without a row per program: a row per lane, and square tiles for transposed accesses
row_kernel.py     rows with loops of their own: normalizations, softmax, reductions, scans
matmul.py         matrix products and convolutions on tensor cores
moves.py          initial designs and moves
"""
