"""What a call costs in joules, or why that cannot be told; and how joules are written wherever a verdict is shown."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelpro.records.base import Record
from kernelpro.records.interval import Interval

Objective = Literal["speed", "energy-at-speed", "edp"]
"""What a run looks for: the fastest kernel; the one with the least energy among those about as fast as the fastest; the
least product of energy and delay."""


@dataclass(frozen=True)
class Energy(Record):
    """A candidate beside a baseline, over windows of seconds: numbers, or `refused` with the reason why there are none."""

    source: str = ""
    """The counter: NVML's, or which RAPL zones."""
    against: str = ""
    """The baseline that was measured in turn with the candidate."""
    joules: dict[str, Interval] = field(default_factory=dict)
    """A call: `candidate` and the baseline. Nothing is subtracted, idle power neither."""
    watts: dict[str, Interval] = field(default_factory=dict)
    edp: dict[str, Interval] = field(default_factory=dict)
    """Joule-seconds: energy of a call times its duration in the loop."""
    ratio: dict[str, Interval] = field(default_factory=dict)
    """Candidate over baseline in `energy`, `power` and `edp`: below 1 is less."""
    less: Literal["yes", "no", "unclear"] | None = None
    """Whether a call takes less energy than the baseline's."""
    idle_watts: dict[str, float] = field(default_factory=dict)
    """`before` and `after`, with both sides standing still."""
    windows: tuple[dict[str, Any], ...] = ()
    """One each: side, joules, seconds, calls, watts, clocks, temperature; `dropped` says why one does not count."""
    refused: str = ""

    def __post_init__(self) -> None:
        if bool(self.refused) == bool(self.joules):
            raise ValueError("energy is either told or refused with a reason")
        if self.joules and not (
            self.against in self.joules and "candidate" in self.joules and self.ratio and self.less
        ):
            raise ValueError("energy that is told has a candidate, a baseline and their ratio")

    @property
    def at_the_limit(self) -> bool:
        """Whether the candidate's windows were mostly under the board's power cap: then energy is time."""
        capped = [
            window.get("capped", 0.0)
            for window in self.windows
            if window["side"] == "candidate" and not window["dropped"]
        ]
        return bool(capped) and statistics.median(capped) > 0.5


TITLES = ("J a call", "energy x baseline", "W")
"""Columns of energy in a table."""


def cells(energy: Energy | None) -> tuple[str, str, str]:
    """Under `TITLES`; empty where nothing is told."""
    if energy is None or energy.refused:
        return "", "", ""
    return (
        amount(energy.joules["candidate"].value),
        portion(energy.ratio["energy"]),
        f"{energy.watts['candidate'].value:.0f}",
    )


def amount(joules: float) -> str:
    """With the prefix a person would choose."""
    for size, prefix in ((1.0, ""), (1e-3, "m"), (1e-6, "u")):
        if abs(joules) >= size:
            return f"{joules / size:.3g} {prefix}J"
    return f"{joules / 1e-9:.3g} nJ"


def portion(x: Interval) -> str:
    """A ratio to a baseline's; a digit more than for times, since energies differ by less."""
    return f"{x.value:.3f} [{x.low:.3f}, {x.high:.3f}]"
