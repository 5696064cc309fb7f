"""Statistics of timed rounds, and the agreement of the two clocks.

In a round every participant is called once, in random order, on the same fresh inputs. Of each call
there are two times: `own`, the child's claim (device events or its own counter, free of protocol), and
`wall`, the parent's, from before the inputs can be seen until the output has been read. What `wall`
holds beyond `own` is the protocol's and the same for all participants, so in a round

    hidden = (wall - own) of the candidate - (wall - own) of the baseline

is the time that the candidate's clock did not show. It is noise around zero for an honest kernel. Where
it is certainly above the slack, the clock lies and the candidate is cheating; where it is above in most
rounds, it is counted as the candidate's time; where it may be a noticeable share of the candidate's time,
the interval of the result is widened by it. On a CPU that other work keeps busy the scheduler may let the
parent wait after each call, which looks the same, and a little of it (SPINNING_MS) an honest kernel's own
threads do: nobody is convicted there, but what passed is counted as the candidate's time. On a GPU single
calls differ between processes (PROCESS_MS); for short kernels bursts decide up to that: what their calls surely take
beyond the slack is counted, and far more (BURST_SHARE) is a lie.

On a GPU there are two kinds of calls. A single one finds the device idle, so that what its host needs to launch it is part
of its time. A queued one was launched before its inputs were there (sealed: see participant.py), and its time is the device's
alone. Where a host takes as long as its kernels both matter: torch.compile's 0.19 ms on an H200 were anything from 0.19 to
0.29 ms in single calls, and kernels as fast as its own seemed 1.4 times faster; and who is fast on the device but slow to
launch is not fast. A win is one in both kinds: the lower ratio counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from kernelpro.records import Interval

RESAMPLES = 2000
LEVEL = 0.95
CERTAIN = 0.998
"""Level of the interval that convicts."""
SLACK_MS = {"cuda": 0.030, "cpu": 0.050}
"""Below the spread of one round trip (45 us on an H200 host, about 90 us on a two-core machine)."""
SPINNING_MS = 0.150
"""OpenMP's threads go on spinning after a call; where they fill all cores of a CPU, the parent gets its own a tenth of a
millisecond late. So much convicts nobody there, but is counted as the candidate's time."""
SLACK_SHARE = 0.05
BURST_SHARE = 0.25
"""Calls of a burst that surely take so much longer than the candidate's clock shows, and three times the slack, convict. An honest
kernel's were seen to take 15 % longer on an H200 host, by what a long burst's protocol had cost beyond a short one's."""
PROCESS_MS = 0.1
"""The protocol's cost differs by so much from process to process: what a short kernel may hide where bursts are not possible."""
_EARLY_MS = 0.05
"""On a GPU the median of some sealed calls, beyond that of others, differs by so much from candidate to candidate."""
RESOLVED = 0.10
"""Below this share of the candidate's time, what may be hidden does not widen the interval."""
ALIKE = 0.95
"""Of its time beside a candidate: a baseline that is no faster by itself is not helped by more than noise."""
_SETTLED, _SETTLED_FAR, _FAR = 0.004, 0.010, 0.05
"""Width of a ratio's interval, before it is widened by SYSTEMATIC, that more rounds need not make narrower; and where all of it is
further than 5 % from 1, so that nobody doubts who is faster."""
SYSTEMATIC = 0.0075
"""Two processes that run the same code differ by up to 0.6 % on an H200, however long they are timed (where
their memory lies; benchmarks/judge_noise.py): every interval of a ratio is widened by this."""


Kind = Literal["single", "queued"]


@dataclass(frozen=True)
class Sample:
    own: float
    wall: float
    sealed: bool
    """Inputs became visible only after the clock had started; where that is possible, when all was launched."""
    native: float = 0.0
    """The part of `own` that the child says it spent in native calls of the candidate's."""
    filling: float = 0.0
    """The part of `wall` in which the parent wrote the inputs of a call that was launched ahead."""


_SEALED: dict[Kind, bool] = {"single": False, "queued": True}


@dataclass
class Rounds:
    """Samples by participant, one a round."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    discarded: int = 0
    alone: dict[str, list[Sample]] = field(default_factory=dict)
    """By participant, with no other's calls between them."""
    usual_filling: float = math.inf
    """Milliseconds that writing inputs took before the candidate came."""
    held_back: frozenset[str] = frozenset()
    """Baselines whose sealed calls could have been launched ahead, but for the candidate, whose cannot: only times alone count."""

    def add(self, round_: dict[str, Sample]) -> None:
        for name, sample in round_.items():
            self.samples.setdefault(name, []).append(sample)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of calls that were made."""
        sealed = {sample.sealed for samples in self.samples.values() for sample in samples}
        return tuple(kind for kind, is_sealed in _SEALED.items() if is_sealed in sealed)

    def of(self, name: str, kind: Kind | None = None) -> list[Sample]:
        """The calls of one kind; unless told otherwise queued ones, where there are any."""
        wanted = _SEALED[kind or self.kinds[-1]]
        return [sample for sample in self.samples[name] if sample.sealed == wanted]

    def own(self, name: str, kind: Kind | None = None) -> torch.Tensor:
        return torch.tensor([sample.own for sample in self.of(name, kind)], dtype=torch.float64)

    def log_ratio(self, slow: str, fast: str, kind: Kind | None = None) -> torch.Tensor:
        """Per round, log of how many times faster `fast` was."""
        return (self.own(slow, kind) / self.own(fast, kind)).log()

    def log_link(self, steady: str, other: str, kind: Kind) -> torch.Tensor:
        """The same, where `steady` was timed beside two others, to link them: in single calls by its queued ones, which a host does
        not make differ from one time to the next."""
        single = kind != self.kinds[-1]
        return (
            (self.own(steady).median() / self.own(other, kind)).log()
            if single
            else self.log_ratio(steady, other, kind)
        )

    def deciding(self, slow: str, fast: str) -> Kind:
        """The kind of calls in which `fast` gains less."""
        return min(self.kinds, key=lambda kind: float(self.log_ratio(slow, fast, kind).median()))

    def settled(self, slow: str, fast: str) -> bool:
        """Whether more rounds would not tell more."""
        if not self.samples:
            return False
        found = lower([median_interval(self.log_ratio(slow, fast, kind)) for kind in self.kinds])
        far = found.low > _FAR or found.high < -_FAR
        return found.high - found.low <= (_SETTLED_FAR if far else _SETTLED)

    def share_alone(self, name: str, kind: Kind, trusted: bool = False) -> float:
        """What it takes alone, of its time in a round; 1 where that is not known, or the parent's clock does not bear it out."""
        alone = [sample for sample in self.alone.get(name, []) if sample.sealed == _SEALED[kind]]
        if not alone:
            return 1.0
        own = float(self.own(name, kind).median())
        beyond = _beyond(alone) - _beyond(self.of(name, kind))
        if not trusted and beyond > SLACK_MS["cuda"] + SLACK_SHARE * own:
            return 1.0
        return statistics.median(sample.own for sample in alone) / own

    def hidden(self, name: str, baseline: str, kind: Kind | None = None) -> torch.Tensor:
        """Per round, how much more lies between the two clocks for one than for a baseline. What the parent took to write inputs
        is no part of it: as it was for a baseline, but no more than usual for the other, which may have worked meanwhile."""
        usual = min(self.usual_filling, self.filling(name, kind), self.filling(baseline, kind))
        pairs = zip(self.of(name, kind), self.of(baseline, kind), strict=True)
        return torch.tensor(
            [(a.wall - a.own - usual) - (b.wall - b.own - b.filling) for a, b in pairs], dtype=torch.float64
        )

    def protocol(self, name: str, kind: Kind) -> torch.Tensor:
        """Per round, what lies between the two clocks but for the writing of inputs."""
        return torch.tensor(
            [sample.wall - sample.own - sample.filling for sample in self.of(name, kind)], dtype=torch.float64
        )

    def filling(self, name: str, kind: Kind | None = None) -> float:
        """Milliseconds, mostly."""
        return statistics.median([sample.filling for sample in self.of(name, kind)] or [0.0])


def _beyond(samples: list[Sample]) -> float:
    """What the parent's clock shows beyond the child's."""
    return statistics.median(sample.wall - sample.own for sample in samples)


def bootstrap_medians(values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    return values[picks].median(dim=1).values


def interval(medians: torch.Tensor, value: float, level: float = LEVEL) -> Interval:
    tail = (1 - level) / 2
    low, high = torch.quantile(medians, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(value, min(low, value), max(high, value))


def median_interval(values: torch.Tensor, level: float = LEVEL) -> Interval:
    return interval(bootstrap_medians(values), float(values.median()), level)


def ratio_interval(log_ratios: torch.Tensor, link: torch.Tensor | None = None) -> Interval:
    """Interval of a ratio from per-round logs; `link` adds a second, independently measured log-ratio."""
    medians, value = bootstrap_medians(log_ratios), float(log_ratios.median())
    if link is not None:
        medians, value = medians + bootstrap_medians(link, seed=1), value + float(link.median())
    found = interval(medians, value)
    return Interval(
        math.exp(found.value), math.exp(found.low - SYSTEMATIC), math.exp(found.high + SYSTEMATIC)
    )


@dataclass(frozen=True)
class Clocks:
    """What the parent's clock says of the candidate's."""

    hidden: Interval
    hidden_sealed: Interval | None
    own_ms: float
    lie: str
    """Why the candidate's clock is not believed; empty when it is."""
    slight: bool
    """What it does not show may be what an honest kernel's threads hide (SPINNING_MS)."""
    unsure: bool
    """It does not show more than the slack in most calls, and in too few to convict; or in bursts, and too little."""
    most_hidden_ms: float
    """What counts as the candidate's time where its clock is not believed to the full."""
    widen_ms: dict[Kind, float]
    """What may be hidden in calls of a kind, where the parent's clock cannot resolve the candidate's time; on a CPU also what is,
    where surely something is, however little."""
    slope: Interval | None = None
    """Milliseconds a call in bursts, by the parent's clock alone."""

    @property
    def widest_ms(self) -> float:
        return max(self.widen_ms.values())


def compare_clocks(
    rounds: Rounds,
    name: str,
    baseline: str,
    device: str,
    corrections_ms: Mapping[Kind, float],
    slopes: torch.Tensor | None = None,
    host_ms: float = 0.0,
    slope_slack_ms: float = 0.0,
    short: bool = False,
) -> Clocks:
    """`corrections_ms`: what the protocol costs the baseline beyond the leanest one; a candidate may not hide in it.

    `slopes` (from bursts) are the finer instrument for `short` kernels: where they are there, they decide what may be hidden.
    Up to `host_ms`, the child's claim, a slope may be its host side's and is no proof of a lie; but the interval is widened by it.
    """
    own = float(rounds.own(name).median())
    differences, exposed = _differences(rounds, name, baseline, corrections_ms)
    hidden = median_interval(differences)
    sealed = median_interval(exposed) if len(exposed) else None
    slack = SLACK_MS[device] + SLACK_SHARE * own
    lie = ""
    most = slack + (
        PROCESS_MS if short else 0.0
    )  # beyond, the parent's clock is sure; below, bursts decide, or it is counted
    if median_interval(differences, CERTAIN).low > most:
        shown = float(rounds.own(name, "single").median())
        lie = f"its own clock shows {shown:.4f} ms, but {hidden.value:.4f} ms more pass until its output is there"
    elif sealed and _surely_early(exposed, hidden.value, slack):
        lie = (
            f"calls take {sealed.value:.4f} ms longer when inputs are shown only after the clock has started"
        )
    slope, beyond = None, 0.0
    if slopes is not None:
        slope, least = median_interval(slopes), median_interval(slopes, CERTAIN).low
        busy = max(own, host_ms)
        if not lie and least > (1 + BURST_SHARE) * busy + 3 * slope_slack_ms:
            lie = f"its own clock shows {own:.4f} ms a call, but calls that follow each other take {slope.value:.4f} ms each"
        beyond = slope.value - own if least > (1 + SLACK_SHARE) * busy + slope_slack_ms else 0.0
    slight = device == "cpu" and median_interval(differences, CERTAIN).low <= SPINNING_MS + SLACK_SHARE * own
    late = sealed.value if sealed else 0.0
    early = _seems_early(late, hidden.value, slack)  # bursts do not show it: inputs are there before
    seen = max(hidden.value, late, 0.0) if early or slope is None else 0.0
    unsure = not lie and (early or seen > slack or beyond > 0)
    surely = hidden.value if device == "cpu" and hidden.low > 0 else 0.0  # on a GPU processes differ by more
    unresolved = max(0.0, hidden.high) + (PROCESS_MS if short else 0.0)
    widen: dict[Kind, float] = {}
    for kind in rounds.kinds:
        shown = float(rounds.own(name, kind).median())
        doubt = max(0.0, slope.high - shown) if slope else unresolved
        widen[kind] = doubt if doubt > RESOLVED * shown else surely
    return Clocks(hidden, sealed, own, lie, slight, unsure, max(seen, beyond), widen, slope)


def has_head_start(rounds: Rounds, name: str, baseline: str, corrections_ms: Mapping[Kind, float]) -> bool:
    """Whether sealed calls on a GPU seem to take longer than others: it works before it is told to, or its process was given the
    device while it waited for its gate. Where calls are launched ahead, those that are not tell which."""
    differences, exposed = _differences(rounds, name, baseline, corrections_ms)
    slack, hidden = (
        SLACK_MS["cuda"] + SLACK_SHARE * float(rounds.own(name).median()),
        float(differences.median()),
    )
    return _surely_early(exposed, hidden, slack) or _seems_early(float(exposed.median()), hidden, slack)


def _differences(
    rounds: Rounds, name: str, baseline: str, corrections_ms: Mapping[Kind, float]
) -> list[torch.Tensor]:
    """What is hidden in single calls and in sealed ones."""
    return [rounds.hidden(name, baseline, kind) + corrections_ms.get(kind, 0.0) for kind in _SEALED]


def _surely_early(exposed: torch.Tensor, hidden: float, slack: float) -> bool:
    return min(median_interval(each, CERTAIN).low for each in (exposed, exposed - hidden)) > slack


def _seems_early(exposed: float, hidden: float, slack: float) -> bool:
    return exposed - max(0.0, hidden) > slack + _EARLY_MS


def scattered(slopes: torch.Tensor, own_ms: float) -> bool:
    """Whether slopes tell neither that the candidate's clock is right, so that its interval is left alone, nor that it is not."""
    if not len(slopes):
        return True
    most, found = (1 + RESOLVED) * own_ms, median_interval(slopes)
    return found.low <= most < found.high


def widened(speedup: Interval, own_ms: float, extra_ms: float) -> Interval:
    """The interval if the candidate really took `extra_ms` longer than it shows."""
    return Interval(speedup.value, speedup.low * own_ms / (own_ms + extra_ms), speedup.high)


def was_slowed(rounds: Rounds, before: Rounds, slow: str, fast: str) -> bool:
    """Whether `slow`, as it was before `fast` came, would make a difference to what `fast` gains."""
    gains, others = [], []
    for kind in rounds.kinds:
        gains.append(float(rounds.log_ratio(slow, fast, kind).median()))
        others.append(
            gains[-1] + float((before.own(slow, kind).median() / rounds.own(slow, kind).median()).log())
        )
    return min(others) < min(gains) + math.log(ALIKE)


def at_its_best(
    speedup: Interval, baseline_share: float, candidate_share: float, least: float = ALIKE
) -> Interval:
    """The interval where a baseline, and less so the candidate, takes only a share of its time when the other is not at work.

    A candidate may have left something running. What slows both down alike (6 % in some runs of a product of matrices) is no
    difference between them. Shares above the `least` are noise.
    """
    share = baseline_share / min(1.0, candidate_share)
    return speedup if share > least else Interval(speedup.value * share, speedup.low * share, speedup.high)


def comparable(rounds: Rounds, slow: str, fast: str) -> Interval:
    """The time of `fast` to be held beside queued ones: its own; where it gains less in single calls, what is by as much less."""
    kind = rounds.deciding(slow, fast)
    share = float(rounds.own(slow).median() / rounds.own(slow, kind).median())
    found = median_interval(rounds.own(fast, kind))
    return Interval(share * found.value, share * found.low, share * found.high)


def charged(speedup: Interval, own_ms: float, extra_ms: float) -> Interval:
    """Where `extra_ms` that the candidate's clock did not show is counted as its own."""
    factor = own_ms / (own_ms + extra_ms)
    return Interval(speedup.value * factor, speedup.low * factor, speedup.high)


def speedup(
    rounds: Rounds,
    slow: str,
    fast: str,
    links: Mapping[Kind, torch.Tensor],
    clocks: Clocks,
    charge_ms: float = 0.0,
) -> Interval:
    """The lower of what single calls and queued ones show. `links`: `slow` stands for another, how many times slower than it."""
    found = []
    for kind in rounds.kinds:
        ms = float(rounds.own(fast, kind).median())
        timed = rounds.kinds[-1] if links else kind
        logs = rounds.log_link(slow, fast, kind) if links else rounds.log_ratio(slow, fast, kind)
        counted = charged(
            widened(ratio_interval(logs, links.get(kind)), ms, clocks.widen_ms[kind]), ms, charge_ms
        )
        least = 1.0 if timed == "queued" and slow in rounds.held_back else ALIKE
        found.append(
            at_its_best(
                counted, rounds.share_alone(slow, timed, trusted=True), rounds.share_alone(fast, kind), least
            )
        )
    return lower(found)


def lower(found: list[Interval]) -> Interval:
    """Each of its ends."""
    return Interval(
        *(min(ends) for ends in zip(*((each.value, each.low, each.high) for each in found), strict=True))
    )


def decide(speedup: Interval) -> str:
    return "yes" if speedup.low > 1 else "no" if speedup.high < 1 else "unclear"
