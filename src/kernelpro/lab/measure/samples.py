"""Results of one timed call, burst or loop of a participant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from kernelpro.lab.sandbox.outputs import Claim

Kind = Literal["single", "queued", "burst"]
"""How a participant was called; see rounds.py."""
KINDS: tuple[Kind, ...] = ("single", "queued", "burst")


@dataclass(frozen=True)
class Sample:
    """The times of one request, which is a call or a burst of several calls."""

    own_ms: float
    """Milliseconds per call as the child claims them: device events, or its own counter."""
    wall_ms: float
    """Milliseconds of the request by the parent's clock, from before the inputs are visible until the outputs
    are complete."""
    sealed: bool
    """The inputs became visible after the clock had started; if possible, after everything was launched."""
    native_ms: float = 0.0
    """The part of `own_ms` that the child claims to have spent in the candidate's native code."""
    input_write_ms: float = 0.0
    """The part of `wall_ms` in which the parent wrote the inputs of prelaunched calls."""
    calls: int = 1
    """The number of calls; more than one is a burst."""
    proven: bool = False
    """The child has proven when its outputs were complete (sandbox/completion.py)."""

    @property
    def kind(self) -> Kind:
        """The kind of call."""
        return "burst" if self.calls > 1 else "queued" if self.sealed else "single"

    @property
    def protocol_ms(self) -> float:
        """The difference of the two clocks without the input-write time, for the whole request."""
        return self.wall_ms - self.input_write_ms - self.calls * self.own_ms


@dataclass(frozen=True)
class CallResult:
    """The result of one call under the protocol."""

    outputs: list[torch.Tensor]
    sample: Sample
    claims: list[Claim]


@dataclass(frozen=True)
class BurstResult:
    """The result of several calls in a row."""

    outputs: list[list[torch.Tensor]]
    sample: Sample
    distinct: bool
    """No two outputs lie in the same memory."""


@dataclass(frozen=True)
class LoopResult:
    """The result of back-to-back calls that ran until the parent stopped them."""

    calls: int
    """The number of calls, as the child claims."""
    seconds: float
    """From the start of the loop to the reply, by the parent's clock."""
    stop_seconds: float
    """From the request to stop to the reply, by the parent's clock."""
    claims: list[list[Claim]]
    """For each buffer set, where the output of its last call lies."""

    @property
    def last_set(self) -> int:
        """The buffer set of the last call."""
        return (self.calls - 1) % len(self.claims)
