"""Candidates an hour: KernelPro's judge and KernelBench's own evaluation, over the same candidates on one GPU.

    python benchmarks/judge_throughput.py --kernelbench DIR --out FILE

Three columns, run one after the other, so that each has the GPU and the cores to itself:

kernelbench        `eval_kernel_against_ref` of the KernelBench checkout in DIR, unmodified, called as its
                   scripts/eval_from_generations.py does it: a freshly spawned process and an empty build directory
                   for each candidate, performance measured, every setting at the default read from that script.
kernelpro          `kernelpro worker`, one for the whole column, handed all jobs at once, task by task, over the very same
                   files: CUDA through torch's `load_inline`, and Triton. Baselines as KernelBench has them: eager only.
kernelpro_runtime  the same, with the CUDA kernels (`__global__` code equal to the letter, which is checked)
                   called through `kernelpro.runtime` instead.

What is counted is wall time: a KernelBench evaluation from before its process is spawned until after it is gone, a
task's jobs from the last verdict of the task before (for the first task: from before the worker is started). A task's
time is split over its candidates: each has the seconds that the judge reports for it, and an equal share of the rest;
the row "all" does not depend on that split. Compiler caches start empty in every column. Before the first measurement
Python packages, compilers and headers are read once, so that no column pays for a cold disk.

KernelBench's package imports the LLM clients `openai` and `litellm`, which an evaluation never calls; the second takes
seconds to import, and more where it cannot reach the network. Empty modules stand in for both, in KernelBench's favour:
its processes start faster than a user's would. The rest of what it imports (pydantic, requests, python-dotenv, tqdm) must
be there: installed, or in the folder `--kernelbench-deps`, which only that column sees.
"""

from __future__ import annotations

import argparse
import ast
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
    STOOD_IN,
    Call,
    compiler_caches,
    import_kernelbench,
    kernelbench_settings,
    language,
    run_kernelbench,
)
from throughput_table import COLUMNS, summarise, table

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = {
    "7.5": "Turing",
    "8.0": "Ampere",
    "8.6": "Ampere",
    "8.9": "Ada",
    "9.0": "Hopper",
    "10.0": "Blackwell",
}
"""Compute capability -> the name that KernelBench's `gpu_arch` setting takes, which torch reads from TORCH_CUDA_ARCH_LIST."""
JUDGE_TIMEOUT = 1500.0
BASELINES = ("eager_fp32", "eager_tf32")
"""KernelBench's evaluation times the eager reference; torch.compile, which the judge adds by default, takes seconds a task."""


# --- KernelPro ----------------------------------------------------------------------------------------------------


Work = list[tuple[Path, list[Path]]]
"""Tasks, each with its candidates."""


def run_judge(column: str, work: Work, caches: Path) -> Iterator[Call]:
    """One worker, handed everything at once, as a batch is: `kernelpro worker`, jobs in, verdicts out, as JSON lines."""
    began = time.perf_counter()
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
        process.stdin.writelines(json.dumps(job) + "\n" for job in jobs(work))
        process.stdin.flush()
        results = (result for line in process.stdout if (result := json.loads(line))["type"] == "result")
        for task, candidates in work:  # answered in the order of asking
            verdicts, arrivals = [], []
            for result in itertools.islice(results, len(candidates)):
                verdicts.append(result["verdict"] or {"status": "error", "reason": result["error"]})
                arrivals.append(time.perf_counter() - began)
            if len(verdicts) < len(candidates):
                raise SystemExit("the worker died")
            yield {
                "column": column,
                "task": task.parent.name,
                "wall_s": arrivals[-1],
                "verdicts_after_s": arrivals,
                "preparation_seconds": (verdicts[0].get("measurement") or {}).get("preparation_seconds"),
                "candidates": [
                    row(candidate, verdict) for candidate, verdict in zip(candidates, verdicts, strict=True)
                ],
            }
            began += arrivals[-1]
    finally:
        watchdog.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def jobs(work: Work) -> Iterator[dict[str, Any]]:
    for task, candidates in work:
        description = {"source": task.read_text("utf-8"), "name": task.parent.name}
        for path in candidates:
            candidate = {"source": path.read_text("utf-8"), "name": path.name}
            about = {
                "task": description,
                "candidate": candidate,
                "target": "cuda",
                "options": {"baselines": BASELINES},
            }
            yield {"id": f"{task.parent.name}/{path.name}", "kind": "judge", **about}


def row(candidate: Path, verdict: dict[str, Any]) -> dict[str, Any]:
    stages = dict((verdict.get("measurement") or {}).get("seconds") or {})
    if (total := stages.pop("total", None)) is not None:
        stages["between stages"] = max(0.0, total - sum(stages.values()))
    return {
        "candidate": candidate.name,
        "language": language(candidate),
        "status": verdict["status"],
        "reason": verdict["reason"],
        "seconds": stages,
        "runtime_ms": ((verdict.get("times") or {}).get("candidate") or {}).get("value"),
    }


# --- what is run --------------------------------------------------------------------------------------------------


Tasks = dict[str, tuple[Path, dict[str, list[Path]]]]
"""Name -> the task's file, and the candidates of each column."""


def collect(folder: Path, wanted: list[str] | None, most_cuda: int | None) -> Tasks:
    """All tasks, or those wanted; checks that the two forms of a CUDA kernel hold the same kernel."""
    tasks: Tasks = {}
    for task in sorted(folder.glob("*/task.py")):
        triton = sorted(task.parent.glob("triton_*.py"))
        inline = sorted(task.parent.glob("cuda_*_inline.py"))[:most_cuda]
        own = [path.with_name(path.name.replace("_inline", "_runtime")) for path in inline]
        for one, other in zip(inline, own, strict=True):
            if kernel_text(one) != kernel_text(other):
                raise SystemExit(f"{one} and {other} do not hold the same kernel")
        if wanted is None or task.parent.name in wanted:
            same = inline + triton
            tasks[task.parent.name] = (
                task,
                {"kernelbench": same, "kernelpro": same, "kernelpro_runtime": own + triton},
            )
    if unknown := set(wanted or ()) - set(tasks):
        raise SystemExit(f"no such task in {folder}: {', '.join(sorted(unknown))}")
    if not tasks:
        raise SystemExit(f"no */task.py in {folder}")
    return tasks


def kernel_text(candidate: Path) -> str:
    """The string literal bound to KERNEL."""
    for node in ast.parse(candidate.read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "KERNEL"
        ):
            return str(ast.literal_eval(node.value))
    raise SystemExit(f"{candidate}: no KERNEL = ... in it")


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
    subprocess.run([f"{CUDA_HOME}/bin/nvcc", "-std=c++20", "-E", "b.cu", "-o", "b.i", *includes], cwd=folder, check=False)
    subprocess.run([f"{CUDA_HOME}/bin/nvcc", "-shared", "-Xcompiler", "-fPIC", "c.cu", "-o", "c.so"], cwd=folder, check=False)
"""


# --- the result ---------------------------------------------------------------------------------------------------


def complete(calls: list[Call], tasks: Tasks, columns: list[str]) -> list[Call]:
    """The calls of those tasks that every column has finished: columns are compared over the same candidates only."""
    done = finished(calls)
    whole = {
        name
        for name, (_, files) in tasks.items()
        if all((c, name, path.name) in done for c in columns for path in files[c])
    }
    return [call for call in calls if call["task"] in whole and call["column"] in columns]


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def hardware() -> dict[str, Any]:
    rows = output_of(
        "nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"
    ).splitlines()
    if not rows:
        raise SystemExit("no GPU: nvidia-smi lists none")
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
    def installed(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    def quoted(path: Path, pattern: str) -> str | None:
        found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE) if path.exists() else None
        return found[1] if found else None

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


def finished(calls: list[Call]) -> set[tuple[str, str, str]]:
    return {(call["column"], call["task"], c["candidate"]) for call in calls for c in call["candidates"]}


def plan(tasks: Tasks, columns: list[str], done: set[tuple[str, str, str]]) -> Iterator[tuple[str, Work]]:
    """What to run, column by column: a judge takes everything at once, a KernelBench evaluation takes one candidate."""
    for column in (c for c in COLUMNS if c in columns):
        missing = [
            (task, [path for path in files[column] if (column, name, path.name) not in done])
            for name, (task, files) in tasks.items()
        ]
        if column == "kernelbench":
            yield from ((column, [(task, [path])]) for task, paths in missing for path in paths)
        elif work := [(task, paths) for task, paths in missing if paths]:
            yield column, work


def prepare(checkout: Path, deps: Path | None, capability: str) -> None:
    """Import paths, target and warm-up."""
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
                f"KernelBench does not import: {error}; install it, or name a folder with --kernelbench-deps"
            ) from None


def arguments() -> argparse.Namespace:
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
        help="holds <task>/task.py and so on",
    )
    add("--out", type=Path, default=Path("judge_throughput.json"), metavar="FILE")
    add("--tasks", type=names, metavar="NAME,...", help="only these")
    add(
        "--most-cuda",
        type=int,
        metavar="N",
        help="no more than N CUDA candidates a task: KernelBench takes a minute for each",
    )
    add(
        "--columns",
        type=names,
        default=list(COLUMNS),
        metavar="NAME,...",
        help=f"only these of {', '.join(COLUMNS)}",
    )
    add("--resume", action="store_true", help="go on with what --out holds, and do only what is missing")
    add(
        "--stop-after",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="begin no call that would end later",
    )
    options = parser.parse_args()
    if unknown := set(options.columns) - set(COLUMNS):
        parser.error(f"no such column: {', '.join(sorted(unknown))}; there are: {', '.join(COLUMNS)}")
    return options


def main() -> None:
    began = time.perf_counter()
    options = arguments()
    checkout = options.kernelbench.resolve()
    settings = kernelbench_settings(checkout)
    tasks = collect(options.candidates.resolve(), options.tasks, options.most_cuda)
    machine = hardware()
    files = {
        path
        for task, columns in tasks.values()
        for path in (task, *(c for group in columns.values() for c in group))
    }
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commands": [shlex.join(["python", *sys.argv])],
        "hardware": machine,
        "versions": versions(checkout),
        "kernelbench_settings": settings,
        "stood_in_for": list(STOOD_IN),
        "files": {
            f"{p.parent.name}/{p.name}": hashlib.sha256(p.read_bytes()).hexdigest()[:16]
            for p in sorted(files)
        },
        "calls": [],
    }
    if options.resume and options.out.exists():
        earlier = json.loads(options.out.read_text(encoding="utf-8"))
        if any(
            earlier[key] != report[key] for key in ("hardware", "versions", "kernelbench_settings", "files")
        ):
            raise SystemExit(
                f"{options.out} was made on another machine, with other versions or other files: begin a new one"
            )
        report["calls"], report["commands"] = earlier["calls"], earlier["commands"] + report["commands"]
    prepare(checkout, options.kernelbench_deps, machine["compute_capability"])
    calls: list[Call] = report["calls"]
    left = 0
    with tempfile.TemporaryDirectory(prefix="judge-throughput-") as scratch:
        for column, work in list(plan(tasks, options.columns, finished(calls))):
            longest = max((call["wall_s"] for call in calls if call["column"] == column), default=0.0)
            if time.perf_counter() - began + longest > options.stop_after:
                left += sum(len(candidates) for _, candidates in work)
                continue
            caches = Path(scratch) / column
            caches.mkdir(exist_ok=True)
            if column == "kernelbench":
                ((task, (candidate,)),) = work
                made: Iterable[Call] = [run_kernelbench(task, candidate, settings, caches)]
            else:
                made = run_judge(column, work, caches)
            for call in made:
                calls.append({**call, "date": datetime.now(UTC).isoformat(timespec="seconds")})
                report["summary"] = summarise(complete(calls, tasks, options.columns))
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
                outcomes = ", ".join(f"{c['candidate']} {c['status']}" for c in call["candidates"])
                print(f"{column:18} {call['task']:12} {call['wall_s']:7.1f} s  {outcomes}", flush=True)

    for call in calls:
        for c in call["candidates"]:
            if c["status"] != "passed":
                print(
                    f"NOT PASSED: {call['column']} {call['task']}/{c['candidate']}: {c['status']}: {c['reason'][:500]}"
                )
    print(
        f"\n{machine['gpu']}, {machine['cores']} cores; {report['date']}; KernelBench at its defaults: {settings}"
    )
    print(
        f"On KernelBench's side empty modules stand in for {' and '.join(STOOD_IN)}, which it imports and does not use here"
    )
    print(table(summarise(complete(calls, tasks, options.columns))))
    if left:
        raise SystemExit(f"\n{left} evaluations left when the time was up: call again with --resume")


if __name__ == "__main__":
    main()
