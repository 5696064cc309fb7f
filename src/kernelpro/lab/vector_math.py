"""Initializes the vectorized functions of torch's math library before several threads use them.

On x86, torch's CPU functions call Intel MKL's vector math library. If two threads make a process's first call
of a function at once, MKL may choose the variant of lower accuracy for one of them. Of 2,500 forked processes
whose first tanh used two threads, 15 had a relative error of 3e-5 in half of their result (torch 2.13). The
judge starts processes for every candidate, and called honest kernels wrong.
"""

from __future__ import annotations

import torch

_FUNCTIONS = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1"),
    *("floor", "lgamma", "log", "log10", "log1p", "log2", "round", "rsqrt", "sigmoid", "sin", "sinh", "sqrt"),
    *("tan", "tanh", "trunc"),
)


def initialize() -> None:
    """Call each function once, in this thread only; takes 0.02 s. Forked processes inherit the result."""
    for dtype in (torch.float32, torch.float64):
        values = torch.full((16,), 0.5, dtype=dtype)  # too few for more than one thread
        for name in _FUNCTIONS:
            getattr(torch, name)(values)
