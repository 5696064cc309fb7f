"""Stage 1: what bounds this task and this candidate, before any counter is paid for.

Two views side by side. Analytic: the least time the task's bytes, matrix operations and other operations
need on this device, from the operator graph and measured ceilings. Observed: what the timeline shows (is
the device busy at all?) and, once counters are there, how busy its units are. Where the two disagree the
analytic view decides, because it is the ceiling of the problem and not of today's implementation; the
answer says so.

 1. the device idles through a large part of a call; on the CPU, it is
    neither in native code nor in torch's operators                    -> launch (system)
 2. the task is so small that its floor lies below a kernel's latency  -> latency
 3. memory and arithmetic need about the same time                     -> mixed
 4. else whichever needs more                                          -> memory or compute
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kernelpro.diagnose.counters import MEMORY_THROUGHPUT, SM_THROUGHPUT
from kernelpro.diagnose.device_time import untraced_us
from kernelpro.records import Bound, Profile

IDLE_SHARE = 0.35
"""Of a call: above, the host or the launches decide. A lone short kernel idles through a fifth of its call unavoidably."""
GRANTED_US = 15.0
"""A call's unavoidable idle time: one launch and one synchronisation (8-12 us on an H200 host)."""
LATENCY_MS = 0.004
"""Below this floor a kernel's own start and end dominate (2-4 us on current chips)."""
MIXED = 1.33
"""Memory and arithmetic within a third of each other overlap at best partly."""
BUSY = 60.0
"""Percent of peak above which a unit is what limits: Nsight's own line between latency and throughput."""


@dataclass(frozen=True)
class Classification:
    bound: Bound
    confidence: Literal["high", "medium", "low"]
    why: str


def least_ms(profile: Profile) -> dict[str, float]:
    """Milliseconds that bytes, matrix operations and other operations need at least."""
    work, rates = profile.work, profile.ceilings["rates"]
    matrix = rates.get(profile.matrix_unit, rates["fp32"])
    return {
        "memory": 1e3 * (work["read_bytes"] + work["written_bytes"]) / profile.ceilings["bandwidth"],
        "matrix": 1e3 * work["matrix_flops"] / matrix,
        "vector": 1e3 * work["vector_flops"] / rates["fp32"],
    }


def classify(profile: Profile) -> Classification:
    idle = _idle(profile)
    if idle is not None and idle[0] > IDLE_SHARE:
        return Classification(Bound.LAUNCH, "high" if idle[0] > 0.5 else "medium", idle[1])
    analytic, why = _analytic(profile)
    observed, seen = _observed(profile)
    if observed is None:
        unseen = "counters were not read" if profile.target == "cuda" else "on the CPU no counter confirms it"
        return Classification(analytic, "medium", f"{why}; {unseen}")
    if observed is analytic or Bound.MIXED in (observed, analytic):
        return Classification(analytic, "high", f"{why}; counters agree ({seen})")
    return Classification(
        analytic, "low", f"{why}; counters say {observed} ({seen}), but the task's own bound decides"
    )


def _idle(profile: Profile) -> tuple[float, str] | None:
    """The share of a call in which nothing computes, and the same in words; None where that was not seen."""
    if profile.target == "cpu":
        return _interpreted(profile)
    line = profile.timeline
    if line is None or line.call_us <= 0 or profile.time_ms <= 0:
        return None
    call = untraced_us(profile, line)
    idle = max(0.0, call - line.busy_us)
    gaps = min(line.gaps_us, idle)
    outside = max(0.0, idle - gaps - GRANTED_US)
    text = f"the device works {line.busy_us:.0f} us of a call's {call:.0f}"
    return (
        gaps + outside
    ) / call, f"{text}: {gaps:.0f} us idle between kernels, {outside:.0f} us before and after"


def _interpreted(profile: Profile) -> tuple[float, str] | None:
    """On the CPU: time in neither the candidate's native code nor torch's operators, of calls in a row."""
    seen = profile.cpu.get("dynamic", {})
    if "operators" not in seen or min(seen["call_ms"], seen["best_ms"]) <= 0:
        return None
    native = seen["native_ms"] / seen["call_ms"]
    torch = (
        sum(operator["ms"] for operator in seen["operators"]) / seen["best_ms"]
    )  # both of the best call that was seen
    text = f"of a call's {seen['call_ms']:.4f} ms {native:.0%} are in native code and {torch:.0%} in torch's operators"
    return max(0.0, 1 - native - torch), f"{text}: Python and waiting take the rest"


def _analytic(profile: Profile) -> tuple[Bound, str]:
    least = least_ms(profile)
    arithmetic = max(least["matrix"], least["vector"])
    text = f"bytes need {least['memory']:.4f} ms, arithmetic {arithmetic:.4f} ms at this device's measured ceilings"
    if profile.target == "cuda" and max(least["memory"], arithmetic) < LATENCY_MS:
        return Bound.LATENCY, f"{text}: too little work to fill it"
    ratio = arithmetic / least["memory"] if least["memory"] else float("inf")
    if 1 / MIXED < ratio < MIXED:
        return Bound.MIXED, text
    return (Bound.COMPUTE if ratio > 1 else Bound.MEMORY), text


def _observed(profile: Profile) -> tuple[Bound | None, str]:
    """What the busiest kernel's counters say."""
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


def position(profile: Profile) -> dict[str, Any]:
    """Where the candidate stands under the roof: intensity, achieved and attainable rates."""
    work = profile.work
    flops = work["matrix_flops"] + work["vector_flops"]
    nbytes = work["read_bytes"] + work["written_bytes"]
    seconds = profile.time_ms / 1e3
    rates = profile.ceilings["rates"]
    roof = rates.get(profile.matrix_unit, rates["fp32"])
    if work["matrix_flops"] == 0:
        roof = rates["fp32"]
    return {
        "intensity": flops / nbytes if nbytes else 0.0,
        "ridge": roof / profile.ceilings["bandwidth"],
        "flops_per_second": flops / seconds if seconds else 0.0,
        "bytes_per_second": nbytes / seconds if seconds else 0.0,
        "roof_flops": roof,
        "roof_bandwidth": profile.ceilings["bandwidth"],
        "time_ms": profile.time_ms,
        "floor_ms": profile.floor_ms,
        "of_floor": profile.floor_ms / profile.time_ms if profile.time_ms else 0.0,
        "least_ms": least_ms(profile),
    }
