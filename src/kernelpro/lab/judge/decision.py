"""Measured facts about one candidate, and the decision that follows from them. wording.py describes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kernelpro.lab.judge import own_work
from kernelpro.lab.judge.clock_policy import ClockDecision, decide_clocks, speedup
from kernelpro.lab.measure import physics
from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.clocks import ClockStatistics, measure_clocks
from kernelpro.lab.measure.round_runner import Accuracy, is_short
from kernelpro.lab.measure.rounds import Rounds, comparable_time
from kernelpro.lab.measure.statistics import SYSTEMATIC, faster_than_all
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import Interval, ShapeTimes, Status


@dataclass(frozen=True)
class Facts:
    """Everything measured about one candidate."""

    source: str
    build_errors: tuple[str, ...]
    """Errors of extensions that failed to build. The candidate caught them."""
    accuracy: Accuracy
    rounds: Rounds
    burst_skip_reason: str
    """Why there are no bursts; empty if there are."""
    peak_bytes: int
    own_share: float | None
    """The share of time in the candidate's own kernels; None if it cannot be measured."""
    prelaunch: bool
    """Sealed calls were prelaunched: launched before their inputs were written."""
    retried_without_prelaunch: bool
    verified_calls: int


@dataclass(frozen=True)
class Decision:
    """The outcome for a candidate that passes."""

    anchor: str
    """The baseline that was timed beside the candidate in every round."""
    clocks: ClockDecision
    charged: bool
    """Hidden time was added to the candidate's own."""
    times: dict[str, Interval]
    speedup: dict[str, Interval]
    faster: Literal["yes", "no", "unclear"]
    """Whether it is faster than every baseline: which of them is the fastest is measured, too."""
    reference_operations_ms: float = 0.0
    """If it is faster than the reference's operations can run on this device: their least time; else 0."""

    @property
    def statistics(self) -> ClockStatistics:
        """The statistics of the two clocks."""
        return self.clocks.statistics

    def shape_times(self, bench: Bench) -> ShapeTimes:
        """Times and speed-ups as those of a shape."""
        return ShapeTimes(bench.shape, 1.0, self.times, self.speedup, bench.floor_ms)


def decide(facts: Facts, bench: Bench, baselines: Baselines, others_are_busy: Callable[[], bool]) -> Decision:
    """The decision on a candidate whose outputs are right; raises CandidateRejected if it does not pass.

    `others_are_busy` measures whether other work keeps the machine busy. It is called only if that could
    explain a candidate's hidden time.
    """
    rounds, anchor = facts.rounds, baselines.anchor
    corrections = baselines.excess_protocol_ms(facts.prelaunch)
    statistics = measure_clocks(rounds, "candidate", anchor, corrections)
    clocks = decide_clocks(statistics, bench.target, is_short(bench.target, rounds.median_ms("candidate")))
    excused = is_excused(clocks, others_are_busy)
    if clocks.lie and not excused:
        raise CandidateRejected(Status.CHEATING, clocks.lie)
    _require_possible_time(statistics.deciding_ms, bench)
    _require_own_work(facts, bench.options.min_own_share)
    charged = excused or clocks.inconclusive
    charge_ms = clocks.charge_ms if charged else {}
    own = comparable_time(rounds, anchor, "candidate")
    extra_ms = max(charge_ms.values(), default=0.0)
    times = {"candidate": Interval(own.value + extra_ms, own.low, own.high + extra_ms)}
    times |= {name: baselines.time_ms(name) for name in baselines.variants}
    systematic = SYSTEMATIC[bench.target]
    ratios = {
        name: _speedup(name, rounds, baselines, clocks, systematic, charged) for name in baselines.variants
    }
    operations_ms = physics.reference_operations_ms(bench.work, bench.ceilings, bench.unit)
    beaten_ms = operations_ms if statistics.deciding_ms < operations_ms else 0.0
    return Decision(anchor, clocks, charged, times, ratios, faster_than_all(ratios), beaten_ms)


def is_excused(clocks: ClockDecision, others_are_busy: Callable[[], bool]) -> bool:
    """Whether the host may explain what looks like a lie: the hidden time is then charged instead."""
    return bool(clocks.lie) and (clocks.within_spinning or others_are_busy())


def _speedup(
    name: str,
    rounds: Rounds,
    baselines: Baselines,
    clocks: ClockDecision,
    systematic: float,
    charged: bool,
) -> Interval:
    """The speed-up over one baseline. If it was not timed beside the candidate, the anchor links the two."""
    direct = name in rounds.samples
    timed = name if direct else baselines.anchor
    links = {} if direct else {kind: baselines.log_ratio_to_anchor(name, kind) for kind in rounds.kinds}
    charges = (clocks.charge_ms, clocks.certain_charge_ms) if charged else ()
    return speedup(rounds, timed, "candidate", links, clocks.widen_ms, systematic, *charges)


def _require_possible_time(own_ms: float, bench: Bench) -> None:
    """Reject a time below the device's physical limit: the kernel must have skipped work."""
    limit_ms = physics.impossible_ms(bench.work, bench.ceilings, bench.target)
    if own_ms < limit_ms:
        raise CandidateRejected(
            Status.REFUSED,
            f"takes {own_ms:.4f} ms, but the task's memory traffic takes this device at least "
            f"{limit_ms:.4f} ms: it skips work, or the device's measured ceilings are too low",
        )


def _require_own_work(facts: Facts, min_own_share: float) -> None:
    share = facts.own_share or 0.0
    if own_work.is_decoy(facts.source, facts.own_share):
        if facts.build_errors:
            raise CandidateRejected(
                Status.BUILD_FAILED,
                f"its extension failed to build, and library calls do the work: {facts.build_errors[0]}",
            )
        if share == 0:
            raise CandidateRejected(
                Status.REFUSED,
                "never runs the kernels that it defines: library calls do the work (it may have caught an "
                "error); remove these kernels, or declare the calls: # library-calls: NAME",
            )
        raise CandidateRejected(
            Status.CHEATING, f"defines its own kernels, but they take {share:.2%} of the time: a decoy"
        )
    if share < min_own_share:
        raise CandidateRejected(
            Status.REFUSED, f"{share:.0%} of the time is in its own kernels; {min_own_share:.0%} is required"
        )
