"""Statistics of the two clocks: the candidate's own, and the parent's.

Each call has two times: `own_ms` is the child's claim (device events or its own counter, without the
protocol), and `wall_ms` is measured by the parent, from before the inputs become visible until the output is
complete. For an honest kernel, `wall_ms - own_ms` is the cost of the protocol, which is the same for all
participants. So in each round

    hidden = (wall - own) of the candidate - (wall - own) of the baseline

is the time that the candidate's clock did not show: noise around zero for an honest kernel. If the end of
calls is proven (sandbox/completion.py), hidden time is known to a microsecond or two; in bursts this error
is divided by the number of calls. judge/clock_policy.py decides what hidden time means.
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
"""Tolerated hidden time, together with SLACK_SHARE of the candidate's time. It is below the spread of one
round trip (45 us on an H200 host, about 90 us on a two-core machine)."""
SLACK_SHARE = 0.05
RESOLVED_SHARE = 0.10
"""On a CPU, possibly hidden time below this share of the candidate's time does not widen the interval."""
PROCESS_MS = 0.1
"""The protocol's cost differs by this much between processes whose calls are not prelaunched."""
PROVEN_PROCESS_MS = 0.0025
"""The same if the end of calls is proven: the cost was 142.0 to 144.5 us on an H200, for two processes and
kernels from 10 us to 2.4 ms, with one stream or two."""
_HEAD_START_MS = 0.05
"""On a GPU, the median hidden time of sealed calls minus that of single calls differs by this much between
candidates."""


@dataclass(frozen=True)
class ClockStatistics:
    """What both clocks show about one candidate, in milliseconds per call. judge/clock_policy.py decides."""

    own_ms: dict[Kind, float]
    """The median of the candidate's own clock, by kind of call."""
    hidden: dict[Kind, Interval]
    """Hidden time, by kind of call."""
    certain_ms: dict[Kind, float]
    """The low end of the hidden time's interval at the level CERTAIN, which a `cheating` verdict requires."""
    process_ms: dict[Kind, float]
    """How much of the hidden time differences between processes could explain."""
    proven: bool
    """The ends of all queued calls and bursts were proven."""
    certain_head_start_ms: float
    """Hidden time that sealed calls certainly have, both in total and beyond that of single calls."""

    @property
    def deciding_ms(self) -> float:
        """The candidate's own time in queued calls if there are any, else in single calls."""
        return self.own_ms["queued" if "queued" in self.own_ms else "single"]

    @property
    def sealed_ms(self) -> float:
        """Hidden time of sealed calls; 0 if there were none."""
        return self.hidden["queued"].value if "queued" in self.hidden else 0.0

    @property
    def burst(self) -> Interval | None:
        """Milliseconds per call in bursts by the parent's clock; None without bursts."""
        if "burst" not in self.hidden:
            return None
        own, hidden = self.own_ms["burst"], self.hidden["burst"]
        return Interval(own + hidden.value, own + hidden.low, own + hidden.high)


def measure_clocks(
    rounds: Rounds, name: str, baseline: str, corrections_ms: Mapping[Kind, float]
) -> ClockStatistics:
    """Statistics of the two clocks for one participant relative to a baseline.

    `corrections_ms`: by how much the protocol costs the baseline more than the variant that it costs least.
    It is added to the hidden time: otherwise a candidate could hide that much.
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
    """Whether sealed calls on a GPU seem to take longer than single calls.

    Either the candidate works before it is called, or its process was given the device while it waited for
    its gate. Calls that are not prelaunched show which of the two is true.
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
    if rounds.are_proven(name, baseline, kind):  # excludes the host, and so differences between hosts
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
    """Whether sealed calls hide so much more time than single calls that a head start is likely."""
    return sealed_ms - max(0.0, hidden_ms) > slack_ms + _HEAD_START_MS


def solo_share(rounds: Rounds, name: str, kind: Kind, trusted: bool = False) -> float:
    """A participant's time in solo calls divided by its time in rounds; 1 without solo calls.

    Also 1 if the parent's clock does not confirm the solo times of an untrusted participant. For bursts, the
    share of queued calls is used.
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
    """The median of the parent's time minus the child's own time."""
    return statistics.median(sample.wall_ms - sample.own_ms for sample in samples)
