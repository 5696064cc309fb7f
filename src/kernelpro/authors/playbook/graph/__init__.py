"""The front end. In: a task's operator graph (records.Graph). Out: lazy values, which fusion/ turns into
stages.

lowering.py         the whole graph, operator by operator operator_call.py    one operator with its arguments,
as handlers see it elementwise.py, shapes.py, reductions.py, matmul_and_conv.py   the handlers of operators
value_ops.py        helpers for handlers: build values from values values.py           the kinds of values
"""
