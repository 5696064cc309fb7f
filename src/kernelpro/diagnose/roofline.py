"""Stage 1: the class of the bottleneck, before any counter is collected.

Two views. Analytic: the least time of the task's bytes, matrix operations and other operations on this
device, from the operator graph and the measured ceilings. Observed: the timeline (is the device busy at all?)
and, once counters are there, the utilization of its units. Where the two disagree the analytic view decides,
because it is the bound of the problem and not of today's implementation; the diagnosis says so.

 1. the device idles through a large part of a call; on the CPU, it is
    neither in native code nor in torch operators                      -> launch (system)
 2. the task is so small that its floor lies below a kernel's latency  -> latency
 3. memory and arithmetic need about the same time                     -> mixed
 4. else the longer of the two                                         -> memory or compute

In class launch, counters are collected where kernels still take a quarter of a call (`counted_class`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernelpro.diagnose.counters import MEMORY_THROUGHPUT, SM_THROUGHPUT
from kernelpro.diagnose.device_time import untraced_us
from kernelpro.records import Bound, LeastTimes, Profile, RooflinePosition

IDLE_SHARE = 0.35
"""Idle share of a call above which the host or the launches limit it. A call with a single short kernel is
idle for a fifth of its time unavoidably."""
UNAVOIDABLE_IDLE_US = 15.0
"""Idle time of every call: one launch and one synchronization (8-12 us on an H200 host)."""
COUNTED_SHARE, COUNTED_LAUNCHES = 0.25, 8
"""In class `launch`, counters are collected if kernels take at least this share of the call (halving them
would be noticeable) in at most this many launches (ncu replays each of them dozens of times)."""
LATENCY_MS = 0.004
"""Floor below which the start and end of a kernel dominate its time (2-4 us on current chips)."""
MIXED = 1.33
"""Ratio below which memory and arithmetic need about the same time: they overlap at best partly."""
BUSY = 60.0
"""Percent of peak above which a unit limits the kernel: Nsight Compute's line between latency and
throughput."""


@dataclass(frozen=True)
class Classification:
    """The class of a bottleneck, and why."""

    bound: Bound
    confidence: Literal["high", "medium", "low"]
    why: str


def least_ms(profile: Profile) -> LeastTimes:
    """Least times of the task's bytes, matrix operations and other operations."""
    work, ceilings = profile.work, profile.ceilings
    return LeastTimes(
        1e3 * work.total_bytes / ceilings.bandwidth_for(work.total_bytes),
        1e3 * work.matrix_flops / ceilings.rate(profile.matrix_unit),
        1e3 * work.vector_flops / ceilings.rates["fp32"],
    )


def classify(profile: Profile) -> Classification:
    """The class of the bottleneck of this profile."""
    idle = _idle(profile)
    if idle is not None and idle[0] > IDLE_SHARE:
        return Classification(Bound.LAUNCH, "high" if idle[0] > 0.5 else "medium", idle[1])
    analytic, why = _analytic(profile)
    observed, utilization = _observed(profile)
    if observed is None:
        unconfirmed = (
            "no counters were collected" if profile.target == "cuda" else "no counter confirms it on the CPU"
        )
        return Classification(analytic, "medium", f"{why}; {unconfirmed}")
    if observed is analytic or Bound.MIXED in (observed, analytic):
        return Classification(analytic, "high", f"{why}; counters agree ({utilization})")
    return Classification(
        analytic,
        "low",
        f"{why}; counters indicate {observed} ({utilization}), but the task's own bound decides",
    )


def counted_class(profile: Profile) -> Bound:
    """The class whose counters are worth collecting: that of the profile, or of its kernels in class launch.

    A call can wait for the host and have slow kernels as well.
    """
    bound = classify(profile).bound
    timeline = profile.timeline
    if bound is not Bound.LAUNCH or timeline is None or profile.target == "cpu":
        return bound
    busy = timeline.busy_us / untraced_us(profile, timeline)
    few = timeline.launches <= COUNTED_LAUNCHES
    return _analytic(profile)[0] if few and busy >= COUNTED_SHARE else bound


def _idle(profile: Profile) -> tuple[float, str] | None:
    """The share of a call in which nothing computes, with a description; None where that was not measured."""
    if profile.target == "cpu":
        return _interpreter_time(profile)
    timeline = profile.timeline
    if timeline is None or timeline.call_us <= 0 or profile.time_ms <= 0:
        return None
    call = untraced_us(profile, timeline)
    idle = max(0.0, call - timeline.busy_us)
    gaps = min(timeline.gaps_us, idle)
    outside = max(0.0, idle - gaps - UNAVOIDABLE_IDLE_US)
    return (gaps + outside) / call, (
        f"the device is busy {timeline.busy_us:.0f} us of a call's {call:.0f}: {gaps:.0f} us idle between "
        f"kernels, {outside:.0f} us before and after"
    )


def _interpreter_time(profile: Profile) -> tuple[float, str] | None:
    """On the CPU: the share of a call in neither the candidate's native code nor torch operators."""
    run = profile.cpu.dynamic if profile.cpu else None
    if not run or run.operators is None or not run.call_ms or not run.best_ms or run.native_ms is None:
        return None
    native = run.native_ms / run.call_ms
    torch = sum(operator.ms for operator in run.operators) / run.best_ms  # both of the best call
    shares = profile.cpu.shares if profile.cpu and profile.cpu.sampled else None
    if shares and not run.native_calls:  # an extension of torch: its calls cannot be timed from outside
        native, torch = shares.native + shares.libm, shares.torch + shares.libc
    return max(0.0, 1 - native - torch), (
        f"of a call's {run.call_ms:.4f} ms, {native:.0%} are in native code and {torch:.0%} in torch "
        "operators: Python and waiting take the rest"
    )


def _analytic(profile: Profile) -> tuple[Bound, str]:
    least = least_ms(profile)
    memory, arithmetic = least.memory, least.arithmetic
    text = f"bytes need {memory:.4f} ms, arithmetic {arithmetic:.4f} ms at this device's measured ceilings"
    if profile.target == "cuda" and max(memory, arithmetic) < LATENCY_MS:
        return Bound.LATENCY, f"{text}: too little work to fill the device"
    ratio = arithmetic / memory if memory else float("inf")
    if 1 / MIXED < ratio < MIXED:
        return Bound.MIXED, text
    return (Bound.COMPUTE if ratio > 1 else Bound.MEMORY), text


def _observed(profile: Profile) -> tuple[Bound | None, str]:
    """The class by the counters of the longest kernel."""
    kernel = next((k for k in profile.kernels if SM_THROUGHPUT in k.metrics), None)
    if kernel is None:
        return None, ""
    compute, memory = kernel.metrics[SM_THROUGHPUT], kernel.metrics.get(MEMORY_THROUGHPUT, 0.0)
    text = f"compute {compute:.0f}%, memory {memory:.0f}% of peak"
    if max(compute, memory) < BUSY:
        return Bound.LATENCY, text
    if min(compute, memory) > BUSY and max(compute, memory) / min(compute, memory) < MIXED:
        return Bound.MIXED, text
    return (Bound.COMPUTE if compute > memory else Bound.MEMORY), text


def position(profile: Profile) -> RooflinePosition:
    """Where the candidate lies under the roofline: intensity, achieved and attainable rates."""
    work, ceilings = profile.work, profile.ceilings
    flops, nbytes = work.matrix_flops + work.vector_flops, work.total_bytes
    seconds = profile.time_ms / 1e3
    bandwidth = ceilings.bandwidth_for(nbytes)
    roof = ceilings.rate(profile.matrix_unit) if work.matrix_flops else ceilings.rates["fp32"]
    return RooflinePosition(
        intensity=flops / nbytes if nbytes else 0.0,
        ridge=roof / bandwidth,
        flops_per_second=flops / seconds if seconds else 0.0,
        bytes_per_second=nbytes / seconds if seconds else 0.0,
        roof_flops=roof,
        roof_bandwidth=bandwidth,
        time_ms=profile.time_ms,
        floor_ms=profile.floor_ms,
        of_floor=profile.floor_ms / profile.time_ms if profile.time_ms else 0.0,
        least_ms=least_ms(profile),
    )
