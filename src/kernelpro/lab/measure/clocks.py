"""Statistics of the two clocks: what the parent's clock shows beside the candidate's own.

Of each call there are two times: `own_ms`, the child's claim (device events or its own counter, free of
protocol), and `wall_ms`, the parent's, from before the inputs can be seen until the output has been read.
What `wall_ms` holds beyond `own_ms` is the protocol's cost and the same for all participants, so in a round

    hidden = (wall - own) of the candidate - (wall - own) of the baseline

is the time that the candidate's clock did not show: noise around zero for an honest kernel. What follows from
it is decided in judge/clock_policy.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernelpro.lab.measure.rounds import SEALED, Kind, Rounds
from kernelpro.lab.measure.samples import BurstSlopes, Sample
from kernelpro.lab.measure.statistics import CERTAIN, median_interval
from kernelpro.records import Interval

SLACK_MS = {"cuda": 0.030, "cpu": 0.050}
"""Below the spread of one round trip (45 us on an H200 host, about 90 us on a two-core machine)."""
SLACK_SHARE = 0.05
RESOLVED_SHARE = 0.10
"""Below this share of the candidate's time, what may be hidden does not widen the interval."""
_HEAD_START_MS = 0.05
"""On a GPU the median of some sealed calls, beyond that of others, differs by so much from candidate to
candidate."""


@dataclass(frozen=True)
class ClockStatistics:
    """What the parent's clock shows of one candidate beside its own clock. Nothing is decided here."""

    own_ms: dict[Kind, float]
    """The median of the candidate's own clock, by kind of call."""
    hidden: Interval
    """What its clock did not show in single calls."""
    certainly_hidden_ms: float
    """The low end of the same, at the level that convicts."""
    hidden_sealed: Interval | None
    """What its clock did not show in sealed calls; None where there were none."""
    certain_head_start_ms: float
    """By how much sealed calls certainly take longer, both in themselves and beyond single calls."""
    slope: Interval | None
    """Milliseconds a call in bursts, by the parent's clock alone; None without bursts."""
    certain_slope_ms: float
    """The low end of the same, at the level that convicts."""
    host_ms: float
    """What the child says its host side took for a call of a burst."""
    slope_slack_ms: float
    """How well the median of slopes repeats."""

    @property
    def deciding_ms(self) -> float:
        """The candidate's own time in queued calls, where there are any."""
        return list(self.own_ms.values())[-1]

    @property
    def sealed_ms(self) -> float:
        """What its clock did not show in sealed calls; 0 where there were none."""
        return self.hidden_sealed.value if self.hidden_sealed else 0.0


def measure_clocks(
    rounds: Rounds,
    name: str,
    baseline: str,
    corrections_ms: Mapping[Kind, float],
    slopes: BurstSlopes | None = None,
) -> ClockStatistics:
    """Statistics of the two clocks for one participant beside a baseline.

    `corrections_ms`: what the protocol costs the baseline beyond the leanest one; a candidate may not hide in
    it.
    """
    single, sealed = _hidden_by_kind(rounds, name, baseline, corrections_ms)
    hidden = median_interval(single)
    return ClockStatistics(
        {kind: rounds.median_ms(name, kind) for kind in rounds.kinds},
        hidden,
        median_interval(single, CERTAIN).low,
        median_interval(sealed) if len(sealed) else None,
        _certain_head_start(sealed, hidden.value) if len(sealed) else -math.inf,
        median_interval(slopes.ms) if slopes else None,
        median_interval(slopes.ms, CERTAIN).low if slopes else 0.0,
        slopes.host_ms if slopes else 0.0,
        slopes.slack_ms if slopes else 0.0,
    )


def has_head_start(rounds: Rounds, name: str, baseline: str, corrections_ms: Mapping[Kind, float]) -> bool:
    """Whether sealed calls on a GPU seem to take longer than others.

    Then the candidate works before it is told to, or its process was given the device while it waited for its
    gate. Calls that are not prelaunched show which.
    """
    single, sealed = _hidden_by_kind(rounds, name, baseline, corrections_ms)
    slack, hidden = SLACK_MS["cuda"] + SLACK_SHARE * rounds.median_ms(name), float(single.median())
    return _certain_head_start(sealed, hidden) > slack or seems_early(float(sealed.median()), hidden, slack)


def _hidden_by_kind(
    rounds: Rounds, name: str, baseline: str, corrections_ms: Mapping[Kind, float]
) -> list[torch.Tensor]:
    """What is hidden in single calls and in sealed ones."""
    return [rounds.hidden_ms(name, baseline, kind) + corrections_ms.get(kind, 0.0) for kind in SEALED]


def _certain_head_start(sealed: torch.Tensor, hidden: float) -> float:
    return min(median_interval(values, CERTAIN).low for values in (sealed, sealed - hidden))


def seems_early(sealed_ms: float, hidden_ms: float, slack_ms: float) -> bool:
    """Whether sealed calls take so much longer than single ones that a head start is likely."""
    return sealed_ms - max(0.0, hidden_ms) > slack_ms + _HEAD_START_MS


def is_inconclusive(slopes: torch.Tensor, own_ms: float) -> bool:
    """Whether slopes show neither that the candidate's clock is right nor that it is not."""
    if not len(slopes):
        return True
    limit, slope = (1 + RESOLVED_SHARE) * own_ms, median_interval(slopes)
    return slope.low <= limit < slope.high


def solo_share(rounds: Rounds, name: str, kind: Kind, trusted: bool = False) -> float:
    """A participant's solo time as a share of its time in rounds; 1 without solo calls.

    Also 1 where the parent's clock does not confirm an untrusted participant's solo times.
    """
    solo = [sample for sample in rounds.solo.get(name, []) if sample.sealed == SEALED[kind]]
    if not solo:
        return 1.0
    own = rounds.median_ms(name, kind)
    excess = _median_excess(solo) - _median_excess(rounds.calls(name, kind))
    if not trusted and excess > SLACK_MS["cuda"] + SLACK_SHARE * own:
        return 1.0
    return statistics.median(sample.own_ms for sample in solo) / own


def _median_excess(samples: list[Sample]) -> float:
    """What the parent's clock shows beyond the child's."""
    return statistics.median(sample.wall_ms - sample.own_ms for sample in samples)
