"""The clock policy: what hidden time does to a verdict.

Hidden time (measure/clocks.py) is time that the candidate's own clock does not show. It has three effects:

 - Hidden time that certainly exceeds a slack means that the candidate's clock lies: it is `cheating`.
 - Hidden time that is statistically significant is charged: it is added to the candidate's time.
 - Hidden time that is not significant widens the interval of the speed-up.

On a GPU, the end of a prelaunched call is proven (sandbox/completion.py). Hidden time is then resolved to
PROVEN_PROCESS_MS, divided by the number of calls in a burst. Where calls cannot be prelaunched, the
resolution is PROCESS_MS, again divided by the calls of a burst. The speed-up is the lowest that any kind of
call shows, so one reliable kind is enough: only the kind with the least doubt has its interval widened.

Other work on the host may delay the parent after each call, which looks like hidden time. On a CPU, threads
of an honest kernel cause a little of it, too (SPINNING_MS). In both cases the time is charged to the
candidate, but the verdict is not `cheating`.
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
from kernelpro.records import Interval, Target

SPINNING_MS = 0.150
"""OpenMP threads keep spinning after a call. If they occupy all cores, the parent gets a core back 0.1 ms
late. On CPUs, hidden time up to this limit is charged to the candidate but does not make it `cheating`."""
BURST_SHARE = 0.25
"""For calls of a burst that is not prelaunched. The candidate is `cheating` if its hidden time certainly
exceeds this share of its own time plus twice the difference between processes."""
_PROVEN_FACTOR = 4.0
"""For calls with a proven end. The candidate is `cheating` if its hidden time certainly exceeds SLACK_SHARE
of its own time plus this many times the difference between processes."""


@dataclass(frozen=True)
class ClockDecision:
    """The policy's conclusions from the statistics of the two clocks."""

    statistics: ClockStatistics
    lie: str
    """Why the candidate's clock is certainly wrong; empty if it is not."""
    within_spinning: bool
    """On a CPU: spinning threads of an honest kernel could explain the hidden time (SPINNING_MS)."""
    inconclusive: bool
    """There is hidden time, but not enough, or not certainly enough, to call it cheating: it is charged."""
    charge_ms: dict[Kind, float]
    """By kind of call, hidden milliseconds to add to the candidate's time if its clock is not trusted."""
    certain_charge_ms: dict[Kind, float]
    """The part of `charge_ms` that is beyond doubt."""
    widen_ms: dict[Kind, float]
    """By kind of call, milliseconds that may be hidden beyond `charge_ms`: they widen the interval."""

    @property
    def charged_ms(self) -> float:
        """The largest of `charge_ms`."""
        return max(self.charge_ms.values())

    @property
    def max_widen_ms(self) -> float:
        """The largest of `widen_ms`."""
        return max(self.widen_ms.values())


def decide_clocks(clocks: ClockStatistics, device: Target, short: bool = False) -> ClockDecision:
    """Apply the policy. `short`: single calls cannot resolve the kernel's time, so that queued calls and
    bursts decide if their ends are proven."""
    own, hidden = clocks.deciding_ms, clocks.hidden["single"]
    slack = SLACK_MS[device] + SLACK_SHARE * own
    early = not clocks.proven and seems_early(clocks.sealed_ms, hidden.value, slack)
    resolved: dict[Kind, float] = {
        kind: _resolved_ms(clocks, kind) for kind in clocks.own_ms if kind != "single"
    }
    sound = clocks.proven or "burst" in clocks.own_ms
    # bursts do not reveal a head start: their inputs are written before the clock starts
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
    """Hidden time of one kind of call, or 0 if differences between processes could explain it."""
    if kind == "queued" and not clocks.proven:
        return 0.0
    hidden = clocks.hidden[kind]
    return hidden.value if hidden.low > clocks.process_ms[kind] else 0.0


def _certain_ms(clocks: ClockStatistics, kind: Kind) -> float:
    return clocks.hidden[kind].low - clocks.process_ms[kind]


def _lie(clocks: ClockStatistics, slack: float, short: bool) -> str:
    """Why the candidate's clock is certainly wrong; empty if it is not."""
    # above this limit the parent's clock is certain; below it, other kinds of calls decide
    if clocks.certain_ms["single"] > slack + (PROCESS_MS if short else 0.0):
        shown, hidden = clocks.own_ms["single"], clocks.hidden["single"].value
        return (
            f"its own clock shows {shown:.4f} ms, but by the judge's clock its output is complete "
            f"{hidden:.4f} ms later"
        )
    if not clocks.proven and clocks.certain_head_start_ms > slack:
        return (
            f"calls take {clocks.sealed_ms:.4f} ms longer "
            "when the inputs are written only after the clock has started: in other calls it starts early"
        )
    for kind in (kind for kind in clocks.own_ms if kind == "burst" or (kind == "queued" and clocks.proven)):
        own, process = clocks.own_ms[kind], clocks.process_ms[kind]
        share, factor = (SLACK_SHARE, _PROVEN_FACTOR) if clocks.proven else (BURST_SHARE, 2.0)
        if clocks.certain_ms[kind] > share * own + factor * process:
            what = "back-to-back calls" if kind == "burst" else "calls launched ahead of their inputs"
            took = own + clocks.hidden[kind].value
            return f"its own clock shows {own:.4f} ms per call, but by the judge's {what} take {took:.4f} ms"
    return ""


def _widen_ms(
    clocks: ClockStatistics, device: Target, short: bool, resolved: Mapping[Kind, float]
) -> dict[Kind, float]:
    """Doubt beyond the charged time. If a kind of call is reliable, only the kind with the least doubt has
    any."""
    if device == "cpu" or not (clocks.proven or "burst" in clocks.own_ms):
        return _widen_unproven_ms(clocks, device, short)
    kinds = [kind for kind in clocks.own_ms if kind == "burst" or (kind == "queued" and clocks.proven)]
    doubts = {
        kind: max(0.0, clocks.hidden[kind].high - resolved[kind]) + clocks.process_ms[kind] for kind in kinds
    }
    best = min(kinds, key=lambda kind: doubts[kind] / clocks.own_ms[kind])
    return {kind: doubts[kind] if kind == best else 0.0 for kind in clocks.own_ms}


def _widen_unproven_ms(clocks: ClockStatistics, device: Target, short: bool) -> dict[Kind, float]:
    hidden = clocks.hidden["single"]
    certain = hidden.value if device == "cpu" and hidden.low > 0 else 0.0  # on GPUs processes differ by more
    unresolved = max(0.0, hidden.high) + (PROCESS_MS if short else 0.0)
    limit = RESOLVED_SHARE if device == "cpu" else SYSTEMATIC["cuda"]
    return {
        kind: unresolved if unresolved > limit * shown else certain for kind, shown in clocks.own_ms.items()
    }


def speedup(
    rounds: Rounds,
    slow: str,
    fast: str,
    links: Mapping[Kind, torch.Tensor],
    widen_ms: Mapping[Kind, float],
    systematic: float,
    charge_ms: Mapping[Kind, float] | None = None,
    certain_charge_ms: Mapping[Kind, float] | None = None,
) -> Interval:
    """How many times faster `fast` is: the lowest ratio over all kinds of calls.

    `links`: by kind of call, log-ratios of another participant's time to the time of `slow`. The result is
    then the ratio to that other participant, which was not timed beside `fast`. `systematic`: see
    statistics.SYSTEMATIC.
    """
    intervals = []
    for kind in rounds.kinds:
        own_ms = rounds.median_ms(fast, kind)
        charges_ms = (charge_ms or {}).get(kind, 0.0), (certain_charge_ms or {}).get(kind, 0.0)
        timed = rounds.steadiest_kind if links and kind == "single" else kind
        logs = rounds.log_link(slow, fast, kind) if links else rounds.log_ratio(slow, fast, kind)
        ratio = ratio_interval(logs, systematic, links.get(kind))
        ratio = charge(widen(ratio, own_ms, widen_ms[kind], systematic), own_ms, *charges_ms)
        threshold = 1.0 if timed != "single" and slow in rounds.denied_prelaunch else NOISE_SHARE
        shares = solo_share(rounds, slow, timed, trusted=True), solo_share(rounds, fast, kind)
        intervals.append(adjust_for_interference(ratio, *shares, threshold))
    return lower_bound(intervals)


def widen(ratio: Interval, own_ms: float, extra_ms: float, systematic: float) -> Interval:
    """The interval, with its low end as if the candidate took `extra_ms` longer than its clock shows.

    The interval already allows for differences between processes (`systematic`), so smaller doubt adds
    nothing.
    """
    factor = min(1.0, math.exp(systematic) * own_ms / (own_ms + extra_ms))
    return Interval(ratio.value, ratio.low * factor, ratio.high)


def charge(ratio: Interval, own_ms: float, extra_ms: float, certain_ms: float = 0.0) -> Interval:
    """The interval after adding hidden `extra_ms` to the candidate's own time.

    `certain_ms`: the part of `extra_ms` that is beyond doubt; only this part lowers the high end.
    """
    factor, least = own_ms / (own_ms + extra_ms), own_ms / (own_ms + certain_ms)
    return Interval(ratio.value * factor, ratio.low * factor, ratio.high * least)


def adjust_for_interference(
    ratio: Interval, baseline_share: float, candidate_share: float, threshold: float = NOISE_SHARE
) -> Interval:
    """The interval, corrected if the baseline is faster while the candidate is not running.

    A candidate may leave work running that slows the baseline. The shares are each side's time alone divided
    by its time in rounds. If both sides are slowed alike (6 % in some runs of a matrix product), nothing is
    corrected. A share above `threshold` is noise.
    """
    share = baseline_share / min(1.0, candidate_share)
    return ratio if share > threshold else Interval(ratio.value * share, ratio.low * share, ratio.high)
