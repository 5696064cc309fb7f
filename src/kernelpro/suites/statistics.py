"""fast_p and means over the problems of a suite, by KernelBench's definitions.

A problem's result against a baseline is its speed-up, or None where no kernel was right (wrong, crashed, none
given).

    fast_p    share of all problems whose kernel is right and more than p times as fast; failures count in the
    denominator sure_p    the same, counting only speed-ups whose whole interval lies above p geomean
    geometric mean of the speed-ups of right kernels; failures are in the correct rate, not in here

Energies are ratios to that of a baseline, below 1 is less; their geomean is over the kernels whose energy was
told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelpro.records import Energy, Interval, Record

THRESHOLDS = (1.0, 1.2, 1.5, 2.0, 5.0)


@dataclass(frozen=True)
class Summary(Record):
    """Over the problems that could be scored, against one baseline."""

    problems: int
    correct: int
    geomean: Interval | None = None
    """Its interval tells the uncertainty of measuring, not that of choosing these problems."""
    fast: dict[str, float] = field(default_factory=dict)
    surely_fast: dict[str, float] = field(default_factory=dict)

    @property
    def correct_rate(self) -> float:
        return self.correct / self.problems if self.problems else 0.0

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"correct_rate": self.correct_rate}


@dataclass(frozen=True)
class EnergySummary(Record):
    """Over the problems whose energy was measured beside one and the same baseline: geomeans of candidate
    over baseline."""

    problems: int
    energy: Interval
    edp: Interval


def fast_p(speedups: Sequence[float | None], p: float) -> float:
    return sum(s is not None and s > p for s in speedups) / len(speedups) if speedups else 0.0


def geomean(speedups: Sequence[Interval | None]) -> Interval | None:
    """Of those that are there; None where none is."""
    right = [s for s in speedups if s is not None]
    return _mean(right) if right else None


def _mean(ratios: Sequence[Interval]) -> Interval:
    """Errors of measuring are independent from problem to problem: half-widths of the logarithms add up as
    squares do."""
    middle = sum(math.log(r.value) for r in ratios) / len(ratios)
    below = math.sqrt(sum(math.log(r.value / r.low) ** 2 for r in ratios)) / len(ratios)
    above = math.sqrt(sum(math.log(r.high / r.value) ** 2 for r in ratios)) / len(ratios)
    return Interval(math.exp(middle), math.exp(middle - below), math.exp(middle + above))


def summarize(speedups: Sequence[Interval | None]) -> Summary:
    values = [s.value if s else None for s in speedups]
    lows = [s.low if s else None for s in speedups]
    return Summary(
        len(speedups),
        sum(s is not None for s in speedups),
        geomean(speedups),
        {f"{p:g}": fast_p(values, p) for p in THRESHOLDS},
        {f"{p:g}": fast_p(lows, p) for p in THRESHOLDS},
    )


def summarize_energy(energies: Sequence[Energy]) -> dict[str, EnergySummary]:
    """By baseline, since ratios to different ones have no common mean. `energies`: those that were told."""
    names = dict.fromkeys(energy.baseline for energy in energies)
    return {name: _saving([energy for energy in energies if energy.baseline == name]) for name in names}


def _saving(energies: Sequence[Energy]) -> EnergySummary:
    energy, edp = (_mean([energy.ratio[quantity] for energy in energies]) for quantity in ("energy", "edp"))
    return EnergySummary(len(energies), energy, edp)
