"""Candidates an hour: builds overlapped with timing against not, and (CPU target) one worker against two.

    python benchmarks/pool_throughput.py [--target cuda] [--candidates 12] [--repeat 3] [--out FILE]

All sides judge kernels that were never built before (each has a number of its own in its source), for one task that is warm; sides
take turns. "One by one" sends a candidate when the one before is judged, so that its
build has to be waited for; "at once" sends all of them, so that compilers run while others are timed; "two workers" does the
same in a pool of two. The CPU target is timed by one worker at a time, whoever it is, and compilers rest meanwhile.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from kernelpro.lab.measure import environment  # noqa: E402
from kernelpro.pools.local import LocalPool, local_devices  # noqa: E402
from kernelpro.records import Candidate, Job, Options, Status, Target, Task  # noqa: E402

TASK = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 1.5 + 1)


def get_inputs():
    return [torch.randn({size}, 1024)]


def get_init_inputs():
    return []
"""
SIZES: dict[Target, int] = {"cpu": 2048, "cuda": 32768}
CPP = '''
import torch
from kernelpro import runtime

lib = runtime.cpp(r"""
// {number}
extern "C" void run(const float* x, float* y, long long n) {{
#pragma omp parallel for simd schedule(static)
    for (long long i = 0; i < n; ++i) y[i] = x[i] * 1.5f + 1 > 0 ? x[i] * 1.5f + 1 : 0;
}}
""")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.run(x, y, x.numel())
        return y
'''
CUDA = '''
import torch
from kernelpro import runtime

lib = runtime.cuda(r"""
// {number}
__global__ void relu(const float4* x, float4* y, int n) {{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float4 v = x[i];
    y[i] = make_float4(fmaxf(v.x * 1.5f + 1, 0.f), fmaxf(v.y * 1.5f + 1, 0.f), fmaxf(v.z * 1.5f + 1, 0.f),
                       fmaxf(v.w * 1.5f + 1, 0.f));
}}
extern "C" int run(const float* x, float* y, int n, cudaStream_t stream) {{
    relu<<<(n / 4 + 255) / 256, 256, 0, stream>>>((const float4*)x, (float4*)y, n / 4);
    return cudaGetLastError();
}}
""")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.run(x, y, x.numel())
        return y
'''
OPTIONS = Options(effort="quick", baselines=("eager_fp32",))


def jobs(target: Target, count: int) -> list[Job]:
    """No two have the same source, ever."""
    task = Task(TASK.format(size=SIZES[target]), "relu")
    texts = [(CUDA if target == "cuda" else CPP).format(number=secrets.token_hex(8)) for _ in range(count)]
    return [
        Job(f"{number}", "judge", task, Candidate(text), target, OPTIONS) for number, text in enumerate(texts)
    ]


def seconds(pool: LocalPool, sent: list[Job], at_once: bool) -> float:
    begun = time.perf_counter()
    results = (
        [future.result() for future in [pool.submit(job) for job in sent]]
        if at_once
        else [pool.run(job) for job in sent]
    )
    passed = time.perf_counter() - begun
    for result in results:
        if result.verdict is None or result.verdict.status is not Status.PASSED:
            sys.exit(f"job {result.job}: {result.error or result.verdict}")
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--candidates", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    target: Target = chosen.target
    with LocalPool() as one, LocalPool(devices=local_devices(workers=2)) if target == "cpu" else one as two:
        sides: dict[str, tuple[LocalPool, bool]] = {"one by one": (one, False), "at once": (one, True)}
        if target == "cpu":
            sides["two workers"] = (two, True)
        for pool, _ in sides.values():
            seconds(pool, jobs(target, 4), at_once=True)  # workers start, the task becomes warm
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(chosen.repeat):
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                pool, at_once = sides[name]
                taken[name].append(seconds(pool, jobs(target, chosen.candidates), at_once))
                print(f"{name}: {taken[name][-1]:.1f} s", file=sys.stderr, flush=True)
    show(taken, chosen.candidates)
    if chosen.out:
        found: dict[str, Any] = {
            "command": " ".join(sys.argv),
            "environment": environment.snapshot(target),
            "seconds": taken,
        }
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def show(taken: dict[str, list[float]], count: int) -> None:
    print(f"| {count} candidates | seconds | candidates an hour | times the first |")
    print("|---|---|---|---|")
    first = statistics.median(next(iter(taken.values())))
    for name, values in taken.items():
        usual = statistics.median(values)
        print(
            f"| {name} | {usual:.1f} ({min(values):.1f} to {max(values):.1f}) | {3600 * count / usual:.0f} | {first / usual:.2f} |"
        )


if __name__ == "__main__":
    main()
