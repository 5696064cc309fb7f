"""What one timed call, burst or loop of a participant gives."""

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
    """The times of one request: of one call, or of a burst of several."""

    own_ms: float
    """The child's claim for a call: device events, or its own counter."""
    wall_ms: float
    """By the parent's clock, from before the inputs are visible until the outputs are complete."""
    sealed: bool
    """The inputs became visible after the clock had started; where possible, after all was launched."""
    native_ms: float = 0.0
    """The part of `own_ms` that the child says it spent in the candidate's native code."""
    input_write_ms: float = 0.0
    """The part of `wall_ms` in which the parent wrote the inputs of prelaunched calls."""
    calls: int = 1
    """More than one: a burst."""
    proven: bool = False
    """The child has proven when its outputs were complete (sandbox/completion.py)."""

    @property
    def kind(self) -> Kind:
        """How it was called."""
        return "burst" if self.calls > 1 else "queued" if self.sealed else "single"

    @property
    def protocol_ms(self) -> float:
        """What lies between the two clocks, without the writing of inputs."""
        return self.wall_ms - self.input_write_ms - self.calls * self.own_ms


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
    sample: Sample
    distinct: bool
    """All outputs lie in memory of their own."""


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
