"""C++ for CPUs, with OpenMP. In: a program and a design. Out: a candidate's source file.

backend.py     the backend: writes the C++ function around the stages
moves.py       designs: seeds, moves and fallbacks
loop_nest.py   what all loop nests share
rows.py        loop nests that process one row after another, and square tiles
strips.py      loop nests that process strips of neighbouring rows
matmul.py      matrix products
contraction.py convolutions as blocked products
syntax.py      prints expressions in C++
composites.py  recognizes formulas for which functions.py has a function
functions.py   elementary functions that the compiler vectorizes
prelude.py     C++ helper functions
"""
