"""Code generation that all languages share. In: a program (ir/) and a design (schedule/). Out: a candidate's
source file.

backend.py        what a language must provide
printer.py        prints expressions as source text
python_module.py  the Python module around the kernels
sizes.py          turns constant sizes into variables, for kernels that serve several shapes
"""
