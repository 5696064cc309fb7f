"""The policy on clocks: which hidden time convicts a candidate, is counted as its own, or widens its
interval.

Hidden time (measure/clocks.py) that is certainly above a slack means that the candidate's clock lies, and it
is cheating. Hidden time that is resolved is counted as the candidate's. What is not resolved widens the
interval of the result.

On a GPU, where calls are prelaunched, their end is proven (sandbox/completion.py), and hidden time is
resolved to PROVEN_PROCESS_MS, in bursts to a share of that. The speed-up is the least that any kind of calls
shows, so one kind that is sound makes it sound: the interval of the kind with the least doubt is widened by
that doubt. Where calls cannot be prelaunched, processes differ by PROCESS_MS, and bursts share that.

On a CPU that other work keeps busy the scheduler may delay the parent after each call, which looks the same,
and a little of it (SPINNING_MS) is due to an honest kernel's own threads: there nobody is convicted, but the
time is counted as the candidate's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernelpro.lab.measure.clocks import (
    PROCESS_MS,
    RESOLVED_SHARE,
    SLACK_MS,
    SLACK_SHARE,
    ClockStatistics,
    seems_early,
    solo_share,
)
from kernelpro.lab.measure.rounds import NOISE_SHARE, Rounds
from kernelpro.lab.measure.samples import Kind
from kernelpro.lab.measure.statistics import SYSTEMATIC, lower_bound, ratio_interval
from kernelpro.records import Interval

SPINNING_MS = 0.150
"""OpenMP's threads go on spinning after a call; where they fill all cores of a CPU, the parent gets its own a
tenth of a millisecond late. So much convicts nobody there, but is counted as the candidate's time."""
BURST_SHARE = 0.25
"""Calls of a burst that is not prelaunched convict where they certainly take so much longer than the
candidate's clock shows, and twice the differences between processes."""
_PROVEN_FACTOR = 4.0
"""Calls whose end is proven convict where they certainly take SLACK_SHARE longer than the candidate's clock
shows, and so many times the differences between processes."""


@dataclass(frozen=True)
class ClockDecision:
    """What follows from the statistics of the two clocks."""

    statistics: ClockStatistics
    lie: str
    """Why the candidate's clock is not believed; empty when it is."""
    within_spinning: bool
    """On a CPU: the hidden time may be what an honest kernel's threads hide (SPINNING_MS)."""
    inconclusive: bool
    """The clocks disagree by more than the slack, but not significantly enough to call it cheating."""
    charge_ms: dict[Kind, float]
    """By kind of call, what counts as the candidate's time where its clock is not fully believed."""
    certain_charge_ms: dict[Kind, float]
    """The part of that of which there is no doubt."""
    widen_ms: dict[Kind, float]
    """By kind of call, what may be hidden beyond that."""

    @property
    def charged_ms(self) -> float:
        """The largest of `charge_ms`."""
        return max(self.charge_ms.values())

    @property
    def max_widen_ms(self) -> float:
        """The largest of `widen_ms`."""
        return max(self.widen_ms.values())


def decide_clocks(clocks: ClockStatistics, device: str, short: bool = False) -> ClockDecision:
    """Apply the policy. `short`: the kernel is too short for single calls, and queued ones and bursts decide
    where their ends are proven."""
    own, hidden = clocks.deciding_ms, clocks.hidden["single"]
    slack = SLACK_MS[device] + SLACK_SHARE * own
    early = not clocks.proven and seems_early(clocks.sealed_ms, hidden.value, slack)
    resolved: dict[Kind, float] = {
        kind: _resolved_ms(clocks, kind) for kind in clocks.own_ms if kind != "single"
    }
    sound = clocks.proven or "burst" in clocks.own_ms
    # bursts do not show a head start: their inputs are there before
    in_calls = max(hidden.value, clocks.sealed_ms, 0.0) if early or not sound else 0.0
    in_single = hidden.value if clocks.certain_ms["single"] > slack + (PROCESS_MS if short else 0.0) else 0.0
    charges: dict[Kind, float] = {kind: max(in_calls, ms) for kind, ms in resolved.items()}
    charges["single"] = max(in_calls, in_single, *charges.values(), 0.0)
    lie = _lie(clocks, slack, short)
    return ClockDecision(
        clocks,
        lie,
        device == "cpu" and clocks.certain_ms["single"] <= SPINNING_MS + SLACK_SHARE * own,
        not lie and (early or in_calls > slack or max(resolved.values(), default=0.0) > 0),
        charges,
        {kind: _certain_ms(clocks, kind) if ms else 0.0 for kind, ms in resolved.items()},
        _widen_ms(clocks, device, short, resolved),
    )


def _resolved_ms(clocks: ClockStatistics, kind: Kind) -> float:
    """Hidden time of a kind of calls that is no difference between processes; 0 where it may be one."""
    if kind == "queued" and not clocks.proven:
        return 0.0
    hidden = clocks.hidden[kind]
    return hidden.value if hidden.low > clocks.process_ms[kind] else 0.0


def _certain_ms(clocks: ClockStatistics, kind: Kind) -> float:
    return clocks.hidden[kind].low - clocks.process_ms[kind]


def _lie(clocks: ClockStatistics, slack: float, short: bool) -> str:
    """Why the candidate's clock is certainly wrong; empty where it is not."""
    # above this the parent's clock is certain; below, other kinds of calls decide, or the time is counted
    if clocks.certain_ms["single"] > slack + (PROCESS_MS if short else 0.0):
        shown, hidden = clocks.own_ms["single"], clocks.hidden["single"].value
        return f"its own clock shows {shown:.4f} ms, but {hidden:.4f} ms more pass until its output is there"
    if not clocks.proven and clocks.certain_head_start_ms > slack:
        return (
            f"calls take {clocks.sealed_ms:.4f} ms longer "
            "when inputs are shown only after the clock has started"
        )
    for kind in (kind for kind in clocks.own_ms if kind == "burst" or (kind == "queued" and clocks.proven)):
        own, process = clocks.own_ms[kind], clocks.process_ms[kind]
        share, factor = (SLACK_SHARE, _PROVEN_FACTOR) if clocks.proven else (BURST_SHARE, 2.0)
        if clocks.certain_ms[kind] > share * own + factor * process:
            what = "calls that follow each other" if kind == "burst" else "calls that are launched ahead"
            took = own + clocks.hidden[kind].value
            return f"its own clock shows {own:.4f} ms a call, but {what} take {took:.4f} ms each"
    return ""


def _widen_ms(
    clocks: ClockStatistics, device: str, short: bool, resolved: Mapping[Kind, float]
) -> dict[Kind, float]:
    """Doubt beyond what is counted; only for the kind of calls with the least, where one kind is sound."""
    if device == "cpu" or not (clocks.proven or "burst" in clocks.own_ms):
        return _widen_unproven_ms(clocks, device, short)
    kinds = [kind for kind in clocks.own_ms if kind == "burst" or (kind == "queued" and clocks.proven)]
    doubts = {
        kind: max(0.0, clocks.hidden[kind].high - resolved[kind]) + clocks.process_ms[kind] for kind in kinds
    }
    best = min(kinds, key=lambda kind: doubts[kind] / clocks.own_ms[kind])
    return {kind: doubts[kind] if kind == best else 0.0 for kind in clocks.own_ms}


def _widen_unproven_ms(clocks: ClockStatistics, device: str, short: bool) -> dict[Kind, float]:
    hidden = clocks.hidden["single"]
    certain = hidden.value if device == "cpu" and hidden.low > 0 else 0.0  # on a GPU processes differ by more
    unresolved = max(0.0, hidden.high) + (PROCESS_MS if short else 0.0)
    limit = RESOLVED_SHARE if device == "cpu" else SYSTEMATIC
    return {
        kind: unresolved if unresolved > limit * shown else certain for kind, shown in clocks.own_ms.items()
    }


def speedup(
    rounds: Rounds,
    slow: str,
    fast: str,
    links: Mapping[Kind, torch.Tensor],
    widen_ms: Mapping[Kind, float],
    charge_ms: Mapping[Kind, float] | None = None,
    certain_charge_ms: Mapping[Kind, float] | None = None,
) -> Interval:
    """How many times faster `fast` is: the lowest of what the kinds of calls show.

    `links`: `slow` stands for another participant that is slower than it by these log-ratios.
    """
    intervals = []
    for kind in rounds.kinds:
        own_ms = rounds.median_ms(fast, kind)
        charges_ms = (charge_ms or {}).get(kind, 0.0), (certain_charge_ms or {}).get(kind, 0.0)
        timed = rounds.steadiest_kind if links and kind == "single" else kind
        logs = rounds.log_link(slow, fast, kind) if links else rounds.log_ratio(slow, fast, kind)
        ratio = ratio_interval(logs, links.get(kind))
        ratio = charge(widen(ratio, own_ms, widen_ms[kind]), own_ms, *charges_ms)
        threshold = 1.0 if timed != "single" and slow in rounds.denied_prelaunch else NOISE_SHARE
        shares = solo_share(rounds, slow, timed, trusted=True), solo_share(rounds, fast, kind)
        intervals.append(adjust_for_interference(ratio, *shares, threshold))
    return lower_bound(intervals)


def widen(ratio: Interval, own_ms: float, extra_ms: float) -> Interval:
    """The interval if the candidate really took `extra_ms` longer than it shows.

    The interval already allows for differences between processes (SYSTEMATIC): doubt below that adds nothing.
    """
    factor = min(1.0, math.exp(SYSTEMATIC) * own_ms / (own_ms + extra_ms))
    return Interval(ratio.value, ratio.low * factor, ratio.high)


def charge(ratio: Interval, own_ms: float, extra_ms: float, certain_ms: float = 0.0) -> Interval:
    """The interval where `extra_ms` that the candidate's clock did not show is counted as its own.

    `certain_ms`: the part of it of which there is no doubt.
    """
    factor, least = own_ms / (own_ms + extra_ms), own_ms / (own_ms + certain_ms)
    return Interval(ratio.value * factor, ratio.low * factor, ratio.high * least)


def adjust_for_interference(
    ratio: Interval, baseline_share: float, candidate_share: float, threshold: float = NOISE_SHARE
) -> Interval:
    """The interval where a baseline takes only a share of its time while the candidate is not running.

    A candidate may have left something running. What slows both alike (6 % in some runs of a matrix product)
    is no difference between them. Shares above the `threshold` are noise.
    """
    share = baseline_share / min(1.0, candidate_share)
    return ratio if share > threshold else Interval(ratio.value * share, ratio.low * share, ratio.high)
