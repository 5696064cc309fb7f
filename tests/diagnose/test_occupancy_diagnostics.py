"""The occupancy calculation, and the diagnostics that use it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from softmax_sample import H200, analyze, context, kernel, slow

from kernelpro.diagnose import MissingData
from kernelpro.diagnose.counters import SM_THROUGHPUT
from kernelpro.diagnose.occupancy import kernel_occupancy, occupancy, waves
from kernelpro.records import DeviceProperties, Severity

DEVICE = DeviceProperties.from_json(H200)


def test_occupancy_of_the_sample_is_what_ncu_reported() -> None:
    at = context(kernel({}))
    holds = kernel_occupancy(at)
    assert holds.limits["registers"] == 3 and holds.limits["warps"] == 4 and holds.limits["blocks"] == 32
    assert holds.limiter == "registers" and holds.share == 0.75
    assert waves(at, holds) == pytest.approx(20.69, abs=0.01)


CALCULATOR = r"""
#include <cuda_occupancy.h>
#include <stdio.h>
#include <string.h>
int main(void) {
    cudaOccDeviceProp p; memset(&p, 0, sizeof p);
    p.computeMajor = 9; p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = 2048;
    p.regsPerBlock = 65536; p.regsPerMultiprocessor = 65536; p.warpSize = 32;
    p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = 233472; p.numSms = 132;
    p.sharedMemPerBlockOptin = 232448; p.reservedSharedMemPerBlock = 1024;
    int threads, registers, shared;
    while (scanf("%d %d %d", &threads, &registers, &shared) == 3) {
        cudaOccFuncAttributes a; memset(&a, 0, sizeof a);
        a.maxThreadsPerBlock = 1024; a.numRegs = registers; a.maxDynamicSharedSizeBytes = 232448;
        a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        cudaOccDeviceState s; memset(&s, 0, sizeof s); s.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult r;
        int failed = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, threads, shared);
        printf("%d\n", failed ? -1 : r.activeBlocksPerMultiprocessor);
    }
    return 0;
}
"""


def test_occupancy_agrees_with_the_toolkits_calculator(tmp_path: Path) -> None:
    compiler, nvcc = shutil.which("gcc") or shutil.which("cc"), shutil.which("nvcc")
    homes = [Path("/usr/local/cuda"), *([Path(nvcc).resolve().parents[1]] if nvcc else [])]
    include = next(
        (home / "include" for home in homes if (home / "include" / "cuda_occupancy.h").is_file()), None
    )
    if compiler is None or include is None:
        pytest.skip("needs a C compiler and cuda_occupancy.h of the CUDA toolkit")
    (tmp_path / "calculator.c").write_text(CALCULATOR)
    program = tmp_path / "calculator"
    subprocess.run(
        [compiler, f"-I{include}", "-o", program, tmp_path / "calculator.c"], check=True, timeout=120
    )
    cases = [
        (threads, registers, shared)
        for threads in (32, 64, 96, 128, 160, 256, 384, 512, 640, 768, 1024)
        for registers in (16, 24, 32, 33, 38, 40, 41, 56, 64, 65, 80, 96, 128, 168, 200, 255)
        for shared in (0, 128, 1000, 8192, 16384, 33000, 50000, 76000, 115000, 200000, 232448)
    ]
    queries = "\n".join(" ".join(map(str, case)) for case in cases)
    answers = subprocess.run(
        [program], input=queries, text=True, capture_output=True, check=True, timeout=60
    ).stdout.split()
    for case, answer in zip(cases, map(int, answers), strict=True):
        if answer > 0:
            assert occupancy(*case, DEVICE).blocks == answer, case
        else:
            with pytest.raises(MissingData):
                occupancy(*case, DEVICE)


def test_shared_memory_that_leaves_one_block_limits_occupancy() -> None:
    finding = analyze("occupancy_limiter", slow({}, dynamic_shared=200_000, block=(128, 1, 1)))
    assert finding is not None and finding.severity is Severity.HIGH
    assert (
        "KiB of shared memory" in finding.cause
        and "1 block per SM" in finding.cause
        and "less shared memory" in finding.advice[0]
    )


def test_tiny_blocks_limit_occupancy_by_their_number() -> None:
    """A device with places for 16 blocks and 48 warps, as sm_86 has."""
    at = slow({}, block=(32, 1, 1), grid=(100_000, 1, 1), registers=32, static_shared=0)
    device = replace(at.profile.device, max_blocks_per_sm=16, max_warps_per_sm=48)
    at = replace(at, profile=replace(at.profile, device=device))
    finding = analyze("occupancy_limiter", at)
    assert finding is not None and "only 32 threads" in finding.cause and "larger blocks" in finding.advice[0]


def test_few_warps_are_fine_where_units_are_full_or_tensor_cores_work() -> None:
    large = {"dynamic_shared": 200_000, "block": (128, 1, 1)}
    assert analyze("occupancy_limiter", slow({SM_THROUGHPUT: 80.0}, **large)) is None
    code = {"mix": {"hgmma": 8, "tma": 2}, "loops": []}
    assert analyze("occupancy_limiter", slow({}, code=code, **large)) is None


def test_occupancy_without_counters_is_a_modest_guess() -> None:
    at = context(kernel(None, dynamic_shared=200_000, block=(128, 1, 1), microseconds=1040.0))
    finding = analyze("occupancy_limiter", at)
    assert finding is not None and "no counters" in finding.cause and finding.severity is Severity.MEDIUM


def test_registers_that_leave_few_warps_are_register_pressure() -> None:
    at = slow({}, registers=255, block=(256, 1, 1))
    finding = analyze("register_pressure", at)
    assert finding is not None and finding.severity is Severity.HIGH and "255 registers" in finding.cause
    assert analyze("occupancy_limiter", at) is None
    assert analyze("register_pressure", slow({}, registers=64, block=(256, 1, 1))) is None


def test_one_block_on_a_large_device_is_low_parallelism() -> None:
    finding = analyze("low_parallelism", slow({}, grid=(8, 1, 1)))
    assert finding is not None and finding.severity is Severity.HIGH
    assert "8 blocks" in finding.cause and "132 SMs" in finding.cause
    assert analyze("low_parallelism", slow({}, grid=(128, 1, 1))) is None


def test_few_blocks_show_without_counters() -> None:
    finding = analyze("low_parallelism", context(kernel(None, grid=(8, 1, 1), microseconds=1040.0)))
    assert finding is not None and finding.severity is Severity.HIGH and "no counters" in finding.cause


def test_thin_grids_are_low_parallelism() -> None:
    finding = analyze("low_parallelism", slow({}, grid=(264, 1, 1), block=(32, 1, 1)))
    assert finding is not None and "2.0 warps" in finding.cause and finding.severity is not Severity.LOW


def test_a_grid_just_above_one_wave_has_a_tail() -> None:
    """133 blocks of which an SM holds one: all but one SM stand still half of the time."""
    facts = {"grid": (133, 1, 1), "block": (1024, 1, 1), "registers": 64, "static_shared": 0}
    cycles = {"sm__cycles_active.avg": 5.04e5, "sm__cycles_elapsed.avg": 1e6}
    finding = analyze("tail_effect", slow(cycles, **facts))
    assert (
        finding is not None
        and finding.severity is Severity.HIGH
        and finding.gain.factor == pytest.approx(1.98, abs=0.05)
    )
    assert "1.01 waves" in finding.cause and "fills 1% of the device" in finding.cause
    alone = analyze("tail_effect", context(kernel(None, **facts, microseconds=1040.0)))
    assert alone is not None and "no counters" in alone.cause


def test_full_waves_and_many_waves_have_no_tail() -> None:
    facts = {"block": (1024, 1, 1), "registers": 64, "static_shared": 0}
    assert analyze("tail_effect", slow({}, grid=(264, 1, 1), **facts)) is None
    assert analyze("tail_effect", slow({}, grid=(132 * 12 + 1, 1, 1), **facts)) is None
