"""The policy on clocks: which hidden time convicts a candidate, is counted as its own, or widens its
interval.

Where hidden time (measure/clocks.py) is certainly above the slack, the candidate's clock lies and it is
cheating. Where it is above the slack in most rounds, it is counted as the candidate's time. Where it may be a
noticeable share of the candidate's time, the interval of the result is widened by it.

On a CPU that other work keeps busy the scheduler may delay the parent after each call, which looks the same,
and a little of it (SPINNING_MS) is due to an honest kernel's own threads: there nobody is convicted, but the
time is counted as the candidate's. On a GPU single calls differ between processes (PROCESS_MS). For short
kernels bursts decide up to that: what their calls certainly take beyond the slack is counted, and far more
(BURST_SHARE) is a lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernelpro.lab.measure.clocks import (
    RESOLVED_SHARE,
    SLACK_MS,
    SLACK_SHARE,
    ClockStatistics,
    seems_early,
    solo_share,
)
from kernelpro.lab.measure.rounds import NOISE_SHARE, Kind, Rounds
from kernelpro.lab.measure.statistics import lower_bound, ratio_interval
from kernelpro.records import Interval

SPINNING_MS = 0.150
"""OpenMP's threads go on spinning after a call; where they fill all cores of a CPU, the parent gets its own a
tenth of a millisecond late. So much convicts nobody there, but is counted as the candidate's time."""
BURST_SHARE = 0.25
"""Calls of a burst that certainly take so much longer than the candidate's clock shows, and three times the
slack, convict. An honest kernel's took 15 % longer on an H200 host, by what a long burst's protocol cost
beyond a short one's."""
PROCESS_MS = 0.1
"""The protocol's cost differs by so much between processes: what a short kernel may hide where bursts are
impossible."""


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
    charged_ms: float
    """What counts as the candidate's time where its clock is not fully believed."""
    widen_ms: dict[Kind, float]
    """By kind of call, what may be hidden where the parent's clock cannot resolve the candidate's time; on a
    CPU also what certainly is, however little."""

    @property
    def max_widen_ms(self) -> float:
        """The largest of `widen_ms`."""
        return max(self.widen_ms.values())


def decide_clocks(clocks: ClockStatistics, device: str, short: bool = False) -> ClockDecision:
    """Apply the policy. `short`: the kernel is too short for single calls, and bursts decide where there are
    any."""
    own, hidden = clocks.deciding_ms, clocks.hidden
    slack = SLACK_MS[device] + SLACK_SHARE * own
    early = seems_early(clocks.sealed_ms, hidden.value, slack)
    in_bursts = _charged_by_bursts(clocks)
    # bursts do not show a head start: their inputs are there before
    in_calls = max(hidden.value, clocks.sealed_ms, 0.0) if early or clocks.slope is None else 0.0
    lie = _lie(clocks, slack, short)
    return ClockDecision(
        clocks,
        lie,
        device == "cpu" and clocks.certainly_hidden_ms <= SPINNING_MS + SLACK_SHARE * own,
        not lie and (early or in_calls > slack or in_bursts > 0),
        max(in_calls, in_bursts),
        _widen_ms(clocks, device, short),
    )


def _lie(clocks: ClockStatistics, slack: float, short: bool) -> str:
    """Why the candidate's clock is certainly wrong; empty where it is not."""
    own, hidden = clocks.deciding_ms, clocks.hidden
    # above this the parent's clock is certain; below, bursts decide, or the time is counted
    if clocks.certainly_hidden_ms > slack + (PROCESS_MS if short else 0.0):
        shown = clocks.own_ms["single"]
        return (
            f"its own clock shows {shown:.4f} ms, "
            f"but {hidden.value:.4f} ms more pass until its output is there"
        )
    if clocks.certain_head_start_ms > slack:
        return (
            f"calls take {clocks.sealed_ms:.4f} ms longer "
            "when inputs are shown only after the clock has started"
        )
    limit = (1 + BURST_SHARE) * max(own, clocks.host_ms) + 3 * clocks.slope_slack_ms
    if clocks.slope and clocks.certain_slope_ms > limit:
        return (
            f"its own clock shows {own:.4f} ms a call, "
            f"but calls that follow each other take {clocks.slope.value:.4f} ms each"
        )
    return ""


def _charged_by_bursts(clocks: ClockStatistics) -> float:
    """What calls of bursts certainly take beyond the candidate's clock.

    Up to `host_ms`, the child's claim, a slope may be its host side's and is no proof of a lie; but the
    interval is widened by it.
    """
    limit = (1 + SLACK_SHARE) * max(clocks.deciding_ms, clocks.host_ms) + clocks.slope_slack_ms
    if clocks.slope is None or clocks.certain_slope_ms <= limit:
        return 0.0
    return clocks.slope.value - clocks.deciding_ms


def _widen_ms(clocks: ClockStatistics, device: str, short: bool) -> dict[Kind, float]:
    hidden = clocks.hidden
    certain = hidden.value if device == "cpu" and hidden.low > 0 else 0.0  # on a GPU processes differ by more
    unresolved = max(0.0, hidden.high) + (PROCESS_MS if short else 0.0)
    widen: dict[Kind, float] = {}
    for kind, shown in clocks.own_ms.items():
        doubt = max(0.0, clocks.slope.high - shown) if clocks.slope else unresolved
        widen[kind] = doubt if doubt > RESOLVED_SHARE * shown else certain
    return widen


def speedup(
    rounds: Rounds,
    slow: str,
    fast: str,
    links: Mapping[Kind, torch.Tensor],
    widen_ms: Mapping[Kind, float],
    charge_ms: float = 0.0,
) -> Interval:
    """How many times faster `fast` is: the lower of what single calls and queued ones show.

    `links`: `slow` stands for another participant that is slower than it by these log-ratios.
    """
    intervals = []
    for kind in rounds.kinds:
        own_ms = rounds.median_ms(fast, kind)
        timed = rounds.kinds[-1] if links else kind
        logs = rounds.log_link(slow, fast, kind) if links else rounds.log_ratio(slow, fast, kind)
        ratio = ratio_interval(logs, links.get(kind))
        ratio = charge(widen(ratio, own_ms, widen_ms[kind]), own_ms, charge_ms)
        threshold = 1.0 if timed == "queued" and slow in rounds.denied_prelaunch else NOISE_SHARE
        shares = solo_share(rounds, slow, timed, trusted=True), solo_share(rounds, fast, kind)
        intervals.append(adjust_for_interference(ratio, *shares, threshold))
    return lower_bound(intervals)


def widen(ratio: Interval, own_ms: float, extra_ms: float) -> Interval:
    """The interval if the candidate really took `extra_ms` longer than it shows."""
    return Interval(ratio.value, ratio.low * own_ms / (own_ms + extra_ms), ratio.high)


def charge(ratio: Interval, own_ms: float, extra_ms: float) -> Interval:
    """The interval where `extra_ms` that the candidate's clock did not show is counted as its own."""
    factor = own_ms / (own_ms + extra_ms)
    return Interval(ratio.value * factor, ratio.low * factor, ratio.high)


def adjust_for_interference(
    ratio: Interval, baseline_share: float, candidate_share: float, threshold: float = NOISE_SHARE
) -> Interval:
    """The interval where a baseline takes only a share of its time while the candidate is not running.

    A candidate may have left something running. What slows both alike (6 % in some runs of a matrix product)
    is no difference between them. Shares above the `threshold` are noise.
    """
    share = baseline_share / min(1.0, candidate_share)
    return ratio if share > threshold else Interval(ratio.value * share, ratio.low * share, ratio.high)
