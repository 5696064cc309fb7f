"""Energy diagnostics: off by default, each names its waste in kernels recorded on an H200, speed findings unchanged."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from recorded_profiles import bare

from kernelpro.diagnose import guidance, runner
from kernelpro.diagnose.counters import ISSUE_ACTIVE
from kernelpro.diagnose.diagnostics import registry
from kernelpro.diagnose.diagnostics.energy_spinning import BRANCHES
from kernelpro.records import Diagnosis, Finding, Profile, Severity

RECORDED = Path(__file__).parents[1] / "defects" / "recorded"
DIAGNOSTICS = list(registry().values())
WASTE = {
    "d_excess_traffic": "energy_dram_traffic",
    "d_l2_thrash": "energy_dram_traffic",
    "d_spills": "energy_dram_traffic",
    "d_slow_mma_family": "energy_l2_traffic",
    "d_precision_conversions": "energy_conversions",
    "d_double_precision": "energy_costly_math",
    "d_double_precision_triton": "energy_costly_math",
    "d_special_functions": "energy_costly_math",
    "d_tensor_cores_idle": "energy_wide_precision",
    "d_missing_reuse": "energy_excess_threads",
    "d_host_gaps": "energy_idle_clocks",
    "d_launch_overhead": "energy_idle_clocks",
}
PLANTED = {
    "arithmetic_behind_memory": "energy_excess_threads",
    "spinning_behind_memory": "energy_spinning",
    "tensor_behind_memory": "energy_excess_threads",
    "doubles_behind_memory": "energy_costly_math",
}
"""Of the pairs, those whose waste took a tenth of the energy or more."""


@cache
def profiles() -> dict[str, Profile]:
    text = gzip.decompress((RECORDED / "h200.json.gz").read_bytes())
    return {name: Profile.from_json(data) for name, data in json.loads(text).items()}


@cache
def diagnosis(name: str) -> Diagnosis:
    return runner.diagnose(profiles()[name], DIAGNOSTICS, energy=True)


@cache
def pairs() -> dict[str, dict[str, Any]]:
    """Kernels with planted waste, without it, and the ratio of their energies, by benchmarks/energy.py and energy_diagnostics.py.

    What is known of loops was read from the same machine code once more, built without a GPU, when loops that ask were marked.
    """
    return dict(json.loads(gzip.decompress((RECORDED / "h200-energy.json.gz").read_bytes())))


def energy(found: Diagnosis) -> list[Finding]:
    return [finding for finding in found.findings if finding.objective == "energy"]


def test_all_of_them_are_tried() -> None:
    assert {d.name for d in DIAGNOSTICS if d.objective == "energy"} == {*WASTE.values(), *PLANTED.values()}
    assert all(d.name.startswith("energy_") == (d.objective == "energy") for d in DIAGNOSTICS)


@pytest.mark.parametrize("name", WASTE)
def test_waste_is_named_first_among_the_energy_findings(name: str) -> None:
    first = energy(diagnosis(name))[0]
    assert first.diagnostic == WASTE[name] and first.gain.factor > 1.03 and first.advice and first.gain.basis


@pytest.mark.parametrize("name", pairs())
def test_planted_waste_is_told_for_about_what_it_took(name: str) -> None:
    found = {
        side: runner.diagnose(Profile.from_json(pairs()[name][side]), DIAGNOSTICS, energy=True)
        for side in ("wasteful", "lean")
    }
    wasteful, lean = (
        {finding.diagnostic: 1 - 1 / finding.gain.factor for finding in energy(found[side])} for side in found
    )
    assert not lean, "nothing was planted there"
    taken = 1 - 1 / pairs()[name]["ratio"]["value"]
    assert set(wasteful) == ({PLANTED[name]} if name in PLANTED else set()), f"of {taken:.1%}"
    assert all(taken / 2 < share < 1.25 * taken for share in wasteful.values())


def test_warps_that_ask_in_a_loop_are_named_with_their_line() -> None:
    profile = Profile.from_json(pairs()["spinning_behind_memory"]["wasteful"])
    found = energy(runner.diagnose(profile, DIAGNOSTICS, energy=True))[0]
    spun = 1 - 7_428_736 / 40_563_932  # instructions executed without the warps that spin, and with them
    assert found.where == "kernel.cu:9" and f"{spun:.0%} of the executed instructions" in found.cause


def test_a_loop_that_asks_is_not_blamed_where_nobody_waits_in_it() -> None:
    """Jumps are executed elsewhere, samples lie elsewhere, or the loop looks at other places each time."""
    profile = Profile.from_json(pairs()["spinning_behind_memory"]["wasteful"])
    kernel = profile.kernels[0]
    assert kernel.code
    work, spin = kernel.code.loops
    searches = replace(kernel.code, loops=(work, replace(spin, asks=False)))
    for changed in (
        replace(kernel, metrics=kernel.metrics | {BRANCHES: 3e6}),
        replace(kernel, lines=tuple(line for line in kernel.lines if line.where != spin.where)),
        replace(kernel, code=searches),
    ):
        found = runner.diagnose(replace(profile, kernels=(changed,)), DIAGNOSTICS, energy=True)
        assert "energy_spinning" not in {finding.diagnostic for finding in energy(found)}
        assert "energy_spinning" not in {skipped.what for skipped in found.skipped}


@pytest.mark.parametrize(
    ("source", "mix", "advice"),
    [
        (
            "__global__ void f(float* y) { *y = 1.0f / sqrtf(*y); }\nint blocks(int n) { return (n + 255) % 256; }",
            {"alu": 48, "branch": 33, "fma32": 28, "special": 8, "slow_path": 8},
            ["rsqrtf(x)", "-prec-sqrt=false"],
        ),
        (
            "__global__ void f(float* y) { *y = *y / 3.0f; }",
            {"alu": 20, "branch": 13, "fma32": 24, "slow_path": 4},
            ["a constant"],
        ),
        (
            "import triton\n@triton.jit\ndef f(y):\n    tl.store(y, tl.sqrt_rn(tl.load(y)))\ndef blocks(n):\n    return n / 256\n",
            {"alu": 54, "branch": 34, "fma32": 32, "special": 8, "slow_path": 8},
            ["tl.sqrt(x)"],
        ),
    ],
)
def test_results_right_to_the_last_bit_are_known_by_their_slow_path(
    source: str, mix: dict[str, int], advice: list[str]
) -> None:
    """Mixes as nvcc and Triton write them, for four or eight results; what the host computes is no part of it."""
    profile = Profile.from_json(pairs()["doubles_behind_memory"]["lean"])
    kernel = profile.kernels[0]
    assert kernel.code
    code = replace(kernel.code, loops=(), mix=mix | {"global_load": 1, "global_store": 1})
    exact = replace(
        profile,
        source=source,
        kernels=(replace(kernel, code=code, metrics=kernel.metrics | {ISSUE_ACTIVE: 30.0}),),
    )
    (found,) = energy(runner.diagnose(exact, DIAGNOSTICS, energy=True))
    assert found.diagnostic == "energy_costly_math" and all(words in found.advice[0] for words in advice)
    assert "%" not in found.advice[0] and found.advice[0].count(";") == len(advice) - 1 + (
        "rsqrtf" in found.advice[0]
    )


@pytest.mark.parametrize("name", sorted(name for name in profiles() if name.startswith("c_")))
def test_healthy_kernels_waste_little(name: str) -> None:
    assert all(finding.severity is Severity.LOW for finding in energy(diagnosis(name)))


@pytest.mark.parametrize("name", ["d_excess_traffic", "d_precision_conversions", "c_softmax_cuda"])
def test_a_diagnosis_of_speed_stays_as_it_is(name: str) -> None:
    plain = runner.diagnose(profiles()[name], DIAGNOSTICS)
    assert not energy(plain) and "nergy" not in guidance.write(plain)
    assert (
        tuple(finding for finding in diagnosis(name).findings if finding.objective == "speed")
        == plain.findings
    )


@pytest.mark.parametrize(
    ("name", "word", "foreign"),
    [("c_softmax_cuda", "exp2f(x", "tl."), ("c_softmax_triton", "tl.exp2(x", "exp2f")],
)
def test_cheaper_forms_are_told_in_the_words_of_the_kernels_language(
    name: str, word: str, foreign: str
) -> None:
    advice = next(
        finding.advice[0] for finding in energy(diagnosis(name)) if finding.diagnostic == "energy_costly_math"
    )
    assert word in advice and foreign not in advice
    assert "tanh.approx" not in advice, "eleven bits are not inside the tolerance of float32"


def test_a_logarithm_costs_energy_though_it_never_meets_the_special_function_unit() -> None:
    """27 multiply-adds an element, and nothing special among them."""
    profile = profiles()["c_gelu_bias_cuda"]
    kernel = profile.kernels[0]
    assert kernel.code and kernel.code.mix
    mix = {kind: count for kind, count in kernel.code.mix.items() if kind != "special"} | {"fma32": 430}
    changed = replace(kernel, code=replace(kernel.code, mix=mix))
    logs = replace(profile, source="y[i] = logf(x[i]);", kernels=(changed,))
    found = energy(runner.diagnose(logs, DIAGNOSTICS, energy=True))
    assert [finding.diagnostic for finding in found] == ["energy_costly_math"] and "__logf(x)" in found[
        0
    ].advice[0]
    assert not energy(runner.diagnose(replace(logs, source="y[i] = x[i] * x[i];"), DIAGNOSTICS, energy=True))


def test_counters_for_energy_are_collected_only_when_asked() -> None:
    profile, bound = profiles()["c_softmax_cuda"], diagnosis("c_softmax_cuda").bound
    plain, more = (
        set(runner.request_for(DIAGNOSTICS, profile, bound, energy=asked).metrics) for asked in (False, True)
    )
    assert plain < more


def test_without_counters_nothing_is_guessed() -> None:
    found = runner.diagnose(bare(profiles()["d_excess_traffic"]), DIAGNOSTICS, energy=True)
    assert not energy(found)
    assert "energy_dram_traffic" in {skipped.what for skipped in found.skipped}


def test_guidance_tells_energy_after_time_and_in_percent() -> None:
    text = guidance.write(diagnosis("d_precision_conversions"))
    speed, _, rest = text.partition("Energy is an objective too. Without losing speed:")
    assert "precision_conversions" in speed and "energy_conversions" in rest and "% less energy" in rest
    assert "Energy is an objective too: no findings." in guidance.write(diagnosis("c_transpose_add_cuda"))


def test_tensor_cores_at_work_for_a_task_without_products_are_waste() -> None:
    profile = profiles()["d_slow_mma_family"]
    lean = replace(profile, work=replace(profile.work, matrix_flops=0.0))
    found = {
        finding.diagnostic: finding for finding in energy(runner.diagnose(lean, DIAGNOSTICS, energy=True))
    }
    assert (
        "has no matrix products" in found["energy_excess_threads"].cause
        and found["energy_excess_threads"].gain.factor > 1.05
    )
    assert "energy_excess_threads" not in {
        finding.diagnostic for finding in energy(diagnosis("d_slow_mma_family"))
    }
