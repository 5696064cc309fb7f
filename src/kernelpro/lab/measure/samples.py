"""What one timed call, burst or loop of a participant gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelpro.lab.sandbox.outputs import Claim


@dataclass(frozen=True)
class Sample:
    """The times of one call."""

    own_ms: float
    """The child's claim: device events, or its own counter."""
    wall_ms: float
    """By the parent's clock, from before the inputs are visible until the output has been read."""
    sealed: bool
    """The inputs became visible after the clock had started; where possible, after all was launched."""
    native_ms: float = 0.0
    """The part of `own_ms` that the child says it spent in the candidate's native code."""
    input_write_ms: float = 0.0
    """The part of `wall_ms` in which the parent wrote the inputs of a prelaunched call."""


@dataclass(frozen=True)
class CallResult:
    """One call under the protocol."""

    outputs: list[torch.Tensor]
    sample: Sample
    claims: list[Claim]


@dataclass(frozen=True)
class BurstResult:
    """Several calls in a row."""

    outputs: list[list[torch.Tensor]]
    wall_ms: float
    host_ms: float
    """What the child says its host side took for a call."""
    prelaunched: bool
    """All calls were launched before the clock started."""


@dataclass(frozen=True)
class LoopResult:
    """Calls that followed each other until the parent stopped them."""

    calls: int
    """The child's claim."""
    seconds: float
    """From the first call to the reply, by the parent's clock."""
    stop_seconds: float
    """From the request to stop until the reply."""
    claims: list[list[Claim]]
    """For each buffer set, where the output of its last call lies."""

    @property
    def last_set(self) -> int:
        """The buffer set of the last call."""
        return (self.calls - 1) % len(self.claims)


@dataclass(frozen=True)
class BurstSlopes:
    """What a call costs in bursts; see bursts.py."""

    ms: torch.Tensor
    """Milliseconds a call, one value a pair of bursts."""
    host_ms: float = 0.0
    """What the child says its host side took for a call; 0 where it is no part of the slope."""
    slack_ms: float = 0.0
    """How well the median of some slopes repeats."""
