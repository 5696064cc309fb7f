"""Candidates per hour: KernelPro's judge against KernelBench's own evaluation, on the same GPU.

    python benchmarks/judge_throughput.py --kernelbench DIR --out FILE

Three columns run one after the other, so that each has the GPU and the cores to itself:

kernelbench        `eval_kernel_against_ref` of the unmodified KernelBench checkout in DIR, called as its
                   scripts/eval_from_generations.py does: a new process and an empty build directory for each
                   candidate, performance measured, every setting at the default of that script.
kernelpro          One `kernelpro worker` that gets all jobs at once, task by task, over the same files: CUDA
                   through torch's `load_inline`, and Triton. Baselines as in KernelBench: eager only.
kernelpro_runtime  The same, with the CUDA kernels called through `kernelpro.runtime`. The script checks that
                   the `__global__` code is identical.

`--kernelbench-calls N` evaluates only N candidates with KernelBench, spread over the tasks, since each CUDA
candidate takes it a minute; its rate is then that of these N. `--kernelbench-at-once M` evaluates two of them
alone, for its rate, and the others M at a time, for its verdicts.

kernelbench_kernels.py writes candidates for 25 problems of KernelBench (`--candidates`).

The figures are wall time: a KernelBench evaluation from before its process starts until after it ended; a
task's jobs from the last verdict of the previous task (for the first task: from before the worker starts).
A task's time is split over its candidates: each has the seconds that the judge reports for it, and an equal
share of the rest; the row "all" does not depend on that split. Compiler caches are empty at the start of
each column. A warm-up reads Python packages, compilers and headers once, so that no column pays for a cold
disk.

KernelBench's package imports the LLM clients `openai` and `litellm`, which an evaluation never calls. Empty
modules replace both, in KernelBench's favor: `litellm` takes seconds to import, and more without a network.
Its other imports (pydantic, requests, python-dotenv, tqdm) may be in the folder `--kernelbench-deps`, which
only that column sees; small stand-ins take the place of those that are not installed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelbench_evaluation import (
    STUBBED_CLIENTS,
    Call,
    compiler_caches,
    import_kernelbench,
    kernelbench_settings,
    language_of,
    missing_packages,
    run_kernelbench,
)
from throughput_plan import Tasks, Work, collect_tasks, finished, limit_kernelbench, plan
from throughput_table import COLUMNS, format_table, summarize

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = {
    "7.5": "Turing",
    "8.0": "Ampere",
    "8.6": "Ampere",
    "8.9": "Ada",
    "9.0": "Hopper",
    "10.0": "Blackwell",
}
"""Names of compute capabilities in KernelBench's `gpu_arch` setting, which becomes TORCH_CUDA_ARCH_LIST."""
JUDGE_TIMEOUT = 1500.0
BASELINES = ("eager_fp32", "eager_tf32")
"""As in KernelBench: eager only. torch.compile, which the judge adds by default, takes seconds per task."""


# --- KernelPro ------------------------------------------------------------------------------------


def run_judge(column: str, work: Work, caches: Path) -> Iterator[Call]:
    """Judge everything with one `kernelpro worker`: jobs in, results out, as JSON lines."""
    started = time.perf_counter()
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelpro", "worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, **compiler_caches(caches), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
    )
    watchdog = threading.Timer(JUDGE_TIMEOUT, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    try:
        assert process.stdin and process.stdout
        process.stdin.writelines(json.dumps(job) + "\n" for job in make_jobs(work))
        process.stdin.flush()
        results = (result for line in process.stdout if (result := json.loads(line))["type"] == "result")
        for task, candidates in work:  # the worker answers in the order of the jobs
            verdicts, arrivals = [], []
            for result in itertools.islice(results, len(candidates)):
                verdicts.append(result["verdict"] or {"status": "error", "reason": result["error"]})
                arrivals.append(time.perf_counter() - started)
            if len(verdicts) < len(candidates):
                raise SystemExit("the worker ended before it judged all candidates")
            yield {
                "column": column,
                "task": task.parent.name,
                "wall_s": arrivals[-1],
                "verdicts_after_s": arrivals,
                "preparation_seconds": (verdicts[0].get("measurement") or {}).get("preparation_seconds"),
                "candidates": [
                    candidate_row(candidate, verdict)
                    for candidate, verdict in zip(candidates, verdicts, strict=True)
                ],
            }
            started += arrivals[-1]
    finally:
        watchdog.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def make_jobs(work: Work) -> Iterator[dict[str, Any]]:
    """The jobs for the worker."""
    for task, candidates in work:
        description = {"source": task.read_text("utf-8"), "name": task.parent.name}
        for path in candidates:
            candidate = {"source": path.read_text("utf-8"), "name": path.name}
            yield {
                "id": f"{task.parent.name}/{path.name}",
                "kind": "judge",
                "task": description,
                "candidate": candidate,
                "target": "cuda",
                "options": {"baselines": BASELINES},
            }


def candidate_row(candidate: Path, verdict: dict[str, Any]) -> dict[str, Any]:
    """The result of one candidate, with the seconds of each stage."""
    stages = dict((verdict.get("measurement") or {}).get("seconds") or {})
    if (total := stages.pop("total", None)) is not None:
        stages["between stages"] = max(0.0, total - sum(stages.values()))
    return {
        "candidate": candidate.name,
        "language": language_of(candidate),
        "status": verdict["status"],
        "reason": verdict["reason"],
        "seconds": stages,
        "runtime_ms": ((verdict.get("times") or {}).get("candidate") or {}).get("value"),
    }


WARM_UP = """
import subprocess, sysconfig, tempfile, torch, triton, triton.language
from torch.utils.cpp_extension import CUDA_HOME, include_paths
torch.zeros(1, device="cuda")
includes = [f"-I{path}" for path in [*include_paths("cuda"), sysconfig.get_paths()["include"]]]
with tempfile.TemporaryDirectory() as folder:
    for name, text in (("a.cpp", "#include <torch/extension.h>"), ("b.cu", "#include <torch/extension.h>")):
        open(f"{folder}/{name}", "w").write(text + chr(10))
    open(f"{folder}/c.cu", "w").write("__global__ void k() {}" + chr(10))
    subprocess.run(["c++", "-std=c++20", "-E", "a.cpp", "-o", "a.i", *includes], cwd=folder, check=False)
    nvcc = f"{CUDA_HOME}/bin/nvcc"
    subprocess.run([nvcc, "-std=c++20", "-E", "b.cu", "-o", "b.i", *includes], cwd=folder, check=False)
    subprocess.run([nvcc, "-shared", "-Xcompiler", "-fPIC", "c.cu", "-o", "c.so"], cwd=folder, check=False)
"""


# --- Results -----------------------------------------------------------------------------------


def comparable_calls(calls: list[Call], tasks: Tasks, columns: list[str]) -> list[Call]:
    """The calls of tasks that all columns have finished: columns are compared over the same candidates."""
    done = finished(calls)
    complete = {
        name
        for name, (_, files) in tasks.items()
        if all((column, name, path.name) in done for column in columns for path in files[column])
    }
    return [call for call in calls if call["task"] in complete and call["column"] in columns]


def output_of(*command: str) -> str:
    """The output of a command; empty if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def hardware() -> dict[str, Any]:
    """GPU and CPU of this machine."""
    rows = output_of(
        "nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"
    ).splitlines()
    if not rows:
        raise SystemExit("no GPU found: nvidia-smi lists none")
    name, driver, capability = (part.strip() for part in rows[0].split(","))
    return {
        "gpu": name,
        "driver": driver,
        "compute_capability": capability,
        "cpu": (
            re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()) or [platform.machine()]
        )[0],
        "cores": len(os.sched_getaffinity(0)),
    }


def versions(checkout: Path) -> dict[str, Any]:
    """Versions of everything that is measured or used."""

    def installed(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    def quoted(path: Path, pattern: str) -> str | None:
        match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE) if path.exists() else None
        return match[1] if match else None

    own_git = output_of("git", "-C", str(checkout), "rev-parse", "--show-toplevel") == str(checkout)
    return {
        "python": platform.python_version(),
        "torch": installed("torch"),
        "triton": installed("triton"),
        "cuda": (re.findall(r"release ([\d.]+)", output_of("nvcc", "--version")) or [None])[0],
        "kernelpro": quoted(ROOT / "src/kernelpro/__init__.py", r'^__version__ = "(.+)"'),
        "kernelbench": quoted(checkout / "pyproject.toml", r'^version = "(.+)"'),
        "kernelbench_commit": output_of("git", "-C", str(checkout), "rev-parse", "HEAD") if own_git else None,
        "kernelbench_eval_sha256": hashlib.sha256(
            (checkout / "src/kernelbench/eval.py").read_bytes()
        ).hexdigest(),
    }


def prepare(checkout: Path, deps: Path | None, capability: str) -> None:
    """Set import paths and the target, and warm up."""
    sys.path[:0] = [str(path.resolve()) for path in (checkout / "src", deps) if path]
    os.environ["TORCH_CUDA_ARCH_LIST"] = ARCHITECTURES.get(capability, capability)
    warm = subprocess.run([sys.executable, "-c", WARM_UP], capture_output=True, text=True)
    if warm.returncode:
        raise SystemExit(f"the warm-up failed:\n{warm.stderr[-2000:]}")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        try:
            pool.apply(import_kernelbench)
        except ImportError as error:
            raise SystemExit(
                f"KernelBench does not import: {error}; install it, or give --kernelbench-deps DIR"
            ) from None


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""

    def names(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--kernelbench", type=Path, required=True, metavar="DIR", help="a checkout of KernelBench")
    add(
        "--kernelbench-deps",
        type=Path,
        metavar="DIR",
        help="packages that only the KernelBench column imports",
    )
    add(
        "--candidates",
        type=Path,
        default=Path(__file__).with_suffix(""),
        metavar="DIR",
        help="folder of TASK/task.py and candidates",
    )
    add(
        "--out",
        type=Path,
        default=Path("judge_throughput.json"),
        metavar="FILE",
        help="write all results here, as JSON",
    )
    add("--tasks", type=names, metavar="NAME,...", help="only these tasks")
    add(
        "--max-cuda",
        type=int,
        metavar="N",
        help="at most N CUDA candidates per task: KernelBench takes a minute for each",
    )
    add(
        "--columns",
        type=names,
        default=list(COLUMNS),
        metavar="NAME,...",
        help=f"only these columns of {', '.join(COLUMNS)}",
    )
    add(
        "--kernelbench-calls",
        type=int,
        metavar="N",
        help="evaluate only N candidates with KernelBench; its rate is that of these",
    )
    add(
        "--kernelbench-at-once",
        type=int,
        default=1,
        metavar="N",
        help="evaluate two candidates with KernelBench alone, for its rate, and the others N at a time",
    )
    add("--resume", action="store_true", help="continue with the results in --out")
    add(
        "--time-limit",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="start no call that would end later; continue with --resume",
    )
    options = parser.parse_args()
    if unknown := set(options.columns) - set(COLUMNS):
        parser.error(f"unknown column {', '.join(sorted(unknown))}: choose from {', '.join(COLUMNS)}")
    return options


def main() -> None:
    started = time.perf_counter()
    options = parse_arguments()
    checkout = options.kernelbench.resolve()
    settings = kernelbench_settings(checkout)
    tasks = collect_tasks(options.candidates.resolve(), options.tasks, options.max_cuda)
    candidates = sum(len(columns["kernelpro"]) for _, columns in tasks.values())
    evaluated = limit_kernelbench(tasks, options.kernelbench_calls)
    machine = hardware()
    files = {
        path
        for task, columns in tasks.values()
        for path in (task, *(candidate for group in columns.values() for candidate in group))
    }
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commands": [shlex.join(["python", *sys.argv])],
        "hardware": machine,
        "versions": versions(checkout),
        "kernelbench_settings": settings,
        "stubbed_clients": [*STUBBED_CLIENTS, *missing_packages()],
        "candidates": candidates,
        "kernelbench_calls": evaluated,
        "files": {
            f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            for path in sorted(files)
        },
        "calls": [],
    }
    if options.resume and options.out.exists():
        earlier = json.loads(options.out.read_text(encoding="utf-8"))
        if any(
            earlier[key] != report[key] for key in ("hardware", "versions", "kernelbench_settings", "files")
        ):
            raise SystemExit(
                f"{options.out} is from another machine, other versions or other files: give another --out"
            )
        report["calls"], report["commands"] = earlier["calls"], earlier["commands"] + report["commands"]
    prepare(checkout, options.kernelbench_deps, machine["compute_capability"])
    calls: list[Call] = report["calls"]
    left = 0
    with tempfile.TemporaryDirectory(prefix="judge-throughput-") as scratch:
        for column, work in list(plan(tasks, options.columns, finished(calls), options.kernelbench_at_once)):
            longest = max((call["wall_s"] for call in calls if call["column"] == column), default=0.0)
            if time.perf_counter() - started + longest > options.time_limit:
                left += sum(len(candidates) for _, candidates in work)
                continue
            caches = Path(scratch) / column
            caches.mkdir(exist_ok=True)
            if column == "kernelbench":
                pairs = [(task, candidate) for task, (candidate,) in work]
                new_calls: Iterable[Call] = run_kernelbench(pairs, settings, caches)
            else:
                new_calls = run_judge(column, work, caches)
            for call in new_calls:
                calls.append({**call, "date": datetime.now(UTC).isoformat(timespec="seconds")})
                report["summary"] = summarize(comparable_calls(calls, tasks, options.columns))
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
                outcomes = ", ".join(f"{row['candidate']} {row['status']}" for row in call["candidates"])
                print(f"{column:18} {call['task']:12} {call['wall_s']:7.1f} s  {outcomes}", flush=True)

    for call in calls:
        for row in call["candidates"]:
            if row["status"] != "passed":
                name = f"{call['column']} {call['task']}/{row['candidate']}"
                print(f"NOT PASSED: {name}: {row['status']}: {row['reason'][:500]}")
    print(f"\n{machine['gpu']}, {machine['cores']} cores; {report['date']}")
    print(f"KernelBench at its defaults: {settings}")
    print(
        f"Empty modules replace {' and '.join(STUBBED_CLIENTS)}, which KernelBench imports but does not use"
    )
    if evaluated < candidates and "kernelbench" in options.columns:
        print(f"KernelBench evaluated {evaluated} of {candidates} candidates; its rate is that of these")
    print(format_table(summarize(comparable_calls(calls, tasks, options.columns))))
    if left:
        raise SystemExit(f"\n{left} evaluations left at the time limit: continue with --resume")


if __name__ == "__main__":
    main()
