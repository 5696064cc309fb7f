"""Compiles references ahead of their turn, while another task is measured.

compilers.py  a queue of references, served by low-priority processes
process.py    what such a process does
"""

from kernelpro.lab.compile_ahead.compilers import AheadCompilers, AheadRequest, AheadResult

__all__ = ["AheadCompilers", "AheadRequest", "AheadResult"]
