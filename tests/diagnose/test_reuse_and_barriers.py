"""Sliding windows, tree reductions, warpgroups, asynchronous copies: what counters alone would confuse."""

from __future__ import annotations

from typing import Any

import pytest
from softmax_sample import MATRIX, analyze, context, kernel, slow

from kernelpro.diagnose.counters import DRAM_THROUGHPUT, MEMORY_THROUGHPUT, SM_THROUGHPUT, stall_metric
from kernelpro.records import Severity, Work

SECTORS, REQUESTS = (
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
)
USED, L2 = (
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",
    "lts__t_sectors_srcunit_tex_op_read.sum",
)

POOL: dict[str, Any] = {
    "mix": {"alu": 300, "global_load": 50, "fma32": 49, "global_store": 1},
    "widths": {"global_load": {"32": 50}, "global_store": {"32": 1}},
    "where": {"global_load": "kernel.cu:12"},
}
"""A window of 7 x 7, unrolled, as the compiler makes it."""


def loaded(times: float, onward: float = 2.0) -> dict[str, float]:
    """Counters of a kernel that loads each byte so often from L1, and so often from L2."""
    return {
        SECTORS: times * MATRIX / 32,
        L2: onward * MATRIX / 32,
        SM_THROUGHPUT: 87.0,
        MEMORY_THROUGHPUT: 44.0,
        DRAM_THROUGHPUT: 9.0,
    }


def test_a_window_fetched_for_each_result_misses_reuse() -> None:
    finding = analyze("missing_reuse", slow(loaded(49.0), code=POOL))
    assert finding is not None and finding.severity is Severity.HIGH
    assert (
        "49 times" in finding.cause and "registers" in finding.advice[0] and finding.where == "kernel.cu:12"
    )


@pytest.mark.parametrize("onward", [30.0, 49.0])
def test_loads_that_l1_does_not_serve_are_no_window(onward: float) -> None:
    assert analyze("missing_reuse", slow(loaded(49.0, onward), code=POOL)) is None


def test_a_window_staged_in_shared_memory_is_left_alone() -> None:
    assert (
        analyze("missing_reuse", slow(loaded(49.0), code=POOL | {"mix": POOL["mix"] | {"shared_load": 49}}))
        is None
    )


def test_passes_over_a_row_and_biases_are_no_window() -> None:
    assert analyze("missing_reuse", slow(loaded(4.0, 1.0), code=POOL)) is None


def test_scattered_loads_are_no_window() -> None:
    assert analyze("missing_reuse", slow(loaded(49.0) | {USED: 4.0}, code=POOL)) is None


def test_the_code_shows_a_window_without_counters() -> None:
    finding = analyze("missing_reuse", context(kernel(None, code=POOL, microseconds=1040.0)))
    assert finding is not None and "50 times" in finding.cause and "no counters" in finding.cause
    sums = Work(MATRIX, MATRIX // 100, 0.0, 3e8)
    reducing = context(kernel(None, code=POOL, microseconds=1040.0), work=sums)
    assert analyze("missing_reuse", reducing) is None, "a task that reads much for each byte it writes"


def tree(barriers: int, instructions: int = 72) -> dict[str, Any]:
    mix = {
        "shared_load": 21,
        "shared_store": 11,
        "fma32": 12,
        "barrier": barriers,
        "alu": 15,
        "global_load": 1,
    }
    loop = {"innermost": True, "instructions": instructions, "mix": mix, "where": "kernel.cu:10"}
    return {"mix": mix, "loops": [loop], "where": {"barrier": "kernel.cu:13"}}


TREE = {
    stall_metric("barrier"): 12.2,
    stall_metric("short_scoreboard"): 8.8,
    stall_metric("mio_throttle"): 5.3,
    MEMORY_THROUGHPUT: 87.0,
    SM_THROUGHPUT: 85.0,
    DRAM_THROUGHPUT: 18.0,
}


def test_a_tree_of_barriers_is_found_although_its_exchange_fills_shared_memory() -> None:
    finding = analyze("barrier_stall", slow(TREE, code=tree(12)))
    assert (
        finding is not None and finding.severity is Severity.HIGH and "every 6 instructions" in finding.cause
    )
    assert "shuffles" in finding.advice[0] and finding.where == "kernel.cu:13"


def test_rare_barriers_beside_a_full_unit_cost_nothing() -> None:
    assert analyze("barrier_stall", slow(TREE, code=tree(1))) is None


def test_a_loop_over_tiles_is_told_to_do_more_between_barriers() -> None:
    finding = analyze("barrier_stall", slow({stall_metric("barrier"): 15.0}, code=tree(2)))
    assert finding is not None and "larger tiles" in finding.advice[0]


def test_warpgroups_that_wait_for_their_products_do_not_wait_at_barriers() -> None:
    loop = {"innermost": True, "instructions": 71, "mix": {"hgmma": 4, "alu": 58, "mbarrier": 3}}
    code = {"mix": {"hgmma": 4, "barrier": 1}, "loops": [loop]}
    assert analyze("barrier_stall", slow({stall_metric("barrier"): 15.0}, code=code)) is None
    synchronised = loop | {"mix": loop["mix"] | {"barrier": 2}}  # type: ignore[operator]
    assert (
        analyze("barrier_stall", slow({stall_metric("barrier"): 15.0}, code=code | {"loops": [synchronised]}))
        is not None
    )


@pytest.mark.parametrize(("per_request", "matched"), [(16.0, False), (32.0, True)])
def test_asynchronous_copies_are_judged_by_their_width(per_request: float, matched: bool) -> None:
    """The counter of used bytes does not see them, and says 0."""
    counts = {REQUESTS: 6e6, SECTORS: 6e6 * per_request, USED: 0.0, MEMORY_THROUGHPUT: 80.0}
    widths = {"async_copy": {"128": 12 if per_request == 16 else 0, "32": 0 if per_request == 16 else 12}}
    code = {"mix": {"async_copy": 12}, "widths": widths, "loops": []}
    assert (analyze("uncoalesced_access", slow(counts, code=code)) is not None) == matched


def test_launches_that_read_other_data_do_not_thrash_l2() -> None:
    many = {
        L2: 2.0 * MATRIX / 32,
        "dram__bytes_read.sum": 2.0 * MATRIX,
        MEMORY_THROUGHPUT: 90.0,
        DRAM_THROUGHPUT: 90.0,
    }
    assert analyze("l2_thrash", slow(many, launches=8)) is None
