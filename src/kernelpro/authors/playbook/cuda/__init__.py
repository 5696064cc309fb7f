"""CUDA C++ kernels: a stage becomes one kernel or a few, and one launcher calls them all.

backend.py          writes the candidate: device functions, kernels, launcher
builder.py          collects kernels, launch configurations, temporaries and tunables
syntax.py           prints expressions; prelude.py: device functions that kernels share
thread_loop.py      the loop of one thread over its packs of elements, with vectorized loads and stores
elementwise.py      element-wise stages; transpose.py: those that transpose, through shared memory
row_stages.py       stages with reductions or scans along rows, split over several kernels where needed
row_kernel.py       one kernel of such a stage; along_rows.py and across_rows.py: its two thread layouts;
                    sliding_windows.py: outputs that share overlapping windows
matmul.py           matrix products and convolutions, with tensor cores or multiply-add;
                    matmul_operands.py: the tiles of an operand; matmul_prelude.py: device functions
warpgroup_matmul.py products with TMA and wgmma (Hopper); warpgroup_prelude.py: device functions
moves.py            initial designs and moves; matmul_moves.py: those of matrix products
"""
