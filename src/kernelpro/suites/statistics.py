"""fast_p and means over the problems of a suite, by KernelBench's definitions.

The result of a problem against a baseline is its speed-up, or None if no kernel passed (wrong, crashed, none
given).

    fast_p         share of all problems with a correct kernel that is more than p times as fast; failures
                   count in the denominator
    surely_fast_p  the same, counting only speed-ups whose whole confidence interval is above p geomean
    geometric mean of the speed-ups of correct kernels; failures count in the correct rate instead

Energies are ratios to a baseline: below 1 is better. Their geomean is over the kernels whose energy was
measured.
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
    """The problems that could be scored, against one baseline."""

    problems: int
    correct: int
    geomean: Interval | None = None
    """Its interval is the uncertainty of the measurements, not that of the choice of problems."""
    fast: dict[str, float] = field(default_factory=dict)
    """fast_p by p."""
    surely_fast: dict[str, float] = field(default_factory=dict)
    """surely_fast_p by p."""

    @property
    def correct_rate(self) -> float:
        """Share of problems with a correct kernel."""
        return self.correct / self.problems if self.problems else 0.0

    def to_json(self) -> dict[str, Any]:
        """The record as plain data, with the correct rate."""
        return super().to_json() | {"correct_rate": self.correct_rate}


@dataclass(frozen=True)
class EnergySummary(Record):
    """Geomeans of candidate over baseline, over the problems whose energy was measured against it."""

    problems: int
    energy: Interval
    edp: Interval


def fast_p(speedups: Sequence[float | None], p: float) -> float:
    """Share of the speed-ups above p."""
    return sum(s is not None and s > p for s in speedups) / len(speedups) if speedups else 0.0


def geomean(speedups: Sequence[Interval | None]) -> Interval | None:
    """Geometric mean of the speed-ups that are not None; None if all are."""
    known = [speedup for speedup in speedups if speedup is not None]
    return _mean(known) if known else None


def _mean(ratios: Sequence[Interval]) -> Interval:
    """Measurement errors of problems are independent: squares of half-widths in log space add up."""
    middle = sum(math.log(r.value) for r in ratios) / len(ratios)
    below = math.sqrt(sum(math.log(r.value / r.low) ** 2 for r in ratios)) / len(ratios)
    above = math.sqrt(sum(math.log(r.high / r.value) ** 2 for r in ratios)) / len(ratios)
    return Interval(math.exp(middle), math.exp(middle - below), math.exp(middle + above))


def summarize(speedups: Sequence[Interval | None]) -> Summary:
    """The summary of the speed-ups over one baseline."""
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
    """Means by baseline: ratios to different baselines have no common mean."""
    names = dict.fromkeys(energy.baseline for energy in energies)
    return {name: _saving([energy for energy in energies if energy.baseline == name]) for name in names}


def _saving(energies: Sequence[Energy]) -> EnergySummary:
    energy, edp = (_mean([energy.ratio[quantity] for energy in energies]) for quantity in ("energy", "edp"))
    return EnergySummary(len(energies), energy, edp)
