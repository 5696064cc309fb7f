"""A healthy kernel as ncu measured it on an H200, and contexts made from it.

The kernel is a row-wise softmax of 8192 x 8192 floats, at 92 % of the bandwidth of a copy.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from typed_records import typed

from kernelpro.diagnose import Diagnostic, DiagnosticContext, MissingData
from kernelpro.diagnose.counters import (
    DRAM_THROUGHPUT,
    DURATION,
    ISSUE_ACTIVE,
    MEMORY_THROUGHPUT,
    SM_THROUGHPUT,
    WARP_CYCLES,
    WAVEFRONTS,
    stall_metric,
)
from kernelpro.diagnose.diagnostics import registry
from kernelpro.records import Bound, Finding, Kernel, Profile

DIAGNOSTICS: dict[str, Diagnostic] = {
    name: d
    for name, d in registry().items()
    if d.target == "cuda" and d.level == "kernel" and d.objective == "speed"
}
NAMES = tuple(DIAGNOSTICS)

H200 = {
    "name": "NVIDIA H200",
    "capability": "9.0",
    "sms": 132,
    "max_threads_per_sm": 2048,
    "max_warps_per_sm": 64,
    "max_blocks_per_sm": 32,
    "registers_per_sm": 65536,
    "shared_per_sm": 233472,
    "shared_per_block_max": 232448,
    "l2_bytes": 60 * 2**20,
    "warp": 32,
    "sector": 32,
    "fp32_to_fp64": 2,
    "dram_bandwidth": 4.30e12,
    "clock_mhz": 1980,
}
CEILINGS = {
    "bandwidth": 4.30e12,
    "cached_bandwidth": 1e13,
    "cache_bytes": 6e7,
    "rates": {"fp32": 51e12, "tf32": 385e12, "bf16": 789e12},
}
MATRIX = 8192 * 8192 * 4
"""Bytes of the softmax's input, and of its output."""

SOFTMAX = {
    "dram__bytes_read.sum": 2.684557e08,
    "dram__bytes_write.sum": 2.432499e08,
    MEMORY_THROUGHPUT: 81.83,
    DRAM_THROUGHPUT: 81.83,
    DURATION: 129984.0,
    SM_THROUGHPUT: 30.83,
    ISSUE_ACTIVE: 31.65,
    WARP_CYCLES: 33.99,
    "sm__warps_active.avg.pct_of_peak_sustained_active": 67.22,
    "sm__cycles_active.avg": 240732.4,
    "sm__cycles_elapsed.avg": 246457.6,
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 26944.0,
    WAVEFRONTS: 3049771.0,
    f"{WAVEFRONTS}.pct_of_peak_sustained_elapsed": 9.37,
    "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum": 0.0,
    "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum": 0.0,
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 524288.0,
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": 524288.0,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 8388608.0,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 8388608.0,
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 32.0,
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio": 32.0,
    "lts__d_atomic_input_cycles_active.max.pct_of_peak_sustained_elapsed": 0.0,
    "lts__t_sector_op_read_hit_rate.pct": 0.018,
    "lts__t_sectors_srcunit_tex_op_read.sum": 8388608.0,
    "smsp__thread_inst_executed_per_inst_executed.ratio": 30.88,
    "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio": 30.88,
    stall_metric("barrier"): 6.334,
    stall_metric("drain"): 2.5,
    stall_metric("lg_throttle"): 0.287,
    stall_metric("long_scoreboard"): 16.089,
    stall_metric("math_pipe_throttle"): 0.12,
    stall_metric("membar"): 0.0,
    stall_metric("mio_throttle"): 0.855,
    stall_metric("no_instruction"): 0.151,
    stall_metric("short_scoreboard"): 4.169,
    stall_metric("wait"): 1.116,
}
"""Every counter that these diagnostics request, as ncu 2025.3 printed it, in base units."""
QUIET = {
    stall_metric(reason): 0.5
    for reason in ("barrier", "drain", "long_scoreboard", "mio_throttle", "short_scoreboard", "wait")
}


def kernel(metrics: dict[str, float] | None, **changes: Any) -> Kernel:
    """The softmax's launch (8192 blocks of 512 threads, 38 registers), with these counters; None: without ncu."""
    plain = Kernel(
        "softmax_kernel",
        microseconds=130.0,
        launches=1,
        share=1.0,
        grid=(8192, 1, 1),
        block=(512, 1, 1),
        registers=38,
        static_shared=128,
        metrics=SOFTMAX | metrics if metrics is not None else {},
    )
    return dataclasses.replace(plain, **typed(changes))


def context(
    subject: Kernel, *others: Kernel, floor: float = 0.1249, bound: Bound = Bound.MEMORY, **changes: Any
) -> DiagnosticContext:
    work = {
        "read_bytes": float(MATRIX),
        "written_bytes": float(MATRIX),
        "matrix_flops": 0.0,
        "vector_flops": 3e8,
    }
    kernels = (subject, *others)
    profile = Profile(
        "cuda",
        time_ms=sum(k.microseconds for k in kernels) / 1e3,
        floor_ms=floor,
        precision="fp32",
        kernels=kernels,
        **typed({"work": work, "ceilings": CEILINGS, "device": H200}),
    )
    return DiagnosticContext(dataclasses.replace(profile, **typed(changes)), bound, subject)


def analyze(name: str, at: DiagnosticContext) -> Finding | None:
    match = DIAGNOSTICS[name].analyze(at)
    return at.to_finding(DIAGNOSTICS[name], match) if match else None


def matched(at: DiagnosticContext) -> list[str]:
    """Names of the diagnostics that match, largest gain first."""
    findings = [finding for name in NAMES if (finding := _tolerant(name, at))]
    return [finding.diagnostic for finding in sorted(findings, key=lambda f: -f.gain.factor)]


def _tolerant(name: str, at: DiagnosticContext) -> Finding | None:
    try:
        return analyze(name, at)
    except MissingData:
        return None


def slow(metrics: dict[str, float], **changes: Any) -> DiagnosticContext:
    """A kernel that takes eight times as long as it should, for the reasons in `metrics`."""
    waiting = QUIET | {
        MEMORY_THROUGHPUT: 20.0,
        DRAM_THROUGHPUT: 10.0,
        SM_THROUGHPUT: 20.0,
        ISSUE_ACTIVE: 20.0,
        DURATION: 1.04e6,
    }
    return context(kernel(waiting | metrics, **({"microseconds": 1040.0} | changes)))
