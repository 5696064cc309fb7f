"""Hardware counters that several diagnostics read, by ncu's names."""

from __future__ import annotations

from kernelpro.records import Bound

SM_THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY_THROUGHPUT = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_THROUGHPUT = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
DURATION = "gpu__time_duration.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
"""Passes over shared memory; an access with bank conflicts takes several."""
ISSUE_ACTIVE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
WARP_CYCLES = "smsp__average_warp_latency_per_inst_issued.ratio"
"""Warp cycles per issued instruction: the sum over all stall reasons."""

DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
LOADED_BYTES_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
STORED_BYTES_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio"
SECTOR = 32
"""Bytes: the granularity of transfers between L1, L2 and DRAM."""
XU = "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"
"""Utilization of the pipe of special functions and conversions."""
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"

ATTAINABLE = 0.85
"""Share of a unit's nominal peak that good kernels reach: on an H200 a large copy gets 89 % of the nominal
DRAM bandwidth, a row-wise softmax 82 %, and issue slots and the tensor cores saturate between 80 and 90 %."""

ALL_BOUNDS = frozenset(Bound)
KERNEL_BOUNDS = ALL_BOUNDS - {Bound.LAUNCH}
"""Classes in which the inside of a kernel decides; in class `launch` the device mostly idles."""

FROM_CODE = " (from the machine code; no counters)"
"""Marks a cause that no counter confirms."""


def stall_metric(reason: str) -> str:
    """The counter of warps stalled for a reason, per issued instruction."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


def stall_metrics(*reasons: str) -> tuple[str, ...]:
    """The counters that `DiagnosticContext.stall_share` needs for these reasons."""
    return (*map(stall_metric, reasons), WARP_CYCLES)
