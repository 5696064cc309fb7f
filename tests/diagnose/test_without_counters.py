"""Suspicions without counters: only what neither arithmetic nor bytes in flight explain."""

from __future__ import annotations

from typing import Any

import pytest
from softmax_sample import analyze, context, kernel, matched

from kernelpro.diagnose import MissingData
from kernelpro.diagnose.diagnostics import registry
from kernelpro.records import Severity

SUM = {"alu": 5, "fma32": 8, "global_load": 8, "branch": 1}
TRANSPOSE = {
    "alu": 40,
    "global_load": 4,
    "shared_store": 4,
    "shared_load": 4,
    "global_store": 4,
    "barrier": 1,
}


def facts(mix: dict[str, int], bits: str, loops: int = 1) -> dict[str, Any]:
    widths = {kind: {bits: count} for kind, count in mix.items() if kind.endswith(("_load", "_store"))}
    loop = {"innermost": True, "instructions": sum(mix.values()), "mix": mix, "widths": widths}
    where = {"global_load": "kernel.cu:9", "shared_load": "kernel.cu:15"}
    return {"mix": mix, "widths": widths, "loops": [loop] * loops, "where": where}


def slower(times: float, code: dict[str, Any], **changes: Any) -> Any:
    """A kernel without counters that takes so many times what its bytes need."""
    return context(kernel(None, code=code, microseconds=124.9 * times, **changes))


@pytest.mark.parametrize(("times", "name"), [(2.0, "sector_waste"), (4.5, "uncoalesced_access")])
def test_narrow_loads_that_nothing_else_slows_down_may_waste_sectors(times: float, name: str) -> None:
    finding = analyze(name, slower(times, facts(SUM, "32")))
    assert finding is not None and finding.severity is Severity.MEDIUM and finding.where == "kernel.cu:9"
    assert "may" in finding.cause and "no counters" in finding.cause
    assert {"sector_waste", "uncoalesced_access"} & set(matched(slower(times, facts(SUM, "32")))) == {name}


@pytest.mark.parametrize("times", [1.2, 12.0])
def test_what_scatter_cannot_explain_is_not_called_scatter(times: float) -> None:
    """Near the floor there is nothing to explain; 4-byte loads waste at most seven sectors in eight."""
    assert not {"sector_waste", "uncoalesced_access"} & set(matched(slower(times, facts(SUM, "32"))))


def test_wide_loads_waste_at_most_half() -> None:
    assert not {"sector_waste", "uncoalesced_access"} & set(matched(slower(3.0, facts(SUM, "128"))))


@pytest.mark.parametrize(
    "changes",
    [
        {"code": facts(SUM | {"fma32": 800}, "32")},
        {"code": facts(SUM | {"atomic": 1}, "32")},
        {"code": facts(SUM | {"global_load": 1}, "32"), "block": (32, 1, 1)},
        {"code": facts(SUM, "32"), "block": (64, 1, 1), "dynamic_shared": 100_000},
    ],
    ids=["arithmetic", "atomics", "few bytes in flight", "few warps"],
)
def test_other_explanations_come_first(changes: dict[str, Any]) -> None:
    at = context(kernel(None, microseconds=124.9 * 3, **changes))
    assert not {"sector_waste", "uncoalesced_access", "excess_traffic", "bank_conflicts"} & set(matched(at))


def test_without_a_suspicion_the_missing_counter_is_named() -> None:
    with pytest.raises(MissingData, match="counter"):
        registry()["sector_waste"].analyze(slower(1.1, facts(SUM, "32")))


def test_several_loops_that_load_may_read_the_input_several_times() -> None:
    finding = analyze("excess_traffic", slower(2.8, facts(SUM, "128", loops=3)))
    assert finding is not None and "3 loops" in finding.cause and "each input once" in finding.advice[0]
    assert "excess_traffic" not in matched(slower(2.8, facts(SUM, "128", loops=2)))


@pytest.mark.parametrize(("size", "suspect"), [(32 * 32 * 4, True), (32 * 33 * 4, False)])
def test_an_unpadded_tile_may_have_bank_conflicts(size: int, suspect: bool) -> None:
    at = slower(2.6, facts(TRANSPOSE, "32"), static_shared=size)
    assert ("bank_conflicts" in matched(at)) == suspect
    assert "sector_waste" not in matched(at), "data goes through shared memory"
