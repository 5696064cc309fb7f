"""compute-sanitizer's output in one line: reports from NVIDIA's manual and a user's log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelpro.lab.jobs import JobRunner
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.profile import sanitizer
from kernelpro.lab.profile.profiler_sandbox import parse_results
from kernelpro.records import Candidate, Job, Options, Status, Task, Verdict

MANUAL = """========= COMPUTE-SANITIZER
Mallocing memory
========= Invalid __global__ write of size 4 bytes
=========     at unaligned_kernel():0x160 in memcheck_demo.cu:6
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f6510c00001 is misaligned
=========
========= ERROR SUMMARY: 1 error
"""
NEWER = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at oob_write(int *, int, int)+0xd0 in oob_demo.cu:9
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f241b0001e0 is out of bounds
=========     and is 33 bytes after the nearest allocation at 0x7f241b000000 of size 448 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main in oob_demo.cu:25 [0x8a81] in oob_demo
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to cudaFree.
========= ERROR SUMMARY: 2 errors
"""
TASK = Task(
    """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return x.tanh()
def get_inputs(): return [torch.randn(64, 64)]
def get_init_inputs(): return []
"""
)
CANDIDATE = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return x.tanh()\n"


def test_the_first_error_is_told_in_a_line() -> None:
    assert sanitizer.first_error(MANUAL) == (
        "compute-sanitizer: Invalid __global__ write of size 4 bytes; at unaligned_kernel():0x160 in memcheck_demo.cu:6; "
        "by thread (0,0,0) in block (0,0,0); Address 0x7f6510c00001 is misaligned"
    )
    error = sanitizer.first_error(NEWER)
    assert "at oob_write(int *, int, int)+0xd0 in oob_demo.cu:9" in error and error.endswith(
        "of size 448 bytes"
    )


def test_other_kinds_are_told_and_nothing_is_made_up() -> None:
    shared = MANUAL.replace("__global__ write of size 4", "__shared__ read of size 16").replace(
        "misaligned", "out of bounds"
    )
    assert "Invalid __shared__ read of size 16 bytes" in sanitizer.first_error(shared)
    freed = "========= Malloc/Free error encountered : Double free\n=========     at 0x79d8\n"
    assert sanitizer.first_error(freed) == (
        "compute-sanitizer: Malloc/Free error encountered : Double free; at 0x79d8"
    )
    for nothing in (
        "",
        "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n",
        "RuntimeError: Invalid shape\n",
    ):
        assert sanitizer.first_error(nothing) == ""


RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at library_kernel(float *)+0x10 in other.cu:3
=========     and Read access at library_kernel(float *)+0x20 in other.cu:4 [8 hazards]
=========
========= Error: Race reported between Write access at racy_kernel(const float *, float *)+0x1f0 in kernel.cu:5
=========     and Read access at racy_kernel(const float *, float *)+0x200 in kernel.cu:6 [64000 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""
UNWRITTEN = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at racy_kernel(const float *, float *)+0x100 in kernel.cu:7
=========     by thread (64,0,0) in block (8,0,0)
========= ERROR SUMMARY: 1 error
"""


def test_only_errors_in_the_candidates_own_kernels_count() -> None:
    assert sanitizer.first_error(RACE, {"racy_kernel"}) == (
        "compute-sanitizer: Error: Race reported between Write access at racy_kernel(const float *, float *)+0x1f0 "
        "in kernel.cu:5; and Read access at racy_kernel(const float *, float *)+0x200 in kernel.cu:6 [64000 hazards]"
    )
    assert "other.cu:3" in sanitizer.first_error(RACE)
    assert sanitizer.first_error(RACE, {"racy"}) == "", "a whole name"
    assert "read of size 4 bytes; at racy_kernel" in sanitizer.first_error(UNWRITTEN, {"racy_kernel"})


@pytest.mark.parametrize(
    ("status", "reason", "helps"),
    [
        (
            Status.CRASHED,
            "forward raised AcceleratorError: CUDA error: an illegal memory access was encountered",
            True,
        ),
        (Status.CRASHED, "forward raised RuntimeError: Triton Error [CUDA]: misaligned address", True),
        (Status.CRASHED, "forward raised RuntimeError: CUDA error: unspecified launch failure", True),
        (Status.CRASHED, "forward raised ValueError: illegal value", False),
        (Status.CRASHED, "calling it: the process was killed by signal 11", False),
        (Status.WRONG, "an illegal memory access", False),
        (Status.WRONG, "writes out of bounds: 4 bytes after the end of output 0 (64 bytes)", True),
    ],
)
def test_it_is_asked_where_the_gpu_stopped_a_kernel_for_its_accesses(
    status: Status, reason: str, helps: bool
) -> None:
    assert sanitizer.is_memory_fault(Verdict("c", status, reason)) == helps


def test_it_is_found_by_name_and_can_be_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.delenv("KERNELPRO_SANITIZER", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert sanitizer.find_sanitizer() == str(program)
    monkeypatch.setenv("KERNELPRO_SANITIZER", "")
    assert sanitizer.find_sanitizer() is None


def test_its_command_line_runs_the_target_on_the_bundle(tmp_path: Path) -> None:
    """The fake takes options as the manual has them: each with a value, then the program and its arguments."""
    fake = tmp_path / "compute-sanitizer"
    fake.write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do echo "$1=$2"; shift 2; done\necho "$@"\n')
    fake.chmod(0o755)
    lines = subprocess.run(
        sanitizer.command(str(fake)), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"--tool=memcheck", "--print-limit=3", "--show-backtrace=device", "--report-api-errors=no"} == set(
        lines[:-1]
    )
    assert lines[-1] == f"{sys.executable} -m kernelpro.lab.profile.profiled_program bundle.pt memcheck"


def test_it_works_in_a_cell_that_holds_the_candidate(
    worker: JobRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake, in CUDA's folder, says what a sanitizer would, if the bundle is there."""
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(f"#!/bin/sh\ntest -s bundle.pt && printf '{MANUAL}'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("KERNELPRO_SANITIZER", str(fake))
    bench = Bench(TASK, "cpu", Options(disabled_tripwires=("all",)), worker._launcher, worker._builds)
    bench.open(lambda stage: None)
    stages: list[str] = []
    try:
        error = sanitizer.locate_error(bench, Candidate(CANDIDATE), stages.append)
    finally:
        bench.close()
    assert error == sanitizer.first_error(MANUAL) and stages == [
        "locating the failed access with compute-sanitizer"
    ]
    monkeypatch.setenv("KERNELPRO_SANITIZER", "")
    assert sanitizer.locate_error(bench, Candidate(CANDIDATE), stages.append) == "", (
        "without it nothing is done"
    )


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"results": 7},
        {"results": []},
        {"results": [{"code": 0, "out": None, "err": ""}]},
        {"results": [1]},
    ],
)
def test_an_answer_that_a_candidate_forged_says_nothing(answer: dict[str, object]) -> None:
    (result,) = parse_results(answer)
    assert result.code == 1 and sanitizer.first_error(result.output) == ""


@pytest.mark.gpu
@pytest.mark.skipif(sanitizer.find_sanitizer() is None, reason="compute-sanitizer is not installed")
def test_a_real_access_is_located(worker: JobRunner) -> None:
    source = '''
import torch
from kernelpro import runtime

lib = runtime.cuda(r"""
__global__ void beyond(const float* x, float* y, int n) { int i = threadIdx.x; if (i < n) y[i + (1ll << 40)] = x[i]; }
extern "C" int go(const float* x, float* y, int n, cudaStream_t s) { beyond<<<1, 64, 0, s>>>(x, y, n); return cudaGetLastError(); }
""")

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.go(x, y, x.numel())
        return y
'''
    assert torch.cuda.is_available()
    result = worker.run(
        Job("1", "judge", TASK, Candidate(source), "cuda", Options(effort="quick"), sanitize=True)
    )
    assert result.verdict and result.verdict.status is Status.CRASHED
    assert "compute-sanitizer: Invalid __global__ write of size 4 bytes" in result.verdict.reason
    assert "beyond" in result.verdict.reason and ".cu:" in result.verdict.reason


@pytest.mark.gpu
@pytest.mark.skipif(sanitizer.find_sanitizer() is None, reason="compute-sanitizer is not installed")
def test_a_missing_barrier_and_a_read_of_unwritten_memory_are_found(worker: JobRunner) -> None:
    source = '''
import torch
from kernelpro import runtime

lib = runtime.cuda(r"""
__global__ void racy_kernel(const float* x, const float* s, float* y) {
    __shared__ float row[64];
    int j = threadIdx.x, i = blockIdx.x * 64 + j;
    row[j] = tanhf(x[i]);
    float other = row[(j + 32) % 64];
    y[i] = row[j] + 0 * other + (s[blockIdx.x] > 1e30f ? 1e-30f : 0);
}
extern "C" int go(const float* x, const float* s, float* y, cudaStream_t stream) {
    racy_kernel<<<64, 64, 0, stream>>>(x, s, y);
    return cudaGetLastError();
}
""")

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y, s = torch.empty_like(x), torch.empty(64, device=x.device)
        lib.go(x, s, y)
        return y
'''
    bench = Bench(TASK.for_target("cuda"), "cuda", Options(), worker._launcher, worker._builds)
    bench.open(lambda stage: None)
    try:
        errors = sanitizer.find_defects(bench, Candidate(source), lambda stage: None)
    finally:
        bench.close()
    assert set(errors) == {"racecheck", "initcheck"}
    assert all("racy_kernel" in error and "kernel.cu:" in error for error in errors.values())
