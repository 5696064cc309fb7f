"""A candidate whose convolutions use the fastest of cuDNN's algorithms, not the one that it expects to be the
fastest.

torch keeps the algorithm of a convolution for the rest of the process, whether it was timed or expected. So
candidates that share a process, as in a race, must all search, or the first of them decides for the others.
"""

from __future__ import annotations

import re

_MODEL = re.compile(r"^class ModelNew\b", re.MULTILINE)
_CONVOLUTION = re.compile(r"\b(?:nn\.|F\.|functional\.|torch\.|extern_kernels\.)[cC]onv")
_SEARCHING = '''

class ModelNew(PlainModel):
    """Lets cuDNN time its algorithms for each convolution at the first call, and use the fastest."""

    def forward(self, *inputs):
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            return super().forward(*inputs)
        finally:
            torch.backends.cudnn.benchmark = before
'''


def with_cudnn_search(source: str) -> str | None:
    """The source with a search for its convolutions; None if it calls none, or has no class ModelNew."""
    if len(_MODEL.findall(source)) != 1 or not _CONVOLUTION.search(source):
        return None
    return _MODEL.sub("class PlainModel", source).rstrip("\n") + "\n" + _SEARCHING
