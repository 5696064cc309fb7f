"""Instruction-level diagnostics over machine code as compilers produce it, with and without counters."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typed_records import typed

from kernelpro.diagnose import DiagnosticContext, MissingData
from kernelpro.diagnose.counters import (
    DRAM_THROUGHPUT,
    MEMORY_THROUGHPUT,
    SM_THROUGHPUT,
    WARP_CYCLES,
    stall_metric,
)
from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab.profile import sass
from kernelpro.records import Bound, Finding, Kernel, KernelCode, Profile, Severity

DIAGNOSTICS = registry()
NAMES = [
    "double_precision",
    "narrow_access",
    "spills",
    "tensor_cores_idle",
    "slow_mma_family",
    "serialized_wgmma",
    "missing_async_copy",
    "missing_pipelining",
    "precision_conversions",
    "special_functions",
    "memory_barriers",
    "integer_arithmetic",
]
H200 = {
    "name": "NVIDIA H200",
    "capability": "9.0",
    "sms": 132,
    "max_threads_per_sm": 2048,
    "max_warps_per_sm": 64,
    "max_blocks_per_sm": 32,
    "registers_per_sm": 65536,
    "shared_per_sm": 233472,
    "l2_bytes": 60 << 20,
    "warp": 32,
    "fp32_to_fp64": 2,
    "dram_bandwidth": 4.3e12,
    "clock_mhz": 1980,
}
CEILINGS = {
    "bandwidth": 4.3e12,
    "cached_bandwidth": 8e12,
    "rates": {"fp32": 51e12, "tf32": 385e12, "bf16": 789e12},
}
STREAM = {"read_bytes": 256e6, "written_bytes": 256e6, "matrix_flops": 0.0}
PRODUCT = {"read_bytes": 134e6, "written_bytes": 67e6, "matrix_flops": 2 * 4096.0**3}
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"


def code(
    loop: dict[str, int] | None = None, widths: dict[str, dict[str, int]] | None = None, **facts: Any
) -> dict[str, Any]:
    """Facts of a kernel with one hot loop, or of one without loops where `mix` is given."""
    mix = facts.pop("mix", loop or {})
    loops = (
        [
            {
                "innermost": True,
                "instructions": sum(loop.values()),
                "mix": loop,
                "widths": widths or {},
                "where": "kernel.cu:12",
            }
        ]
        if loop
        else []
    )
    base = {
        "instructions": sum(mix.values()),
        "mix": mix,
        "widths": widths or {},
        "loops": loops,
        "registers": 40,
        "stack": 0,
    }
    return (
        base
        | {"where": dict.fromkeys(mix, "kernel.cu:12"), "spill_stores": 0, "spill_loads": 0, "warnings": []}
        | facts
    )


def context(
    facts: dict[str, Any], metrics: dict[str, float] | None = None, **changes: Any
) -> DiagnosticContext:
    """One kernel alone in a call; without `time_ms` as on a machine without a GPU."""
    time_ms = changes.pop("time_ms", 0.0)
    kernel = Kernel(
        "kernel",
        1e3 * time_ms,
        1,
        1.0,
        (4096,),
        changes.pop("block", (256,)),
        changes.pop("registers", 40),
        metrics=metrics or {},
        **typed({"code": facts}),
    )
    bound = changes.pop("bound", Bound.MEMORY)
    fields: dict[str, Any] = {
        "floor_ms": 0.12 if time_ms else 0.0,
        "work": STREAM,
        "ceilings": CEILINGS,
        "device": H200,
        "precision": "tf32",
    }
    profile = Profile("cuda", time_ms, **typed(fields | changes), kernels=(kernel,))
    return DiagnosticContext(profile, bound, kernel)


def analyze(name: str, at: DiagnosticContext) -> Finding | None:
    match = DIAGNOSTICS[name].analyze(at)
    return at.to_finding(DIAGNOSTICS[name], match) if match else None


def counters(compute: float, memory: float, cycles: float = 20.0, **waiting: float) -> dict[str, float]:
    """Use of SM and memory in percent, and the share of the warps' time by reason."""
    stalls = {stall_metric(reason): share * cycles for reason, share in waiting.items()}
    return {
        SM_THROUGHPUT: compute,
        MEMORY_THROUGHPUT: memory,
        DRAM_THROUGHPUT: memory,
        WARP_CYCLES: cycles,
    } | stalls


# A vectorised GELU with a grid-stride loop, and a row-wise softmax of one block a row, both as compiled for sm_90.
GELU = code(
    {"alu": 17, "fma32": 76, "half": 1, "special": 8, "global_load": 1, "global_store": 1, "branch": 1},
    {"global_load": {"128": 1}, "global_store": {"128": 1}},
)
SOFTMAX = code(
    mix={
        "alu": 59,
        "fma32": 180,
        "special": 17,
        "shuffle": 18,
        "barrier": 5,
        "shared_store": 4,
        "shared_load": 4,
        "global_load": 4,
        "global_store": 4,
    },
    widths={
        "global_load": {"128": 4},
        "global_store": {"128": 4},
        "shared_load": {"32": 4},
        "shared_store": {"32": 4},
    },
)
WGMMA = code({"alu": 60, "branch": 3, "barrier": 1, "mbarrier": 4, "hgmma": 16, "membar": 2, "tma": 2})
TILES = {
    "alu": 6,
    "global_load": 2,
    "shared_store": 2,
    "barrier": 2,
    "shared_load": 40,
    "fma32": 32,
    "branch": 1,
}
TILE_WIDTHS = {"global_load": {"32": 2}, "shared_store": {"32": 2}, "shared_load": {"32": 32, "128": 8}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("facts", [GELU, SOFTMAX], ids=["gelu", "softmax"])
@pytest.mark.parametrize("measured", [False, True], ids=["static", "counters"])
def test_healthy_streaming_kernels_are_left_alone(name: str, facts: dict[str, Any], measured: bool) -> None:
    metrics = counters(31, 82, long_scoreboard=0.47, barrier=0.19, membar=0.0) if measured else None
    assert analyze(name, context(facts, metrics, time_ms=0.135 if measured else 0.0)) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_wgmma_loop_is_left_alone(name: str) -> None:
    metrics = counters(80, 60, long_scoreboard=0.3, barrier=0.1, membar=0.0) | {TENSOR: 82.0}
    assert (
        analyze(name, context(WGMMA, metrics, work=PRODUCT, bound=Bound.COMPUTE, time_ms=0.4, floor_ms=0.357))
        is None
    )


@pytest.mark.parametrize("name", NAMES)
def test_without_machine_code_a_diagnostic_is_skipped_and_not_silent(name: str) -> None:
    if name == "tensor_cores_idle":  # the tensor pipe's counter does as well
        finding = analyze(name, context({}, {TENSOR: 0.0}, work=PRODUCT))
        assert finding and finding.severity is Severity.HIGH
        return
    with pytest.raises(MissingData, match="machine code"):
        DIAGNOSTICS[name].analyze(context({}, work=PRODUCT))


def test_narrow_loads_leave_the_bandwidth_unfilled() -> None:
    bf16 = code(
        {"alu": 5, "half": 1, "fma32": 1, "convert": 1, "global_load": 1, "global_store": 1, "branch": 1},
        {"global_load": {"16": 1}, "global_store": {"16": 1}},
    )
    finding = analyze("narrow_access", context(bf16))
    assert (
        finding
        and finding.severity is Severity.HIGH
        and "16 bits" in finding.cause
        and finding.where == "kernel.cu:12"
    )
    waiting = {"long_scoreboard": 0.8, "lg_throttle": 0.0}
    measured = analyze("narrow_access", context(bf16, counters(20, 40, **waiting), time_ms=0.3))
    assert measured and 1.5 < measured.gain.factor < 2.0
    assert analyze("narrow_access", context(bf16, counters(20, 80, **waiting), time_ms=0.13)) is None, (
        "near the ceiling"
    )
    busy = counters(20, 40, long_scoreboard=0.1, lg_throttle=0.0)
    assert analyze("narrow_access", context(bf16, busy, time_ms=0.3)) is None, "warps do not wait for memory"
    assert analyze("narrow_access", context(bf16, time_ms=0.13)) is None, "near the ceiling by its time"
    scattered = {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 4.0}
    assert (
        analyze("narrow_access", context(bf16, counters(20, 40, **waiting) | scattered, time_ms=0.3)) is None
    ), "scattered, not narrow"


def test_unrolled_scalar_loads_have_enough_in_flight() -> None:
    unrolled = code({"alu": 8, "fma32": 8, "global_load": 8, "branch": 1}, {"global_load": {"32": 8}})
    assert analyze("narrow_access", context(unrolled)) is None


def test_spills_are_found_in_code_and_in_counters() -> None:
    spilling = code(
        {
            "local_store": 66,
            "local_load": 72,
            "fma32": 64,
            "alu": 3,
            "constant": 2,
            "global_load": 1,
            "branch": 1,
        },
        {"local_store": {"32": 66}, "local_load": {"32": 72}, "global_load": {"32": 1}},
        stack=264,
        spill_stores=264,
        spill_loads=288,
        registers=32,
    )
    finding = analyze("spills", context(spilling, registers=32))
    assert (
        finding
        and finding.severity is Severity.HIGH
        and "32 registers" in finding.cause
        and "launch_bounds" in finding.advice[0]
    )
    requests = {
        f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{op}.sum": n
        for space, n in (("local", 3e6), ("global", 1e6))
        for op in ("ld", "st")
    }
    measured = analyze("spills", context(spilling, counters(20, 85) | requests, time_ms=0.6))
    assert measured and measured.gain.factor == pytest.approx(4.0, rel=0.02)


def test_a_run_time_index_is_told_from_a_spill() -> None:
    indexed = code(
        {"local_store": 8, "local_load": 16, "fma32": 16, "alu": 20, "global_load": 1},
        {"local_load": {"32": 16}, "local_store": {"32": 8}},
        stack=128,
    )
    finding = analyze("spills", context(indexed))
    assert finding and "run-time indices" in finding.cause


def test_products_on_multiply_add_units_are_told_the_tensor_rate() -> None:
    tiled = code(TILES, TILE_WIDTHS)
    finding = analyze("tensor_cores_idle", context(tiled, work=PRODUCT, bound=Bound.COMPUTE))
    assert finding and finding.gain.factor == pytest.approx(385 / 51, rel=0.01) and "385" in finding.cause
    assert analyze("tensor_cores_idle", context(tiled, work=PRODUCT, precision="fp32")) is None, "not allowed"
    assert analyze("tensor_cores_idle", context(tiled, work=PRODUCT | {"matrix_flops": 1e8})) is None, (
        "bytes take longer"
    )
    assert analyze("tensor_cores_idle", context(tiled)) is None, "no products in the task"


def test_only_the_kernel_that_carries_the_products_is_accused() -> None:
    at = context(code({"fma32": 40, "alu": 10}), work=PRODUCT)
    library = Kernel("gemm", 400.0, 1, 0.2, authored=False, code=KernelCode(mix={"hgmma": 16}))
    both = Profile.from_json(at.profile.to_json() | {"kernels": [at.kernel.to_json(), library.to_json()]})
    assert analyze("tensor_cores_idle", DiagnosticContext(both, Bound.COMPUTE, both.kernels[0])) is None


def test_mma_sync_on_hopper_is_the_slow_family() -> None:
    loop = code({"hmma": 64, "shared_load": 24, "alu": 20, "async_copy": 4, "barrier": 1, "branch": 1})
    finding = analyze("slow_mma_family", context(loop, work=PRODUCT, bound=Bound.COMPUTE))
    assert (
        finding
        and finding.severity is Severity.HIGH
        and 1.6 < finding.gain.factor < 2.5
        and "wgmma" in finding.advice[0]
    )
    for capability in ("8.0", "12.0"):
        assert (
            analyze("slow_mma_family", context(loop, work=PRODUCT, device=H200 | {"capability": capability}))
            is None
        )
    assert analyze("slow_mma_family", context(loop, work=PRODUCT | {"matrix_flops": 1e9})) is None, (
        "memory is slower anyway"
    )


SERIALISED = (
    "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma instructions "
    "defining accumulator registers of a wgmma between start and end of the pipeline stage in the function 'kernel'"
)


def test_serialised_products_carry_the_compilers_reason() -> None:
    at = context(WGMMA | {"warnings": [SERIALISED]}, work=PRODUCT, bound=Bound.COMPUTE)
    finding = analyze("serialized_wgmma", at)
    assert (
        finding
        and finding.severity is Severity.HIGH
        and "non wgmma instructions defining accumulator registers" in finding.cause
    )
    busy = analyze(
        "serialized_wgmma", context(WGMMA | {"warnings": [SERIALISED]}, {TENSOR: 80.0}, work=PRODUCT)
    )
    assert busy and busy.severity is Severity.LOW, "the tensor pipe is busy all the same"
    compiler = {"warnings": [SERIALISED.replace("'kernel'", "'another'")]}
    assert analyze("serialized_wgmma", context(WGMMA, work=PRODUCT, compiler=compiler)) is None, (
        "said of another kernel"
    )


def test_tiles_through_registers_wait_for_memory() -> None:
    tiled = code({**TILES, "hmma": 16}, TILE_WIDTHS)
    metrics = counters(30, 35, long_scoreboard=0.4, barrier=0.2)
    finding = analyze(
        "missing_async_copy", context(tiled, metrics, work=PRODUCT, time_ms=1.0, floor_ms=0.357)
    )
    assert (
        finding
        and finding.severity is Severity.HIGH
        and "60%" in finding.gain.basis
        and "TMA" in finding.advice[0]
    )
    hidden = analyze(
        "missing_async_copy", context(tiled, counters(80, 60, long_scoreboard=0.1, barrier=0.05), time_ms=1.0)
    )
    assert hidden and hidden.severity is Severity.LOW, "other warps hide it"
    assert analyze("missing_async_copy", context(tiled, device=H200 | {"capability": "7.5"})) is None
    tree = code(
        {"shared_load": 21, "alu": 15, "fma32": 12, "barrier": 12, "shared_store": 11, "global_load": 1}
    )
    assert analyze("missing_async_copy", context(tree)) is None, "a reduction, not a tile"


def test_without_counters_the_latency_of_a_tile_is_set_against_its_work() -> None:
    tiled = code({**TILES, "hmma": 16}, TILE_WIDTHS)
    alone = analyze("missing_async_copy", context(tiled, block=(128,), registers=255))
    crowded = analyze("missing_async_copy", context(tiled, block=(1024,), registers=32))
    assert alone and crowded and alone.gain.factor > crowded.gain.factor


def test_one_stage_takes_turns() -> None:
    single = code(
        {"async_copy": 2, "barrier": 2, "shared_load": 43, "fma32": 32, "alu": 7, "other": 1, "branch": 1}
    )
    metrics = counters(35, 30, long_scoreboard=0.35, barrier=0.2)
    finding = analyze("missing_pipelining", context(single, metrics, time_ms=1.0))
    assert finding and finding.severity is Severity.HIGH and "one buffer" in finding.cause
    double = code({"async_copy": 2, "barrier": 1, "shared_load": 43, "fma32": 32, "alu": 7})
    assert analyze("missing_pipelining", context(double, metrics, time_ms=1.0)) is None
    triton = {"configuration": {"kernel": "BLOCK_M: 128, num_warps: 8, num_stages: 1"}}
    staged = analyze(
        "missing_pipelining",
        context(code({**TILES, "hgmma": 4}, TILE_WIDTHS), metrics, compiler=triton, time_ms=1.0),
    )
    assert staged and "num_stages" in " ".join(staged.advice)


def test_one_load_at_a_time_is_found_by_its_stalls() -> None:
    row_sum = code({"alu": 6, "global_load": 1, "fma32": 1, "branch": 1}, {"global_load": {"128": 1}})
    waiting = counters(15, 40, long_scoreboard=0.8, barrier=0.0)
    finding = analyze("missing_pipelining", context(row_sum, waiting, time_ms=0.3))
    assert finding and finding.severity is Severity.HIGH and "unroll" in finding.advice[0]
    assert analyze("missing_pipelining", context(row_sum, time_ms=0.3)) is None, (
        "not to be told without counters"
    )
    assert (
        analyze(
            "missing_pipelining",
            context(row_sum, counters(15, 82, long_scoreboard=0.8, barrier=0.0), time_ms=0.13),
        )
        is None
    )


def test_conversions_at_each_step() -> None:
    loop = {
        "alu": 4,
        "fma32": 48,
        "convert": 48,
        "half": 16,
        "global_load": 1,
        "global_store": 1,
        "branch": 1,
    }
    to_and_fro = code(loop, {"global_load": {"32": 1}, "global_store": {"32": 1}})
    finding = analyze("precision_conversions", context(to_and_fro))
    assert finding and finding.severity is Severity.HIGH and "48 of 119" in finding.cause
    assert analyze("precision_conversions", context(to_and_fro, counters(30, 82), time_ms=0.13)) is None, (
        "memory sets the time"
    )


def test_accurate_powers_expand() -> None:
    powers = code(
        {
            "alu": 50,
            "branch": 33,
            "half": 6,
            "fma32": 212,
            "convert": 12,
            "special": 4,
            "global_load": 1,
            "global_store": 1,
        },
        {"global_load": {"128": 1}, "global_store": {"128": 1}},
    )
    finding = analyze("special_functions", context(powers, source="y = powf(x, 2.5f);"))
    assert (
        finding
        and finding.severity is Severity.HIGH
        and "powf" in finding.cause
        and "__powf" in finding.advice[0]
    )
    measured = analyze("special_functions", context(powers, counters(88, 40), time_ms=0.4))
    assert measured and measured.gain.factor > 1.8


def test_a_full_special_function_pipe() -> None:
    exponentials = code(
        {"alu": 8, "fma32": 64, "special": 64, "global_load": 1, "global_store": 1},
        {"global_load": {"128": 1}, "global_store": {"128": 1}},
    )
    finding = analyze("special_functions", context(exponentials))
    assert finding and finding.severity is Severity.HIGH and "64 special functions" in finding.cause


def test_a_sine_counts_although_it_needs_no_special_unit() -> None:
    # The loops inside are the reduction of large arguments; the code around them is what runs.
    slow_path = {
        "innermost": True,
        "instructions": 24,
        "mix": {"alu": 22, "global_load": 1, "branch": 1},
        "widths": {"global_load": {"32": 1}},
    }
    mix = {
        "alu": 413,
        "global_load": 5,
        "branch": 37,
        "fma32": 72,
        "convert": 16,
        "fp64": 4,
        "global_store": 1,
    }
    around = {
        "innermost": False,
        "instructions": 556,
        "mix": mix,
        "widths": {"global_load": {"128": 1, "32": 4}, "global_store": {"128": 1}},
    }
    at = context(code(mix=mix) | {"loops": [slow_path, around]}, source="y = sinf(x);")
    finding = analyze("special_functions", at)
    assert finding and "sinf" in finding.cause
    assert analyze("double_precision", at) is None, "the double of the rare path is no defect"
    assert "special_functions" in DIAGNOSTICS["integer_arithmetic"].symptom_of


def test_doubles_by_accident() -> None:
    loop = {"fp64": 40, "convert": 8, "fma32": 10, "alu": 20, "global_load": 1, "global_store": 1}
    doubles = code(loop, {"global_load": {"128": 1}, "global_store": {"128": 1}})
    finding = analyze("double_precision", context(doubles, counters(80, 20), time_ms=0.5))
    assert finding and finding.severity is Severity.HIGH and "0.5f" in finding.advice[0]
    assert (
        analyze("double_precision", context(doubles, precision="native", source="x.to(torch.float64)"))
        is None
    )


def test_fences_in_the_loop() -> None:
    fenced = code({"alu": 4, "global_load": 1, "fma32": 1, "global_store": 1, "membar": 3, "branch": 1})
    finding = analyze("memory_barriers", context(fenced))
    assert finding and finding.severity is Severity.HIGH and "1 memory fence" in finding.cause
    measured = analyze("memory_barriers", context(fenced, counters(5, 20, membar=0.7), time_ms=0.6))
    assert measured and measured.gain.factor > 2
    assert analyze("memory_barriers", context(fenced, counters(30, 80, membar=0.01), time_ms=0.14)) is None
    once = code(mix={"alu": 40, "global_load": 4, "fma32": 30, "membar": 3, "atomic": 1})
    assert analyze("memory_barriers", context(once)) is None, "once a block is how the last block is finding"


def test_index_divisions() -> None:
    divisions = code(
        {
            "alu": 285,
            "branch": 33,
            "call": 8,
            "convert": 16,
            "special": 8,
            "half": 4,
            "global_load": 4,
            "global_store": 4,
        },
        {"global_load": {"32": 4}, "global_store": {"32": 4}},
    )
    finding = analyze("integer_arithmetic", context(divisions))
    assert finding and finding.severity is Severity.HIGH and "division" in finding.cause
    assert analyze("special_functions", context(divisions)) is None, (
        "reciprocals of integer division are no special functions"
    )
    assert analyze("integer_arithmetic", context(divisions, counters(40, 82), time_ms=0.13)) is None, (
        "memory sets the time"
    )


def test_a_gain_never_goes_beyond_the_floor() -> None:
    finding = analyze(
        "tensor_cores_idle", context(code(TILES, TILE_WIDTHS), work=PRODUCT, time_ms=0.4, floor_ms=0.357)
    )
    assert finding and finding.severity is Severity.MEDIUM and "floor" in finding.gain.basis


@pytest.mark.parametrize("name", NAMES)
def test_every_diagnostic_explains_itself(name: str) -> None:
    diagnostic = DIAGNOSTICS[name]
    assert diagnostic.name == name and diagnostic.level == "instruction"
    assert diagnostic.trigger and diagnostic.remedy and diagnostic.gain_basis
    assert set(diagnostic.symptom_of) <= set(DIAGNOSTICS), "a symptom of a diagnostic that does not exist"


SOURCE = r"""
__global__ void gelu(const float4* x, float4* y, long n) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
        float4 v = x[i];
        v.x = 0.5f * v.x * (1 + tanhf(v.x)); v.y = 0.5f * v.y * (1 + tanhf(v.y));
        v.z = 0.5f * v.z * (1 + tanhf(v.z)); v.w = 0.5f * v.w * (1 + tanhf(v.w));
        y[i] = v;
    }
}
__global__ void powers(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = powf(x[i], 2.5f) + powf(x[i], 1.7f);
}
__global__ void divided(const float* x, float* y, long n, long a, long b) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x)
        y[i / a * a + i % a % b * b + i % a / b] = x[i];
}
__global__ void doubled(const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = 0.5 * x[i] * (1.0 + exp((double)x[i]) + log(2.0 + x[i]));
}
__global__ void fenced(const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) { y[i] = x[i] * 2.f; __threadfence(); }
}
__global__ void __launch_bounds__(1024, 2) spilling(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float a[64];
#pragma unroll
    for (int k = 0; k < 64; k++) a[k] = x[i + k * n];
    for (int j = 0; j < n; j++)
#pragma unroll
        for (int k = 0; k < 64; k++) a[k] = a[k] * x[j] + a[(k + 7) % 64];
#pragma unroll
    for (int k = 0; k < 64; k++) y[i + k * n] = a[k];
}
"""
EXPECTED = {
    "gelu": set(),
    "powers": {"special_functions"},
    "divided": {"integer_arithmetic"},
    "doubled": {"double_precision"},
    "fenced": {"memory_barriers"},
    "spilling": {"spills"},
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    nvcc = shutil.which("nvcc")
    if nvcc is None or sass.find_tool("cuobjdump") is None or sass.find_tool("nvdisasm") is None:
        pytest.skip("nvcc, cuobjdump and nvdisasm are needed")
    folder: Path = tmp_path_factory.mktemp("code")
    (folder / "kernel.cu").write_text(SOURCE)
    command = [
        nvcc,
        "-arch=sm_90a",
        "-O3",
        "-lineinfo",
        "-Xptxas",
        "-v",
        "-cubin",
        "-o",
        "kernel.cubin",
        "kernel.cu",
    ]
    log = subprocess.run(command, cwd=folder, check=True, capture_output=True).stderr
    static = sass.analyze({"kernel.cubin": (folder / "kernel.cubin").read_bytes(), "kernel.log": log})
    return {name: variants[0].to_json() for name, variants in static.kernels.items()}


@pytest.mark.parametrize("kernel", EXPECTED)
def test_real_machine_code_without_a_gpu(compiled: dict[str, dict[str, Any]], kernel: str) -> None:
    at = context(compiled[kernel], source=SOURCE, registers=compiled[kernel]["registers"])
    severe = {name for name in NAMES if (finding := analyze(name, at)) and finding.severity is Severity.HIGH}
    explained = {name for name in severe if set(DIAGNOSTICS[name].symptom_of) & severe}
    assert severe - explained == EXPECTED[kernel]
