"""Seeds: what compilers make of a task, as ordinary candidates with the kernels' text in them.

Comes in: a `Reference`. Goes out: Python text with `class ModelNew`, or why there is none.

    capture.py   runs torch.compile once and sees what it made: code, arguments, outputs
    unwrap.py    the compiler's module, taken apart: imports, kernels, the sequence of calls
    compose.py   the parts as one candidate
"""

from kernelpro.lab.seeds.compose import as_it_is, compiled

__all__ = ["as_it_is", "compiled"]
