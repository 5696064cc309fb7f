"""Kernel-level diagnostics: each names its defect, ignores healthy numbers, and reports missing counters."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from softmax_sample import DIAGNOSTICS, MATRIX, NAMES, SOFTMAX, analyze, context, kernel, matched, slow

from kernelpro.diagnose import DiagnosticContext, MissingData
from kernelpro.diagnose.counters import (
    DRAM_THROUGHPUT,
    DURATION,
    MEMORY_THROUGHPUT,
    SM_THROUGHPUT,
    WAVEFRONTS,
    stall_metric,
)
from kernelpro.diagnose.diagnostic import ANY
from kernelpro.records import Bound, Line, Severity

LOAD, STORE = "global_op_ld", "global_op_st"

# --- the healthy kernel ----------------------------------------------------------------------------------------------


def test_every_diagnostic_is_registered_and_documented() -> None:
    assert len(DIAGNOSTICS) >= 15
    for diagnostic in DIAGNOSTICS.values():
        assert diagnostic.trigger and diagnostic.remedy and diagnostic.gain_basis
        assert diagnostic.name not in diagnostic.symptom_of


@pytest.mark.parametrize("name", NAMES)
def test_counters_were_all_seen_on_a_real_device(name: str) -> None:
    assert set(DIAGNOSTICS[name].metrics) <= set(SOFTMAX)


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_softmax_is_not_accused(name: str) -> None:
    finding = analyze(name, context(kernel({})))
    if name == "dram_roof":
        assert finding is not None and finding.severity is Severity.LOW
        assert "92%" in finding.cause and "fewer bytes" in finding.advice[0]
    else:
        assert finding is None


@pytest.mark.parametrize("name", NAMES)
def test_the_same_kernel_far_above_its_floor_is_not_accused_either(name: str) -> None:
    """A floor that is wrong, or unreachable, is no evidence of a defect."""
    finding = analyze(name, context(kernel({}), floor=0.01))
    assert finding is None or finding.severity is not Severity.HIGH


@pytest.mark.parametrize("name", NAMES)
def test_without_counters_a_healthy_launch_is_not_accused(name: str) -> None:
    code = {
        "instructions": 200,
        "mix": {"fma32": 60, "global_load": 8, "barrier": 3},
        "widths": {},
        "loops": [],
        "registers": 38,
    }
    for facts in ({}, code):
        try:
            finding = analyze(name, context(kernel(None, code=facts)))
        except MissingData as error:
            assert str(error)
        else:
            assert finding is None or finding.severity is Severity.LOW


LAUNCHES: dict[str, dict[str, Any]] = {
    "occupancy_limiter": {"dynamic_shared": 200_000, "block": (128, 1, 1)},
    "register_pressure": {"registers": 255, "block": (128, 1, 1)},
}
"""For diagnostics that look at the launch before they read a counter: a launch that meets their trigger."""
WITHOUT_OWN_COUNTERS = ("low_parallelism", "missing_reuse", "tail_effect")
"""Diagnostics that also work without their own counters."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_OWN_COUNTERS])
def test_a_counter_that_was_not_collected_is_named(name: str) -> None:
    """ncu ran, but not for this diagnostic: it is skipped with a reason instead of guessing."""
    own = set(DIAGNOSTICS[name].metrics) - {SM_THROUGHPUT, MEMORY_THROUGHPUT, DRAM_THROUGHPUT, DURATION}
    bare = kernel({}, **LAUNCHES.get(name, {}))
    few = {key: value for key, value in bare.metrics.items() if key not in own}
    with pytest.raises(MissingData, match="counter"):
        analyze(
            name,
            context(dataclasses.replace(bare, metrics=few | {SM_THROUGHPUT: 30.0, MEMORY_THROUGHPUT: 30.0})),
        )


# --- memory ----------------------------------------------------------------------------------------------------------


def scattered(op: str, per_request: float, used: float) -> dict[str, float]:
    return {
        f"l1tex__t_requests_pipe_lsu_mem_{op}.sum": 2097152.0,
        f"l1tex__t_sectors_pipe_lsu_mem_{op}.sum": 2097152.0 * per_request,
        f"smsp__sass_average_data_bytes_per_sector_mem_{op}.ratio": used,
    }


def test_columns_read_by_neighbouring_threads_are_uncoalesced() -> None:
    line = Line("kernel.cu:17", "x[j * n + i]", 0.8, {"long_scoreboard": 0.9})
    at = slow(
        scattered(LOAD, 32, 4) | {MEMORY_THROUGHPUT: 88.0, stall_metric("long_scoreboard"): 28.0},
        lines=(line,),
    )
    finding = analyze("uncoalesced_access", at)
    assert finding is not None and finding.severity is Severity.HIGH
    assert "loads" in finding.cause and "32 sectors" in finding.cause.replace("  ", " ")
    assert finding.where == "kernel.cu:17"
    assert matched(at)[0] == "uncoalesced_access"
    assert analyze("sector_waste", at) is None


def test_scattered_stores_are_found_as_such() -> None:
    finding = analyze(
        "uncoalesced_access",
        slow(scattered(STORE, 32, 4) | {stall_metric("lg_throttle"): 20.0, MEMORY_THROUGHPUT: 60.0}),
    )
    assert finding is not None and "stores" in finding.cause and "loads" not in finding.cause


def test_a_library_kernel_whose_copies_nobody_counted_is_not_accused() -> None:
    copied = slow(scattered(LOAD, 16, 0) | {MEMORY_THROUGHPUT: 88.0}, code={})
    assert analyze("uncoalesced_access", copied) is None and analyze("sector_waste", copied) is None


def test_one_value_for_a_whole_warp_is_not_uncoalesced() -> None:
    broadcast = slow(scattered(LOAD, 1, 4) | {MEMORY_THROUGHPUT: 88.0})
    assert analyze("uncoalesced_access", broadcast) is None and analyze("sector_waste", broadcast) is None


@pytest.mark.parametrize(
    ("per_request", "used"), [(8, 16), (12, 10.7), (16, 8)], ids=["stride 2", "3 floats", "4 floats"]
)
def test_strides_and_structures_waste_sectors(per_request: float, used: float) -> None:
    at = slow(scattered(LOAD, per_request, used) | {MEMORY_THROUGHPUT: 85.0, DRAM_THROUGHPUT: 85.0})
    finding = analyze("sector_waste", at)
    assert (
        finding is not None
        and finding.severity is Severity.HIGH
        and f"{used:.0f} of the 32 bytes" in finding.cause
    )
    assert analyze("uncoalesced_access", at) is None


def test_rows_off_a_boundary_by_one_sector_are_no_defect() -> None:
    assert (
        analyze(
            "sector_waste",
            slow(scattered(LOAD, 17 / 4 * 4 - 0.9, 32 * 16 / 16.1) | {MEMORY_THROUGHPUT: 85.0}),
        )
        is None
    )


def test_three_passes_over_the_input_are_excess_traffic() -> None:
    three = {
        "dram__bytes_read.sum": 3.0 * MATRIX,
        "lts__t_sectors_srcunit_tex_op_read.sum": 3 * MATRIX / 32,
        DURATION: 260e3,
    }
    at = context(kernel(three, microseconds=260.0))
    finding = analyze("excess_traffic", at)
    assert finding is not None and finding.severity is Severity.HIGH
    assert "2.0x" in finding.cause and "3.0x" in finding.cause and "once" in finding.advice[0]
    assert matched(at)[0] == "excess_traffic"
    assert analyze("l2_thrash", at) is None


def test_excess_is_that_of_all_kernels_and_told_of_the_large_ones() -> None:
    first, second = kernel({}, share=0.49), kernel({}, share=0.49, name="scale_kernel")
    small = kernel(
        {"dram__bytes_read.sum": 1e6, "dram__bytes_write.sum": 0.0}, share=0.02, microseconds=5.0, name="sums"
    )
    finding = analyze("excess_traffic", context(first, second, small))
    assert finding is not None and "kernels of a call" in finding.cause
    assert finding.gain.factor == pytest.approx(1.3, abs=0.1)
    assert analyze("excess_traffic", context(small, first, second)) is None


def test_excess_bytes_do_not_matter_where_dram_is_idle() -> None:
    assert (
        analyze("excess_traffic", slow({"dram__bytes_read.sum": 3.0 * MATRIX, DRAM_THROUGHPUT: 25.0})) is None
    )


def test_lost_sharing_between_blocks_is_l2_thrash() -> None:
    lost = {
        "dram__bytes_read.sum": 6.0 * MATRIX,
        "lts__t_sectors_srcunit_tex_op_read.sum": 8.0 * MATRIX / 32,
        "lts__t_sector_op_read_hit_rate.pct": 25.0,
        DRAM_THROUGHPUT: 85.0,
        MEMORY_THROUGHPUT: 85.0,
    }
    finding = analyze("l2_thrash", slow(lost))
    assert finding is not None and finding.severity is Severity.HIGH
    assert "25%" in finding.cause and "8.0 times" in finding.cause
    kept = lost | {"dram__bytes_read.sum": 1.05 * MATRIX, "lts__t_sector_op_read_hit_rate.pct": 86.0}
    assert analyze("l2_thrash", slow(kept)) is None


def test_the_root_claims_no_less_than_its_symptom() -> None:
    at = slow(
        {
            "dram__bytes_read.sum": 6.0 * MATRIX,
            "lts__t_sectors_srcunit_tex_op_read.sum": 8.0 * MATRIX / 32,
            DRAM_THROUGHPUT: 85.0,
            MEMORY_THROUGHPUT: 85.0,
        }
    )
    root, symptom = analyze("l2_thrash", at), analyze("excess_traffic", at)
    assert root is not None and symptom is not None and root.gain.factor >= symptom.gain.factor
    assert "l2_thrash" in DIAGNOSTICS["excess_traffic"].symptom_of


def test_the_roof_shows_without_counters_for_a_kernel_alone() -> None:
    finding = analyze("dram_roof", context(kernel(None)))
    assert finding is not None and "no counters" in finding.cause and finding.severity is Severity.LOW
    assert analyze("dram_roof", context(kernel(None, share=0.5), kernel(None, share=0.5))) is None


def conflicts(turns: float, share: float, use: float) -> dict[str, float]:
    return {
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": share * turns,
        WAVEFRONTS: turns,
        f"{WAVEFRONTS}.pct_of_peak_sustained_elapsed": use,
    }


def test_a_column_of_an_unpadded_tile_has_bank_conflicts() -> None:
    code = {"mix": {"shared_load": 4}, "loops": [], "where": {"shared_load": "kernel.cu:9"}}
    at = slow(
        conflicts(3.5e7, 31 / 32, 92.0)
        | {
            MEMORY_THROUGHPUT: 92.0,
            stall_metric("mio_throttle"): 12.0,
            stall_metric("short_scoreboard"): 12.0,
        },
        code=code,
    )
    finding = analyze("bank_conflicts", at)
    assert finding is not None and finding.severity is Severity.HIGH
    assert "32.0-way" in finding.cause and "pad" in finding.advice[0] and finding.where == "kernel.cu:9"
    assert matched(at)[0] == "bank_conflicts"


def test_conflicts_that_nobody_waits_for_are_not_mentioned() -> None:
    assert analyze("bank_conflicts", slow(conflicts(1e5, 0.9, 1.0))) is None


# --- reuse -----------------------------------------------------------------------------------------------------------

EDGE = 4096
PRODUCT = {"read_bytes": 2.0 * EDGE**2 * 4, "written_bytes": 1.0 * EDGE**2 * 4, "matrix_flops": 2.0 * EDGE**3}


def product(
    metrics: dict[str, float] | None, loaded: float = 0.0, microseconds: float = 20000.0, **changes: Any
) -> DiagnosticContext:
    """A product of 4096-cubed floats, loading so many bytes from L1 for each operation."""
    facts = {"grid": (128, 128), "block": (32, 32), "registers": 32, "microseconds": microseconds} | changes
    if metrics is not None:
        metrics = {
            "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": loaded * PRODUCT["matrix_flops"] / 32
        } | metrics
    return context(kernel(metrics, **facts), work=PRODUCT, floor=0.36, precision="tf32", bound=Bound.COMPUTE)


def test_a_product_without_tiles_misses_reuse() -> None:
    finding = analyze("missing_reuse", product({MEMORY_THROUGHPUT: 93.0, DRAM_THROUGHPUT: 3.0}, loaded=2.5))
    assert finding is not None and finding.severity is Severity.HIGH and finding.gain.factor > 10
    assert "2.5 bytes" in finding.cause and "tile" in finding.advice[0]


def test_a_tiled_product_in_plain_float_does_not_miss_reuse() -> None:
    assert (
        analyze("missing_reuse", product({MEMORY_THROUGHPUT: 60.0}, loaded=4 / 64, microseconds=3500.0))
        is None
    )


def test_a_task_without_reuse_cannot_miss_it() -> None:
    assert analyze("missing_reuse", context(kernel({MEMORY_THROUGHPUT: 93.0}))) is None


def test_without_counters_the_innermost_loop_tells() -> None:
    loop = {
        "innermost": True,
        "instructions": 20,
        "mix": {"fma32": 4, "global_load": 8},
        "widths": {"global_load": {"32": 8}},
    }
    naive = {"mix": {"fma32": 4, "global_load": 8}, "loops": [loop | {"where": "kernel.cu:8"}]}
    finding = analyze("missing_reuse", product(None, code=naive))
    assert finding is not None and "no counters" in finding.cause and finding.where == "kernel.cu:8"
    tiled = {"mix": {"fma32": 64, "shared_load": 16, "global_load": 2}, "loops": [loop]}
    assert analyze("missing_reuse", product(None, code=tiled)) is None


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_barriers_in_every_step_are_found_with_their_line() -> None:
    lines = (
        Line("kernel.cu:5", "x = a[i];", 0.3, {"long_scoreboard": 0.9}),
        Line("kernel.cu:7", "__syncthreads();", 0.6, {"barrier": 0.9}),
    )
    at = slow({stall_metric("barrier"): 20.0}, lines=lines)
    finding = analyze("barrier_stall", at)
    assert finding is not None and finding.severity is Severity.HIGH
    assert "59%" in finding.cause and finding.where == "kernel.cu:7"


def test_barriers_in_the_machine_code_are_only_a_suspicion() -> None:
    loop = {
        "innermost": True,
        "instructions": 24,
        "mix": {"barrier": 2, "shared_load": 4},
        "where": "kernel.cu:7",
    }
    code = {"mix": {"barrier": 2}, "loops": [loop]}
    finding = analyze("barrier_stall", context(kernel(None, code=code, microseconds=1040.0)))
    assert finding is not None and finding.severity is Severity.LOW and finding.where == "kernel.cu:7"
    with pytest.raises(MissingData, match="machine code"):
        analyze("barrier_stall", context(kernel(None)))


def test_the_commonest_wait_is_named_and_ranks_as_a_symptom() -> None:
    finding = analyze("warp_stall", slow({stall_metric("long_scoreboard"): 25.0}))
    assert (
        finding is not None
        and "global or local memory load" in finding.cause
        and "in flight" in finding.advice[0]
    )
    other = analyze("warp_stall", slow({stall_metric("wait"): 20.0}))
    assert other is not None and "dependent instructions" in other.cause
    assert DIAGNOSTICS["warp_stall"].symptom_of == (ANY,), "whatever else is found in the kernel explains it"


def test_split_warps_are_divergent() -> None:
    lanes = (
        "smsp__thread_inst_executed_per_inst_executed.ratio",
        "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
    )
    finding = analyze("divergence", slow({lanes[0]: 8.0, lanes[1]: 7.5}))
    assert (
        finding is not None
        and finding.severity is Severity.HIGH
        and "8 of a warp's 32 threads" in finding.cause
    )
    predicated = analyze("divergence", slow({lanes[0]: 31.0, lanes[1]: 16.0}))
    assert predicated is not None and "predicates" in predicated.cause
    code = {"mix": {"tma": 4, "hgmma": 16}, "loops": []}
    assert analyze("divergence", slow({lanes[0]: 12.0, lanes[1]: 12.0}, code=code)) is None


def test_atomics_on_one_address_queue_up() -> None:
    queue = {"l1tex__t_requests_pipe_lsu_mem_global_op_red.sum": 1048576.0, stall_metric("lg_throttle"): 24.0}
    finding = analyze("atomics_contention", slow(queue))
    assert (
        finding is not None
        and finding.severity is Severity.HIGH
        and "one atomic per block" in finding.advice[0]
    )
    sliced = {"l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum": 4096.0}
    busy = {"lts__d_atomic_input_cycles_active.max.pct_of_peak_sustained_elapsed": 85.0}
    assert (
        found := analyze("atomics_contention", slow(sliced | busy))
    ) is not None and found.severity is Severity.HIGH


def test_one_atomic_a_block_is_healthy() -> None:
    few = {"l1tex__t_requests_pipe_lsu_mem_global_op_red.sum": 8192.0, stall_metric("long_scoreboard"): 25.0}
    assert analyze("atomics_contention", slow(few)) is None


def test_atomics_in_a_loop_are_suspect_without_counters() -> None:
    loop = {"innermost": True, "instructions": 12, "mix": {"atomic": 1, "global_load": 1}}
    code = {"mix": {"atomic": 1}, "loops": [loop], "where": {"atomic": "kernel.cu:6"}}
    finding = analyze("atomics_contention", context(kernel(None, code=code, microseconds=1040.0)))
    assert finding is not None and finding.severity is Severity.MEDIUM and finding.where == "kernel.cu:6"
