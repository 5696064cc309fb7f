"""The interface of a diagnostic: trigger -> analysis -> recommendation.

A diagnostic is one small file with `DIAGNOSTIC = Diagnostic(...)`. Its `analyze` function receives a
`DiagnosticContext` (the profile, one kernel of it, the class of the bottleneck) and returns a `Match`,
or None where its trigger is not met. The match states which share of the kernel's time a fix would save;
the context turns that into the gain of a whole call, by Amdahl's law and never beyond the floor.

`context.metric`, `context.code`, `context.timeline` and `context.cpu` raise MissingData where the profile
lacks the data: the diagnostic is then reported as skipped, with the reason. A diagnostic with a fallback
asks `context.metric_or_none` or `context.has_counters` first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import get_args

from kernelpro.diagnose.account import Account
from kernelpro.diagnose.account.loop_time import arithmetic_ms, indexed_sums_ms
from kernelpro.diagnose.counters import (
    ALL_BOUNDS,
    ATTAINABLE,
    MEMORY_THROUGHPUT,
    SM_THROUGHPUT,
    WARP_CYCLES,
    stall_metric,
)
from kernelpro.diagnose.kernel_names import display_name
from kernelpro.records import (
    Bound,
    CpuProfile,
    DeviceProperties,
    Evidence,
    Finding,
    FindingObjective,
    Gain,
    InstructionKind,
    Kernel,
    KernelCode,
    Level,
    PartKind,
    Profile,
    Severity,
    Target,
    Timeline,
    Work,
)

HIGH, MEDIUM = 1.25, 1.08
"""Smallest gains of high and medium severity: a quarter is worth a rewrite; less than 8 % is within reach
of tuning."""
_MAX_SAVED_SHARE = 0.995
ANY = "*"
"""In `symptom_of`: every finding inside the same kernel."""
FLOOR_TOLERANCE = 1.05
"""A call may be this many times faster than its floor before the floor counts as wrong: ceilings are known
to a few percent."""
_REACHED = 0.5
"""Share of the floor's speed that good kernels reach on the CPU. Measured on two ARM cores: 0.34 to 0.67."""
_OF_LOOP = 0.8
"""The same in the bandwidth of the simplest vector loop, where that was measured. On a Xeon: 0.59 to 0.97."""
_SUMMING = 0.75
"""Of that, what kernels reach that sum. Measured: 0.7 on two ARM cores, 0.8 on a Xeon."""
_HOT = 0.3
"""Share of the time from which a loop decides that."""
_LITTLE = 0.25
"""Exponent of the headroom: the least gain that `reachable_gain` allows, a quarter of the distance to the
floor in logs. It applies to kernels that already are about as fast as good ones."""
ALL_PARTS: tuple[PartKind, ...] = get_args(PartKind)
"""Claims of a diagnostic whose remedy may remove any part of its kernel, or of the call."""
REPLACE = (
    "replace this library kernel, which you cannot edit, by your own kernel that also fuses its neighbors"
)


class MissingData(Exception):
    """The profile lacks data that a diagnostic needs; the message names the data: `a timeline`."""


@dataclass(frozen=True)
class Match:
    """What a diagnostic returns when its trigger is met."""

    evidence: tuple[Evidence, ...]
    """Most telling first: guidance for authors shows three, a report shows all."""
    cause: str
    saved_share: float
    """Share of the time (of the kernel; for system diagnostics of the call) that a fix would save, 0 to 1."""
    basis: str
    """How `saved_share` was estimated, with numbers."""
    where: str = ""
    """The source line, where known."""
    advice: tuple[str, ...] = ()
    """Best first; empty: the diagnostic's own advice."""
    kernel: str = ""
    """The kernel that a system diagnostic refers to, if it is one."""
    claims: tuple[PartKind, ...] | None = None
    """Parts that this match's remedy removes; None: the diagnostic's own."""
    claims_of: tuple[Kernel, ...] = ()
    """The kernels that the remedy of a system diagnostic removes: the match claims only their parts."""
    to_floor: bool = False
    """`saved_share` is the distance to the floor: `reachable_gain` does not cap the gain (CPU)."""


@dataclass(frozen=True)
class Diagnostic:
    """One known performance problem: how to recognize it, what to do about it, what a fix would save."""

    name: str
    level: Level
    target: Target
    analyze: Callable[[DiagnosticContext], Match | None]
    trigger: str
    """When it matches, with the thresholds. For the reference page."""
    remedy: str
    """What it recommends, in a sentence. For the reference page."""
    gain_basis: str
    """How the expected gain is estimated. For the reference page."""
    advice: tuple[str, ...] = ()
    """Advice of matches that bring none of their own; best first."""
    bounds: frozenset[Bound] = ALL_BOUNDS
    """Classes of bottleneck in which its counters are worth collecting."""
    metrics: tuple[str, ...] = ()
    """Hardware counters to collect with ncu."""
    sample_lines: bool = False
    """Whether it uses stall samples by source line."""
    claims: tuple[PartKind, ...] = ALL_PARTS
    """Parts of the time account that the remedy removes; empty: it names a place, not a cause."""
    symptom_of: tuple[str, ...] = ()
    """Diagnostics whose finding on the same kernel explains this one's, or ANY: it then ranks after them."""
    objective: FindingObjective = "speed"
    """`saved_share` is a share of the time, or of the energy. Energy diagnostics run only where energy is
    an objective."""


@dataclass(frozen=True)
class DiagnosticContext:
    """The input of a diagnostic: a profile, and one of its kernels."""

    profile: Profile
    bound: Bound
    subject: Kernel | None = None
    """The kernel to analyze; None for system diagnostics."""
    account: Account = field(default=Account(()), repr=False)
    """The time account of the call."""

    def __post_init__(self) -> None:
        code = self.subject.code if self.subject else None
        if self.subject and code and code.mix is None:  # only the compiler's log, no disassembly
            object.__setattr__(self, "subject", replace(self.subject, code=None))

    @property
    def device(self) -> DeviceProperties:
        """Properties of the device."""
        return self.profile.device

    @property
    def work(self) -> Work:
        """The minimum work of the task: its bytes and operations."""
        return self.profile.work

    @property
    def kernel(self) -> Kernel:
        """The kernel to analyze."""
        if self.subject is None:
            raise MissingData("a kernel")
        return self.subject

    @property
    def timeline(self) -> Timeline:
        """The timeline of a call."""
        if self.profile.timeline is None:
            raise MissingData("a timeline")
        return self.profile.timeline

    @property
    def code(self) -> KernelCode:
        """The disassembled kernel."""
        if self.kernel.code is None:
            raise MissingData("machine code of this kernel")
        return self.kernel.code

    @property
    def cpu(self) -> CpuProfile:
        """The profile of the CPU."""
        if self.profile.cpu is None:
            raise MissingData("a profile of the CPU")
        return self.profile.cpu

    def metric(self, name: str) -> float:
        """A hardware counter of the kernel."""
        if name not in self.kernel.metrics:
            raise MissingData(f"counter {name}")
        return self.kernel.metrics[name]

    def metric_or_none(self, name: str) -> float | None:
        """A hardware counter of the kernel, if it was collected."""
        return self.kernel.metrics.get(name)

    @property
    def has_counters(self) -> bool:
        """Whether hardware counters of the kernel were collected."""
        return SM_THROUGHPUT in self.kernel.metrics

    @property
    def launch_caveat(self) -> str:
        """Marks a cause that was computed from the launch configuration; empty where counters confirm it."""
        return "" if self.has_counters else " (from the launch configuration; no counters)"

    def stall_share(self, *reasons: str) -> float:
        """Share of the warp cycles stalled for these reasons, 0 to 1."""
        cycles = self.metric(WARP_CYCLES)
        stalled = sum(self.metric(stall_metric(reason)) for reason in reasons)
        return min(1.0, stalled / cycles) if cycles > 0 else 0.0

    @property
    def peak_utilization(self) -> float:
        """Utilization of the busiest unit (an SM pipe, L1, L2 or DRAM), 0 to 1 of its nominal peak."""
        return max(self.metric(SM_THROUGHPUT), self.metric(MEMORY_THROUGHPUT)) / 100

    @property
    def latency_headroom(self) -> float:
        """Largest share of the time that hiding latency can save: until the busiest unit saturates.

        By Little's law the rate of a latency-bound kernel is (warps) / (warp cycles per instruction):
        removing a share s of those cycles shortens the kernel by s.
        """
        return max(0.0, 1 - self.peak_utilization / ATTAINABLE)

    @property
    def memory_share(self) -> float:
        """Share of the time that memory determines: its utilization (over ATTAINABLE), or stalls on it.

        The larger of the two counts; if the SM pipes are busier than memory, only the stalls count.
        """
        memory = self.metric(MEMORY_THROUGHPUT)
        busy = memory if memory >= self.metric(SM_THROUGHPUT) else 0.0
        return min(1.0, max(busy / 100 / ATTAINABLE, self.stall_share("long_scoreboard", "lg_throttle")))

    def hottest_line(self, *reasons: str) -> str:
        """The source line with the most samples stalled for these reasons; empty without samples."""
        weights = {
            line.where: line.share * sum(line.stalls.get(reason, 0.0) for reason in reasons)
            for line in self.kernel.lines
        }
        where = max(weights, key=lambda name: weights[name], default="")
        return where if weights.get(where, 0.0) > 0 else ""

    def line_of(self, *kinds: InstructionKind) -> str:
        """The source line of the first instruction of the first of these kinds that has one; else empty."""
        where = self.subject.code.where if self.subject and self.subject.code else {}
        return next((where[kind] for kind in kinds if where.get(kind)), "")

    def part_share(self, *parts: PartKind) -> float:
        """Share of the kernel's time that the time account puts into these parts, 0 to 1."""
        return self.account.share(parts, display_name(self.kernel, self.profile.kernels))

    @property
    def launches(self) -> float:
        """Launches of the kernel in a call; counters are those of one launch."""
        return max(1.0, self.kernel.launches)

    @property
    def headroom(self) -> float:
        """Speed-up from the profiled time to the floor."""
        floor = self.profile.floor_ms
        return max(1.0, self.profile.time_ms / floor) if floor > 0 else float("inf")

    @property
    def reachable_gain(self) -> float:
        """How many times faster than now good kernels are, on the CPU; never as fast as the floor."""
        share = self._reached
        hot = [loop for loop in self.cpu.loops if loop.share >= _HOT]
        if any(loop.count("atomic") and not loop.indirect for loop in hot):
            share *= _SUMMING
        reached = max(share * self.headroom, float(self.headroom**_LITTLE))
        needed = max(arithmetic_ms(self.profile, self.cpu), indexed_sums_ms(self.profile, self.cpu))
        return max(1.0, min(reached, self.profile.time_ms / needed)) if needed else reached

    @property
    def _reached(self) -> float:
        """Share of the floor's speed that good kernels reach on the CPU.

        Matrix products of libraries use the widest vectors, compilers by default half of 512 bits.
        """
        ceilings, nbytes = self.profile.ceilings, self.work.total_bytes
        if self.profile.floor_ms * ceilings.bandwidth_for(nbytes) > FLOOR_TOLERANCE * 1e3 * nbytes:
            return _REACHED * min(1.0, 32 * self.cpu.lanes / max(1, self.cpu.vector_bits))
        return _OF_LOOP * self.profile.ceilings.loop_share or _REACHED

    @property
    def floor_is_valid(self) -> bool:
        """Whether the floor can be trusted: a call that is faster proves it wrong."""
        return self.profile.floor_ms <= FLOOR_TOLERANCE * self.profile.time_ms

    @property
    def share_of_call(self) -> float:
        """The kernel's share of a call's time."""
        if self.subject is None or self.profile.target == "cpu":
            return 1.0
        time_us = 1e3 * self.profile.time_ms
        return min(1.0, self.subject.microseconds / time_us) if time_us > 0 else self.subject.share

    def gain(self, match: Match, objective: str = "speed") -> Gain:
        """The gain of a whole call, by Amdahl's law over the kernel's share of its time or energy.

        A valid floor caps it; on the CPU, so does what good kernels reach.
        """
        factor = 1 / (1 - min(max(match.saved_share, 0.0), _MAX_SAVED_SHARE) * self.share_of_call)
        basis = match.basis
        if self.share_of_call < 0.95:
            basis += f"; the kernel takes {self.share_of_call:.0%} of a call"
        limit = self.headroom if match.to_floor or self.profile.target != "cpu" else self.reachable_gain
        if objective == "speed" and self.floor_is_valid and factor > limit:
            factor = limit
            basis += f"; capped by {'the floor' if limit == self.headroom else 'what good kernels reach'} "
            basis += f"({limit:.2f}x)"
        return Gain(round(factor, 3), basis)

    def to_finding(self, diagnostic: Diagnostic, match: Match) -> Finding:
        """The finding of a match, with its gain for the whole call and its severity."""
        gain = self.gain(match, diagnostic.objective)
        levels = ((HIGH, Severity.HIGH), (MEDIUM, Severity.MEDIUM))
        advice = match.advice or diagnostic.advice
        claims = diagnostic.claims if match.claims is None else match.claims
        if self.subject is not None and not self.subject.authored:
            advice = (REPLACE, *(f"in your kernel, {text}" for text in advice[:1]))
        return Finding(
            diagnostic.name,
            diagnostic.level,
            next((severity for least, severity in levels if gain.factor >= least), Severity.LOW),
            match.evidence,
            match.cause,
            advice,
            gain,
            display_name(self.subject, self.profile.kernels) if self.subject else match.kernel,
            match.where,
            objective=diagnostic.objective,
            claims=claims if diagnostic.objective == "speed" else (),
            claims_of=tuple(display_name(kernel, self.profile.kernels) for kernel in match.claims_of),
        )


def percent(metric: str, share: float, threshold: float | None = None) -> Evidence:
    """Evidence for a share of 0 to 1, in percent."""
    return Evidence(metric, round(100 * share), None if threshold is None else 100 * threshold, "%")
