"""C++ for CPUs, with OpenMP. In: a program and a design. Out: a candidate's source file.

backend.py    the backend; the C++ function around the stages
moves.py      designs: seeds, moves and fallbacks
loop_nest.py  what all loop nests share
rows.py, strips.py, matmul.py   loop nests by the order in which they process rows
syntax.py     expressions in C++
composites.py formulas that have a function of their own
functions.py  vectorized elementary functions
prelude.py    C++ helper functions
"""
