"""Statistics of the two clocks: what the parent's clock shows beside the candidate's own.

Of each call there are two times: `own_ms`, the child's claim (device events or its own counter, free of
protocol), and `wall_ms`, the parent's, from before the inputs can be seen until the output is complete. What
`wall_ms` holds beyond `own_ms` is the protocol's cost and the same for all participants, so in a round

    hidden = (wall - own) of the candidate - (wall - own) of the baseline

is the time that the candidate's clock did not show: noise around zero for an honest kernel. Where the end of
calls is proven (sandbox/completion.py) it is known to a microsecond or two, in bursts to a share of that.
What follows from it is decided in judge/clock_policy.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernelpro.lab.measure.rounds import Rounds
from kernelpro.lab.measure.samples import Kind, Sample
from kernelpro.lab.measure.statistics import CERTAIN, median_interval
from kernelpro.records import Interval

SLACK_MS = {"cuda": 0.030, "cpu": 0.050}
"""Below the spread of one round trip (45 us on an H200 host, about 90 us on a two-core machine)."""
SLACK_SHARE = 0.05
RESOLVED_SHARE = 0.10
"""On a CPU, below this share of the candidate's time, what may be hidden does not widen the interval."""
PROCESS_MS = 0.1
"""The protocol's cost differs by so much between processes whose calls are not prelaunched."""
PROVEN_PROCESS_MS = 0.0025
"""The same where the end of calls is proven: 142.0 to 144.5 us on an H200, for two processes and kernels from
10 us to 2.4 ms, with one stream or two."""
_HEAD_START_MS = 0.05
"""On a GPU the median of some sealed calls, beyond that of others, differs by so much from candidate to
candidate."""


@dataclass(frozen=True)
class ClockStatistics:
    """What the parent's clock shows of one candidate beside its own clock, for a call. Nothing is decided
    here."""

    own_ms: dict[Kind, float]
    """The median of the candidate's own clock, by kind of call."""
    hidden: dict[Kind, Interval]
    """What its clock did not show."""
    certain_ms: dict[Kind, float]
    """The low end of the same, at the level that convicts."""
    process_ms: dict[Kind, float]
    """How much of the same may be a difference between processes."""
    proven: bool
    """The ends of queued calls, and of those of bursts, were proven."""
    certain_head_start_ms: float
    """By how much sealed calls certainly take longer, both in themselves and beyond single calls."""

    @property
    def deciding_ms(self) -> float:
        """The candidate's own time in queued calls, where there are any."""
        return self.own_ms["queued" if "queued" in self.own_ms else "single"]

    @property
    def sealed_ms(self) -> float:
        """What its clock did not show in sealed calls; 0 where there were none."""
        return self.hidden["queued"].value if "queued" in self.hidden else 0.0

    @property
    def burst(self) -> Interval | None:
        """Milliseconds a call in bursts by the parent's clock; None without bursts."""
        if "burst" not in self.hidden:
            return None
        own, hidden = self.own_ms["burst"], self.hidden["burst"]
        return Interval(own + hidden.value, own + hidden.low, own + hidden.high)


def measure_clocks(
    rounds: Rounds, name: str, baseline: str, corrections_ms: Mapping[Kind, float]
) -> ClockStatistics:
    """Statistics of the two clocks for one participant beside a baseline.

    `corrections_ms`: what the protocol costs the baseline beyond the leanest one; a candidate may not hide in
    it.
    """
    own_ms, hidden, certain, process = {}, {}, {}, {}
    for kind in rounds.kinds:
        values = _hidden(rounds, name, baseline, kind, corrections_ms)
        own_ms[kind], hidden[kind] = rounds.median_ms(name, kind), median_interval(values)
        certain[kind] = median_interval(values, CERTAIN).low
        proven = rounds.are_proven(name, baseline, kind)
        process[kind] = (PROVEN_PROCESS_MS if proven else PROCESS_MS) / rounds.calls(name, kind)[0].calls
    return ClockStatistics(
        own_ms,
        hidden,
        certain,
        process,
        "queued" in hidden and rounds.are_proven(name, baseline, "queued"),
        _certain_head_start(rounds, name, baseline, corrections_ms),
    )


def has_head_start(rounds: Rounds, name: str, baseline: str, corrections_ms: Mapping[Kind, float]) -> bool:
    """Whether sealed calls on a GPU seem to take longer than others.

    Then the candidate works before it is told to, or its process was given the device while it waited for its
    gate. Calls that are not prelaunched show which.
    """
    if rounds.are_proven(name, baseline, "queued"):
        return statistics.median(rounds.disturbances_ms(name, baseline)) > 0
    single, sealed = (_hidden(rounds, name, baseline, kind, corrections_ms) for kind in ("single", "queued"))
    slack, hidden = SLACK_MS["cuda"] + SLACK_SHARE * rounds.median_ms(name), float(single.median())
    certain = _certain_head_start(rounds, name, baseline, corrections_ms)
    return certain > slack or seems_early(float(sealed.median()), hidden, slack)


def _hidden(
    rounds: Rounds, name: str, baseline: str, kind: Kind, corrections_ms: Mapping[Kind, float]
) -> torch.Tensor:
    if rounds.are_proven(name, baseline, kind):  # no host, and so none of its differences, is part of it
        return rounds.hidden_ms(name, baseline, kind)
    calls = rounds.calls(name, kind)[0].calls
    return rounds.hidden_ms(name, baseline, kind) + corrections_ms.get(kind, 0.0) / calls


def _certain_head_start(
    rounds: Rounds, name: str, baseline: str, corrections_ms: Mapping[Kind, float]
) -> float:
    if "queued" not in rounds.kinds:
        return -math.inf
    single, sealed = (_hidden(rounds, name, baseline, kind, corrections_ms) for kind in ("single", "queued"))
    return min(median_interval(values, CERTAIN).low for values in (sealed, sealed - single.median()))


def seems_early(sealed_ms: float, hidden_ms: float, slack_ms: float) -> bool:
    """Whether sealed calls take so much longer than single ones that a head start is likely."""
    return sealed_ms - max(0.0, hidden_ms) > slack_ms + _HEAD_START_MS


def solo_share(rounds: Rounds, name: str, kind: Kind, trusted: bool = False) -> float:
    """A participant's solo time as a share of its time in rounds; 1 without solo calls.

    Also 1 where the parent's clock does not confirm an untrusted participant's solo times. Bursts are judged
    by queued calls.
    """
    kind = "queued" if kind == "burst" else kind
    solo = [sample for sample in rounds.solo.get(name, []) if sample.kind == kind]
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
