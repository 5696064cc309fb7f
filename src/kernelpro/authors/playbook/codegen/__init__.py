"""Code generation that all languages share. In: a program (ir) and a design (schedule). Out: a candidate's
source file.

backend.py        what a language must provide printer.py        expressions as text python_module.py  the
Python module around a kernel
"""
