"""Diagnostics of candidates on the CPU, over hand-made profiles: findings by cause, and the evidence page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from typed_records import typed

from kernelpro.diagnose import evidence, roofline
from kernelpro.diagnose.diagnostic import DiagnosticContext
from kernelpro.diagnose.diagnostics import registry
from kernelpro.diagnose.kernel_names import plain_name
from kernelpro.records import Bound, Finding, Profile

LOOP = {
    "file": "k.so",
    "function": "_ZL5blockPKfl",
    "where": "kernel.cpp:7",
    "text": "y[i] = x[i];",
    "share": 0.6,
    "bits": 128,
}


def profile(dynamic: dict[str, Any] | None = None, **changes: Any) -> Profile:
    run = {
        "calls": 100,
        "call_ms": 0.108,
        "best_ms": 0.1,
        "native_ms": 0.07,
        "native_calls": 1.0,
        "minor_faults": 0.0,
    }
    run |= {
        "threads": [{"cpu_ms": 0.1, "work_ms": 0.05}, {"cpu_ms": 0.1, "work_ms": 0.04}],
        "effective_threads": 1.8,
    }
    run |= {"alone_ms": 0.19, "samples": {"count": 900}} | (dynamic or {})
    cpu = {
        "cores": 2,
        "dynamic": run,
        "sampled": True,
        "shares": {"native": 0.67, "libm": 0.0, "torch": 0.03, "libc": 0.0, "host": 0.3},
        "functions": [
            {"name": "_ZL5blockPKfl", "share": 0.6},
            {"name": "run._omp_fn.0", "share": 0.04},
            {"name": "run", "share": 0.03},
        ],
        "loops": [LOOP],
        "sweeps": [],
    }
    return Profile(
        target="cpu",
        time_ms=0.11,
        floor_ms=0.02,
        precision="fp32",
        **typed(
            {
                "work": {"read_bytes": 1e6, "written_bytes": 1e6, "matrix_flops": 0, "vector_flops": 1e5},
                "ceilings": {"bandwidth": 1e11, "rates": {"fp32": 1e11}},
                "device": {"cores": 2},
                "cpu": cpu | changes,
            }
        ),
    )


def analyze(name: str, measured: Profile, bound: Bound = Bound.MEMORY) -> Finding | None:
    at = DiagnosticContext(measured, bound)
    match = registry()[name].analyze(at)
    return at.to_finding(registry()[name], match) if match else None


def test_many_native_calls_are_to_become_one() -> None:
    finding = analyze("cpu_call_overhead", profile({"native_calls": 64.0}))
    assert finding and "one native call for the whole work" in finding.advice[0]
    assert not any("allocate" in text for text in finding.advice), "a buffer of its own is allowed"


def test_around_a_single_native_call_it_is_python_that_goes() -> None:
    finding = analyze("cpu_call_overhead", profile())
    assert finding and "its one call" in finding.cause and "strip forward" in finding.advice[0]
    assert not any("one native call" in text or "threads" in text for text in finding.advice)


def test_threads_that_do_not_help_are_named_beside_a_single_call() -> None:
    finding = analyze("cpu_call_overhead", profile({"alone_ms": 0.101}))
    assert finding and "fewer threads" in finding.advice[1] and "0.1010" in finding.advice[1]
    fixed = replace(profile({"alone_ms": 0.101}), source="#pragma omp parallel num_threads(2)")
    finding = analyze("cpu_call_overhead", fixed)
    assert finding and not any("threads" in text for text in finding.advice), (
        "what one thread would take was not measured"
    )
    assert "one thread takes" not in evidence.write(fixed)


TORCH = {"native": 0.0, "libm": 0.0, "torch": 0.75, "libc": 0.05, "host": 0.2}
CHAIN = [
    {"name": "tanh", "count": 1, "ms": 0.04},
    {"name": "mul", "count": 2, "ms": 0.04},
    {"name": "native_layer_norm", "count": 1, "ms": 0.02},
]
"""What torch computes in a call of 0.1 ms."""


def torch_only(operators: list[dict[str, Any]], **dynamic: Any) -> Profile:
    """Of a candidate without native code."""
    run = {"native_ms": 0.0, "native_calls": 0.0, "operators": operators} | dynamic
    return profile(run, shares=TORCH, functions=[], loops=[], sampled=False)


def test_a_candidate_without_native_code_is_not_told_of_its_one_call() -> None:
    finding = analyze("cpu_call_overhead", torch_only(CHAIN))
    assert finding and "Python takes 20% of the time" in finding.cause and "no native code" in finding.cause
    assert "native call (C++)" in finding.advice[0] and finding.gain.factor == pytest.approx(1.25)


def test_threads_share_native_code_only() -> None:
    assert analyze("cpu_single_thread", torch_only(CHAIN, effective_threads=1.0)) is None
    half = analyze(
        "cpu_single_thread", profile({"effective_threads": 1.0, "native_ms": 0.054}, sampled=False, loops=[])
    )
    assert half and "50%" in half.gain.basis and half.gain.factor == pytest.approx(1 / 0.75, abs=0.01)


def test_a_chain_of_torchs_operators_is_to_become_one_pass() -> None:
    finding = analyze("cpu_unfused_chain", torch_only(CHAIN))
    assert finding and "4 torch operators (tanh, mul, native_layer_norm)" in finding.cause
    assert finding.gain.factor == pytest.approx(2.5, abs=0.01), "the longest pass remains"


@pytest.mark.parametrize(
    "operators",
    [
        [],
        CHAIN[:1],
        [{"name": "mm", "count": 4, "ms": 0.1}, {"name": "convolution", "count": 1, "ms": 0.1}],
        [{"name": "native_layer_norm", "count": 2, "ms": 0.1}],
        [{"name": "addmm", "count": 1, "ms": 0.1}, {"name": "relu", "count": 1, "ms": 0.004}],
    ],
)
def test_products_and_single_operators_are_no_chain(operators: list[dict[str, Any]]) -> None:
    assert analyze("cpu_unfused_chain", torch_only(operators)) is None


# --- the class -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("native", "operators", "bound"),
    [
        (0.1, [], Bound.MEMORY),
        (0.04, [], Bound.LAUNCH),
        (0.0, CHAIN, Bound.MEMORY),
        (0.0, CHAIN[2:], Bound.LAUNCH),
        (0.04, CHAIN[2:], Bound.LAUNCH),
        (0.04, CHAIN[1:], Bound.MEMORY),
    ],
)
def test_what_python_takes_up_is_bound_by_launches(
    native: float, operators: list[dict[str, Any]], bound: Bound
) -> None:
    found = roofline.classify(profile({"native_ms": native, "operators": operators}))
    assert found.bound is bound
    words = (
        "in torch operators: Python and waiting take the rest"
        if bound is Bound.LAUNCH
        else "no counter confirms it on the CPU"
    )
    assert words in found.why


def test_two_walks_over_the_data_are_excess_traffic_only_where_memory_bounds() -> None:
    sweeps = [
        {"where": "", "function": name, "share": part}
        for name, part in (("_ZL5blockPKfl", 0.5), ("_ZN2ns5gatesEPf", 0.3))
    ]
    shares = {"native": 0.95, "libm": 0.0, "torch": 0.0, "libc": 0.0, "host": 0.05}
    finding = analyze("cpu_excess_traffic", profile(sweeps=sweeps, shares=shares))
    assert finding and "(block, gates)" in finding.cause
    assert analyze("cpu_excess_traffic", profile(sweeps=sweeps, shares=shares), Bound.COMPUTE) is None


def test_names_of_the_linker_are_read() -> None:
    names = (
        "_ZL5blockPKfS0_",
        "_Z3runv",
        "_ZN2ns3two5gatesEPf",
        "run._omp_fn.0",
        "go.constprop.0",
        "void app::k<4>(float)",
        "go",
    )
    assert [plain_name(name) for name in names] == ["block", "run", "gates", "run", "go", "k", "go"]


def test_the_page_says_where_a_call_on_the_cpu_spends_its_time() -> None:
    assert evidence.write(profile()) == (
        "## Time of a call\n"
        "profiled 0.1100 ms; floor 0.0200 ms (18% of the floor's speed)\n"
        "\n"
        "## On the CPU, consecutive calls (warm caches)\n"
        "a call takes 0.1080 ms: 0.0700 in native code in 1 call, 0.0380 around it\n"
        "CPU time: native code 67%, torch 3%, interpreter 30%\n"
        "by function: block 60%, run 7%\n"
        " 60%  innermost loop at kernel.cpp:7, 128-bit vectors  y[i] = x[i];\n"
        "effective threads: 1.8 of 2 cores (work of each, ms: 0.0500, 0.0400); one thread takes 0.1900 ms\n"
    )


def test_subnormal_numbers_are_named_where_flushing_them_saves_time() -> None:
    slow = profile({"alone_ms": 0.19, "flushed_ms": 0.1})
    finding = analyze("cpu_subnormals", slow)
    assert finding and finding.gain.factor == pytest.approx(1.9, rel=0.02)
    assert analyze("cpu_subnormals", profile({"alone_ms": 0.19, "flushed_ms": 0.18})) is None


def test_gains_end_where_vector_loops_of_this_machine_do() -> None:
    chain = {**LOOP, "bits": 0, "mix": {"scalar_float": 2}, "chain": 1, "accumulators": 1, "share": 1.0}
    gains = []
    for share in (0.4, 0.8):
        measured = profile(loops=[chain])
        ceilings = replace(measured.ceilings, loop_share=share)
        finding = analyze("cpu_dependency_chain", replace(measured, ceilings=ceilings))
        assert finding and "capped by what good kernels reach" in finding.gain.basis
        gains.append(finding.gain.factor)
    assert gains[1] == pytest.approx(2 * gains[0], rel=0.01)


def test_products_reach_less_of_the_floor_where_libraries_use_wider_vectors() -> None:
    columns = {"strided": 4, "strided_bytes": 16, "streamed": 1, "streamed_bytes": 4}
    loop = {**LOOP, "bits": 0, "mix": {"scalar_float": 2}, "share": 1.0} | columns
    gains = []
    for bits in (256, 512):
        measured = profile(loops=[loop], vector_bits=bits)
        work = replace(measured.work, matrix_flops=2e6)
        finding = analyze("cpu_strided_access", replace(measured, work=work, floor_ms=0.03), Bound.COMPUTE)
        assert finding
        gains.append(finding.gain.factor)
    assert gains[0] > gains[1] > 1


def test_interleaved_updates_and_columns_walked_in_place_are_told_apart() -> None:
    """Both update a number in every n-th place; only the columns are as slow as cache misses."""
    strides = {"strided": 2, "strided_bytes": 8, "strided_stores": 1, "streamed": 1, "streamed_bytes": 4}
    loop = {**LOOP, "bits": 0, "updates": 1, "parallel": True, "share": 1.0} | strides
    alone = {"alone_ms": 0.1}  # the threads do not slow each other down
    for time_ms, name, other in (
        (0.11, "cpu_false_sharing", "cpu_strided_access"),
        (9.0, "cpu_strided_access", "cpu_false_sharing"),
    ):
        measured = replace(profile(alone, loops=[loop]), time_ms=time_ms)
        assert analyze(name, measured) and not analyze(other, measured)
