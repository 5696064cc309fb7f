"""The CUDA C++ backend: a stage becomes one kernel or a few, and one launcher calls them all.

A pack is a few consecutive elements that a thread loads or stores together, usually 16 bytes. The lanes of a
row are the threads that share it.

backend.py            writes the candidate: device functions, kernels, launcher
builder.py            collects kernels, launch configurations, temporaries and tunables
syntax.py             prints expressions
prelude.py            device functions that kernels share
thread_loop.py        the loop of one thread over its packs, with vectorized loads and stores
elementwise.py        element-wise stages
transpose.py          element-wise stages that transpose, through shared memory
row_stages.py         stages with reductions or scans along rows; split over several kernels where needed
row_kernel.py         one kernel of such a stage
along_rows.py         thread layout: lanes are consecutive threads
across_rows.py        thread layout: consecutive threads have neighbouring rows
sliding_windows.py    outputs whose windows overlap
matmul.py             matrix products and convolutions, with tensor cores or multiply-add
matmul_operands.py    the tiles of an operand in shared memory
matmul_prelude.py     device functions of matrix products
halo_convolution.py   convolutions that read each input once
halo_tiles.py         which convolutions these are, and their tiles
halo_phases.py        transposed convolutions with a stride: all phases from one tile of the input
phase_tiles.py        their tiles, and the layout of their weights in shared memory
warpgroup_matmul.py   matrix products with TMA and wgmma (Hopper)
warpgroup_prelude.py  device functions of those products
moves.py              initial designs, moves and fallbacks
matmul_moves.py       initial designs and moves of matrix products
"""
