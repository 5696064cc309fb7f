"""Measure candidates per hour: builds beside timing against builds in between, and one worker against two.

    python benchmarks/pool_throughput.py [--target cuda] [--candidates 12] [--repeat 3] [--out FILE]

All sides judge kernels that were never built before (each source has its own number) for one prepared task,
in alternation. "one by one" submits a candidate when the previous one is judged, so that every build is
waited for. "at once" submits all of them, so that compilers run while others are timed. "two workers" (CPU
target only) does the same in a pool of two; one worker at a time measures the CPU, and compilers pause
meanwhile.

Prints a Markdown table.
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


def make_jobs(target: Target, count: int) -> list[Job]:
    """Jobs with sources that were never used before."""
    task = Task(TASK.format(size=SIZES[target]), "relu")
    texts = [(CUDA if target == "cuda" else CPP).format(number=secrets.token_hex(8)) for _ in range(count)]
    return [
        Job(f"{number}", "judge", task, Candidate(text), target, OPTIONS) for number, text in enumerate(texts)
    ]


def judge_seconds(pool: LocalPool, jobs: list[Job], at_once: bool) -> float:
    """Seconds to judge all jobs; exits if one does not pass."""
    started = time.perf_counter()
    results = (
        [future.result() for future in [pool.submit(job) for job in jobs]]
        if at_once
        else [pool.run(job) for job in jobs]
    )
    elapsed = time.perf_counter() - started
    for result in results:
        if result.verdict is None or result.verdict.status is not Status.PASSED:
            sys.exit(f"job {result.job}: {result.error or result.verdict}")
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--candidates", type=int, default=12, help="candidates per measurement")
    parser.add_argument("--repeat", type=int, default=3, help="measurements of each side")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures here, as JSON")
    arguments = parser.parse_args()
    target: Target = arguments.target
    with (
        LocalPool() as single,
        LocalPool(devices=local_devices(workers=2)) if target == "cpu" else single as pair,
    ):
        sides: dict[str, tuple[LocalPool, bool]] = {"one by one": (single, False), "at once": (single, True)}
        if target == "cpu":
            sides["two workers"] = (pair, True)
        for pool, _ in sides.values():
            judge_seconds(pool, make_jobs(target, 4), at_once=True)  # start the workers and prepare the task
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(arguments.repeat):
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                pool, at_once = sides[name]
                seconds[name].append(judge_seconds(pool, make_jobs(target, arguments.candidates), at_once))
                print(f"{name}: {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
    print_table(seconds, arguments.candidates)
    if arguments.out:
        report: dict[str, Any] = {
            "command": " ".join(sys.argv),
            "environment": environment.snapshot(target).to_json(),
            "seconds": seconds,
        }
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def print_table(seconds: dict[str, list[float]], count: int) -> None:
    """Print a Markdown table of the sides."""
    print(f"| {count} candidates | seconds | candidates per hour | ratio |")
    print("|---|---|---|---|")
    first = statistics.median(next(iter(seconds.values())))
    for name, values in seconds.items():
        median = statistics.median(values)
        cells = [name, f"{median:.1f} ({min(values):.1f} to {max(values):.1f})"]
        cells += [f"{3600 * count / median:.0f}", f"{first / median:.2f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
