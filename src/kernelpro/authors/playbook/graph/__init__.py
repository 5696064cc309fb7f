"""The front end. In: a task's operator graph (records.Graph). Out: lazy values, which fusion/ turns into
stages.

lowering.py         lowers the whole graph, operator by operator
operator_call.py    one operator with its arguments resolved, as handlers see it
elementwise.py, shapes.py, reductions.py, matmul_and_conv.py   handlers: each lowers one kind of operator
library.py          operators that torch computes
implicit_gemm.py    convolutions as products of matrices that are never stored, for GPUs
phased_convolution.py   convolutions for CPUs, transposed ones phase by phase
value_ops.py        builds values from values, with torch's broadcasting and type promotion
values.py           the kinds of values
"""
