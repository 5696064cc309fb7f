"""Seeds: baselines as ordinary candidates, with the kernels' text in them.

Comes in: a `Reference`. Goes out: Python text with `class ModelNew`, or why there is none.

    capture.py   runs torch.compile once and sees what it made: code, arguments, outputs
    unwrap.py    the compiler's module, taken apart: imports, kernels, the sequence of calls
    compose.py   the parts as one candidate
"""

from kernelpro.lab.seeds.capture import MODES, NoSeed
from kernelpro.lab.seeds.compose import as_it_is, candidate, of_call

__all__ = ["MODES", "NoSeed", "as_it_is", "candidate", "of_call"]
