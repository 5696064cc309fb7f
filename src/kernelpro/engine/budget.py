"""The budget: what has been spent, what is left, and which limit ends the run first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelpro.records import Cost, Limits, NoVerdict, Step


@dataclass
class Budget:
    """What a run has spent and what it may spend."""

    limits: Limits
    spent_before: float = 0.0
    """Wall seconds that earlier processes spent on the run."""
    device_seconds: float = 0.0
    """Device time of all processes."""
    candidates: int = 0
    """Number of candidates that were requested from the author."""
    cost: Cost = field(default_factory=Cost)
    """Cost of the models."""
    _started: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Count a candidate that is being written."""
        self.candidates += 1

    def settle(self, step: Step) -> None:
        """Add the cost of a settled step. A step without a source, or one that lost a race, does not count as
        a candidate."""
        self.candidates -= not step.source or step.no_verdict is NoVerdict.LOST_RACE
        self.cost = self.cost + step.cost

    @property
    def wall_seconds(self) -> float:
        """Wall time spent on the run so far."""
        return self.spent_before + time.monotonic() - self._started

    def uses(self) -> Iterator[tuple[str, float, float]]:
        """(name, spent, limit) of every limit that is set."""
        limits = self.limits
        uses = (
            ("candidates", self.candidates, limits.candidates),
            ("dollars", self.cost.dollars, limits.dollars),
            ("tokens", self.cost.tokens_in + self.cost.tokens_out, limits.tokens),
            ("wall seconds", self.wall_seconds, limits.wall_seconds),
            ("device seconds", self.device_seconds, limits.device_seconds),
        )
        return (use for use in uses if use[2])

    def exhausted(self) -> str:
        """A sentence about a limit that is reached; empty if none is."""
        spent_limits = (f"{limit:g} {name}" for name, spent, limit in self.uses() if spent >= limit)
        return next((f"the budget of {text} is spent" for text in spent_limits), "")

    def floor_reached(self, best_ms: float | None, floor_ms: float) -> str:
        """A sentence about the best kernel if it is close enough to the floor to stop; else empty."""
        share = self.limits.stop_at_floor
        if best_ms is None or not share or floor_ms < share * best_ms:
            return ""
        return f"the best kernel is at {floor_ms / best_ms:.0%} of the floor: little is left to gain"
