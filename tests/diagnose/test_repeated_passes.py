"""Repeated passes over each row: when they are reported, the predicted gain, and the playbook moves that fix them."""

from __future__ import annotations

from typing import Any

import pytest
from typed_records import typed

from kernelpro.authors.playbook.cpp.backend import BACKEND
from kernelpro.diagnose.diagnostic import DiagnosticContext
from kernelpro.diagnose.diagnostics import registry
from kernelpro.records import Bound, Finding, Profile

DIAGNOSTIC = registry()["cpu_repeated_passes"]
ROW = (100, 900)
"""The loop over the rows; those of a row lie inside it."""


def loop(begin: int, share: float, **more: Any) -> dict[str, Any]:
    usual = {
        "file": "k.so",
        "function": "run._omp_fn.0",
        "where": f"kernel.cpp:{begin}",
        "begin": begin,
        "end": begin + 50,
    }
    return usual | {"share": share, "bits": 128, "streamed": 4, "strided": 0} | more


LAYER_NORM = [loop(200, 0.48), loop(400, 0.15), loop(600, 0.32)]


def analyze(
    loops: list[dict[str, Any]],
    source: str = "",
    time_ms: float = 3.0,
    bound: Bound = Bound.MEMORY,
    outer: Any = (ROW,),
) -> Finding | None:
    spans = [*outer, *((each["begin"], each["end"]) for each in loops)]
    function = {
        "file": "k.so",
        "name": "run._omp_fn.0",
        "loops": [{"begin": begin, "end": end} for begin, end in spans],
    }
    profile = Profile(
        target="cpu",
        time_ms=time_ms,
        floor_ms=1.0,
        precision="fp32",
        source=source,
        **typed(
            {
                "work": {"read_bytes": 4e7, "written_bytes": 2e7, "matrix_flops": 0, "vector_flops": 1e5},
                "ceilings": {"bandwidth": 6e10, "rates": {"fp32": 1e11}},
                "device": {"cores": 2},
                "cpu": {"sampled": True, "loops": loops, "static": {"functions": [function]}},
            }
        ),
    )
    context = DiagnosticContext(profile, bound)
    match = DIAGNOSTIC.analyze(context)
    return context.to_finding(DIAGNOSTIC, match) if match else None


def test_three_loops_over_a_row_leave_memory_at_rest() -> None:
    finding = analyze(LAYER_NORM)
    assert finding and "3 loops" in finding.cause and "3.0x its floor" in finding.cause
    assert finding.gain.factor == pytest.approx(1.19, abs=0.01), (
        "a layer norm in two loops that fetches ahead was 1.25x as fast"
    )
    assert finding.where == "kernel.cpp:200" and any("prefetch" in text for text in finding.advice)


def test_where_the_next_row_is_fetched_only_a_third_loop_is_one_too_many() -> None:
    fetching = "__builtin_prefetch(&x[i]);"
    assert analyze(LAYER_NORM[::2]) and analyze(LAYER_NORM[::2], fetching) is None
    finding = analyze(LAYER_NORM, fetching)
    assert finding and not any("prefetch" in text for text in finding.advice)


@pytest.mark.parametrize(
    "healthy",
    [
        {"loops": [loop(200, 0.95)]},
        {"loops": [loop(200, 0.9), loop(400, 0.05)]},
        {"loops": LAYER_NORM, "time_ms": 1.2},
        {"loops": LAYER_NORM, "bound": Bound.COMPUTE},
        {"loops": LAYER_NORM, "bound": Bound.LAUNCH},
        {"loops": [loop(200, 0.5), loop(400, 0.4, bits=0)]},
        {"loops": [loop(200, 0.5), loop(400, 0.4)], "outer": ()},
        {"loops": [loop(200, 0.5), loop(400, 0.4)], "outer": (ROW, (190, 260), (390, 460))},
    ],
    ids=["one", "one that counts", "near the floor", "arithmetic", "Python", "scalar", "two sweeps", "tiles"],
)
def test_silence_elsewhere(healthy: dict[str, Any]) -> None:
    assert analyze(**healthy) is None


def test_moves_that_leave_out_a_loop_or_fetch_ahead_answer_it() -> None:
    assert {move.name for move in BACKEND.moves if DIAGNOSTIC.name in move.diagnostics} == {
        "online variance",
        "prefetch",
        "cache rows",
    }
