"""Decides who is to blame when memory runs out: the candidate, or the judge's memory plan.

The judge's own memory is never charged to a candidate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from kernelpro.lab.measure.memory_plan import GB, CandidateNeedsMemory, MemoryPlan
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import BadInput, Status

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_REQUESTED = re.compile(r"[Tt]ried to allocate ([0-9.]+) (KiB|MiB|GiB)")
_LIBRARY = "ALLOC_FAILED"
"""In the errors of cuBLAS, cuDNN and others. They do not say how much they asked for: little."""
_OUT_OF_MEMORY = re.compile(f"out of memory|{_LIBRARY}", re.IGNORECASE)
_NOTICEABLE = 64 << 20
_MARGIN = 1.25
"""Of the next plan: the candidate may need more than it had asked for until memory ran out."""


class MemoryUse:
    """How much a candidate uses of the memory that the plan leaves to it."""

    def __init__(self, plan: MemoryPlan, in_use: Callable[[], int]):
        """`in_use` returns the bytes that all processes except the judge use."""
        self._share, self._retained, self._in_use = plan.candidate_bytes, plan.retained_bytes, in_use
        self._most = plan.most_candidate_bytes
        self._before = in_use()
        self.peak_bytes = 0

    def record(self, retained: int = 0) -> None:
        """Measure the memory in use now, without `retained` bytes that are kept at the judge's request."""
        self.peak_bytes = max(self.peak_bytes, self._in_use() - self._before - retained)

    @contextmanager
    def blaming(self) -> Iterator[None]:
        """If memory runs out in this block, decide who is to blame while the candidate still holds its own.

        Raises CandidateRejected, with figures, if the candidate took more than any plan leaves to it,
        CandidateNeedsMemory if another plan leaves enough, and torch.OutOfMemoryError if the plan was wrong.
        """
        try:
            yield
        except CandidateRejected as error:
            if error.status is not Status.CRASHED or not _OUT_OF_MEMORY.search(error.reason):
                raise
            raise self._explain(error.reason) from None
        except (torch.OutOfMemoryError, BadInput) as error:  # of the judge; of a baseline
            if isinstance(error, BadInput) and not _OUT_OF_MEMORY.search(str(error)):
                raise
            self.record(self._retained)
            if self.peak_bytes <= self._share:
                raise torch.OutOfMemoryError(str(error)) from None
            self._require_most(0)
            reason = f"it allocated {self._figures()}; the rest is needed to check its outputs"
            raise CandidateRejected(Status.CRASHED, reason) from None

    def _require_most(self, requested: int) -> None:
        """Raise CandidateNeedsMemory if another plan would leave enough. `requested`: what it did not get."""
        needed = self.peak_bytes + requested
        if self._share < needed <= self._most:
            raise CandidateNeedsMemory(int(_MARGIN * needed))

    def _figures(self) -> str:
        return f"{self.peak_bytes / GB:.1f} GB of the {self._share / GB:.1f} GB that were free for it"

    def _explain(self, reason: str) -> Exception:
        """The error for a candidate that ran out of memory. If its whole share was not available, the plan
        was wrong."""
        self.record(self._retained)
        match = _REQUESTED.search(reason)
        requested = int(float(match[1]) * _UNITS[match[2]]) if match else 0
        is_known = match or _LIBRARY in reason
        if is_known and self.peak_bytes + requested < self._share - _NOTICEABLE:
            return torch.OutOfMemoryError(f"the plan left too little memory for the candidate: {reason}")
        self._require_most(requested)
        more = f", and asked for {requested / GB:.1f} GB more" if match else ""
        first_line = reason.splitlines()[0]
        return CandidateRejected(Status.CRASHED, f"{first_line}; it had allocated {self._figures()}{more}")
