"""The budget: what has been spent, what is left, and which limit ends the run first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelpro.records import Cost, Limits, Step


@dataclass
class Budget:
    limits: Limits
    spent_before: float = 0.0
    """Wall seconds of earlier sittings."""
    device_seconds: float = 0.0
    """Of all sittings."""
    candidates: int = 0
    cost: Cost = field(default_factory=Cost)
    _begun: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """A candidate is being written."""
        self.candidates += 1

    def settle(self, step: Step) -> None:
        """What it cost in the end. Where the author had no idea there was no candidate."""
        self.candidates -= not step.source
        self.cost = self.cost + step.cost

    @property
    def wall_seconds(self) -> float:
        return self.spent_before + time.monotonic() - self._begun

    def uses(self) -> Iterator[tuple[str, float, float]]:
        """(name, spent, limit) of every limit that is set."""
        limits = self.limits
        yield from (
            (name, spent, limit)
            for name, spent, limit in (
                ("candidates", self.candidates, limits.candidates),
                ("dollars", self.cost.dollars, limits.dollars),
                ("tokens", self.cost.tokens_in + self.cost.tokens_out, limits.tokens),
                ("wall seconds", self.wall_seconds, limits.wall_seconds),
                ("device seconds", self.device_seconds, limits.device_seconds),
            )
            if limit
        )

    def exhausted(self) -> str:
        """Which limit has been reached, in words; empty while there is something left."""
        return next(
            (
                f"the budget of {limit:g} {name} is spent"
                for name, spent, limit in self.uses()
                if spent >= limit
            ),
            "",
        )

    def floor_reached(self, best_ms: float | None, floor_ms: float) -> str:
        share = self.limits.stop_at_floor
        if best_ms is None or not share or floor_ms < share * best_ms:
            return ""
        return f"the best kernel is at {floor_ms / best_ms:.0%} of the floor: nothing is left to win"
