"""What several kernel-level tools read from hardware counters: how busy the units are, and why warps wait."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import ALL_BOUNDS, DiagnosticContext
from kernelpro.records import Bound, Kernel

SM_THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY_THROUGHPUT = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_THROUGHPUT = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
DURATION = "gpu__time_duration.sum"
ISSUE_ACTIVE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
WARP_CYCLES = "smsp__average_warp_latency_per_inst_issued.ratio"
"""Cycles a warp spends for one instruction: the sum over all reasons to wait."""

ATTAINABLE = 0.85
"""Share of a unit's nominal peak that good kernels reach: on an H200 a large copy gets 89 % of the nominal DRAM
bandwidth, a row-wise softmax 82 %, and issue slots and the matrix units saturate between 80 and 90 %."""

KERNEL_BOUNDS = ALL_BOUNDS - {Bound.LAUNCH}
"""Classes in which the inside of a kernel decides; in the class `launch` the device mostly waits for work."""


def stall_metric(reason: str) -> str:
    """The counter of warps that wait for a reason, for each instruction issued."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


def stall_metrics(*reasons: str) -> tuple[str, ...]:
    """What a tool must ask for in order to call `stalled` with these reasons."""
    return (*map(stall_metric, reasons), WARP_CYCLES)


def stall_share(scene: DiagnosticContext, *reasons: str) -> float:
    """Share of the warps' time spent waiting for these reasons, 0 to 1."""
    cycles = scene.metric(WARP_CYCLES)
    return min(1.0, sum(scene.metric(stall_metric(reason)) for reason in reasons) / cycles) if cycles > 0 else 0.0


def has_counters(scene: DiagnosticContext) -> bool:
    """Whether hardware counters of this kernel were read at all."""
    return scene.metric_or_none(SM_THROUGHPUT) is not None


def peak_utilization(scene: DiagnosticContext) -> float:
    """Use of the busiest unit (a pipe of the SMs, L1, L2 or DRAM), 0 to 1 of its nominal peak."""
    return max(scene.metric(SM_THROUGHPUT), scene.metric(MEMORY_THROUGHPUT)) / 100


def latency_headroom(scene: DiagnosticContext) -> float:
    """Largest share of the time that hiding latency can save: until the busiest unit reaches its roof.

    By Little's law the rate of a kernel that waits is (warps) / (cycles a warp spends for an instruction); taking a
    share s out of those cycles shortens the kernel by s, until a unit saturates.
    """
    return max(0.0, 1 - peak_utilization(scene) / ATTAINABLE)


def memory_share(scene: DiagnosticContext) -> float:
    """How far memory sets the time, 0 to 1: by the busiest part of the memory system, or by warps that wait for it.

    Where the SMs' own pipes are busier than memory they set the time, and memory only as far as warps wait for it.
    """
    busy = scene.metric(MEMORY_THROUGHPUT) if scene.metric(MEMORY_THROUGHPUT) >= scene.metric(SM_THROUGHPUT) else 0.0
    return min(1.0, max(busy / 100 / ATTAINABLE, stall_share(scene, "long_scoreboard", "lg_throttle")))


def uses_tensor_cores(scene: DiagnosticContext) -> bool:
    """Whether the code uses tensor cores: such kernels run with few warps by design."""
    return bool(scene.kernel.code) and scene.count_instructions("hmma", "hgmma", "imma", "dmma", hot=False) > 0


def hottest_line(kernel: Kernel, *reasons: str) -> str:
    """Where most of the samples that wait for these reasons are; empty where lines were not sampled."""
    weights = {
        line.where: line.share * sum(line.stalls.get(reason, 0.0) for reason in reasons)
        for line in kernel.lines
    }
    where = max(weights, key=lambda name: weights[name], default="")
    return where if weights.get(where, 0.0) > 0 else ""
