"""The Triton backend: a stage becomes one kernel or a few, launched one after another.

backend.py        writes the candidate and chooses a kernel for each stage
builder.py        collects kernels, launches, scratch memory and tunables
syntax.py         prints expressions, masked loads and stores, and reductions
functions.py      Triton source of functions that kernels call
stage_kernel.py   what the kernels of all stages share, including totals over all rows
elementwise.py    kernels with one row per lane, and square tiles for stages that transpose
row_kernel.py     rows with loops of their own: normalizations, softmax, reductions, scans
tile_rows.py      reductions along the rows of a tile, and steps of whole rows in registers
matmul.py         matrix products and convolutions on tensor cores
moves.py          initial designs, moves and fallbacks
"""
