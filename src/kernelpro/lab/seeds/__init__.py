"""Seeds: baselines as candidates, with the source of their kernels.

Input: a `Reference`. Output: Python source with `class ModelNew`, or the reason why there is none.

    capture.py     runs torch.compile once and records its code, arguments and outputs
    unwrap.py      splits the compiler's module into imports, kernels and the function that calls them
    compose.py     composes these parts into one candidate
    benchmarks.py  calls a hook before the compiler measures on the device
"""

from kernelpro.lab.seeds.benchmarks import call_before_benchmarks
from kernelpro.lab.seeds.capture import MODES, NoSeed
from kernelpro.lab.seeds.compose import reference_seed, seed_from_first_call, seed_source

__all__ = [
    "MODES",
    "NoSeed",
    "call_before_benchmarks",
    "reference_seed",
    "seed_from_first_call",
    "seed_source",
]
