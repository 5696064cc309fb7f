"""Run KernelBench's own evaluation of one candidate, as its batch script does.

A library for judge_throughput.py, not a command.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SETTINGS = (
    "num_correct_trials",
    "num_perf_trials",
    "timeout",
    "measure_performance",
    "timing_method",
    "precision",
    "build_cache",
)
STUBBED_CLIENTS = {"openai": "OpenAI", "litellm": "completion"}
"""LLM clients that KernelBench imports and an evaluation does not use, with the name it imports."""

STAND_INS = {"requests": "", "dotenv": "load_dotenv", "tqdm": "tqdm", "pydantic": "BaseModel"}
"""Packages that an evaluation imports and hardly uses, with the name it imports. A stand-in, which imports
faster, takes the place of one that is not installed."""

Call = dict[str, Any]
"""One measured call: column, task, wall_s, and the result and stage seconds of each candidate."""


def language_of(candidate: Path) -> str:
    """The language of a candidate, by the prefix of its file name."""
    return candidate.name.split("_")[0]


def compiler_caches(folder: Path) -> dict[str, str]:
    """Environment variables that move all compiler caches to a folder."""
    names = (
        "TRITON_CACHE_DIR",
        "CUDA_CACHE_PATH",
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "XDG_CACHE_HOME",
    )
    return {name: str(folder / name.lower()) for name in names}


@contextlib.contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables, and restore the previous ones afterwards."""
    previous = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(previous)


def kernelbench_settings(checkout: Path) -> dict[str, Any]:
    """The defaults of `EvalConfig` in the checkout's batch evaluation script."""
    script = checkout / "scripts" / "eval_from_generations.py"
    settings: dict[str, Any] = {}
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Assign)
            and isinstance(target := node.targets[0], ast.Attribute)
            and target.attr in SETTINGS
        ):
            with contextlib.suppress(ValueError):
                settings.setdefault(target.attr, ast.literal_eval(node.value))
    if missing := set(SETTINGS) - set(settings):
        raise SystemExit(f"{script}: no default found for {', '.join(sorted(missing))}")
    return settings


class StandInModel:
    """What KernelBench uses of pydantic's BaseModel: fields with defaults, set by the constructor."""

    def __init__(self, **values: Any):
        for name in type(self).__annotations__:
            setattr(self, name, values.get(name, copy.copy(getattr(type(self), name, None))))


def missing_packages() -> list[str]:
    """The packages of STAND_INS that are not installed."""
    return [name for name in STAND_INS if name not in sys.modules and importlib.util.find_spec(name) is None]


def stub_clients() -> None:
    """Replace the LLM clients by empty modules, and packages that are not installed by stand-ins."""
    replaced = STUBBED_CLIENTS | {name: STAND_INS[name] for name in missing_packages()}
    for name, attribute in replaced.items():
        sys.modules[name] = types.ModuleType(name)
        value = StandInModel if name == "pydantic" else (lambda *arguments, **_: next(iter(arguments), None))
        setattr(sys.modules[name], attribute, value)


def import_kernelbench() -> None:
    """Import the package; runs in a spawned process."""
    stub_clients()
    import kernelbench.eval  # noqa: F401


def evaluate_as_kernelbench(
    task: str, candidate: str, backend: str, build: str, log: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Evaluate one candidate with KernelBench; runs in a spawned process."""
    entered = time.time()
    with open(log, "w", encoding="utf-8") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    stub_clients()
    import torch
    from kernelbench import eval as kernelbench

    imported = time.time()
    try:
        result = kernelbench.eval_kernel_against_ref(
            original_model_src=task,
            custom_model_src=candidate,
            measure_performance=settings["measure_performance"],
            timing_method=settings["timing_method"],
            verbose=False,
            num_correct_trials=settings["num_correct_trials"],
            num_perf_trials=settings["num_perf_trials"],
            build_dir=build,
            device=torch.device("cuda:0"),
            backend=backend,
            precision=kernelbench.get_torch_dtype_from_string(settings["precision"]),
        )
    except Exception as error:  # as KernelBench's script: any exception is the candidate's failure
        result, reason = None, f"{type(error).__name__}: {error}"
    else:
        reason = "" if result is None else str({k: str(v)[:300] for k, v in result.metadata.items()})
    correct = bool(result and result.compiled and result.correctness and result.runtime > 0)
    return {
        "entered": entered,
        "imported": imported,
        "done": time.time(),
        "status": "passed" if correct else "failed",
        "reason": reason[-2000:],
        "runtime_ms": result.runtime if correct else None,
        "reference_ms": result.ref_runtime if correct else None,
    }


def run_kernelbench(
    candidates: list[tuple[Path, Path]], settings: dict[str, Any], caches: Path
) -> list[Call]:
    """Evaluate candidates, given as (task, candidate), at the same time: each in a process of its own with an
    empty build directory."""
    with environment(compiler_caches(caches)), ThreadPoolExecutor(len(candidates)) as threads:
        calls = [threads.submit(_evaluate, *pair, settings, caches) for pair in candidates]
        return [{**call.result(), "at_once": len(candidates)} for call in calls]


def _evaluate(task: Path, candidate: Path, settings: dict[str, Any], caches: Path) -> Call:
    backend = language_of(candidate)
    build = Path(tempfile.mkdtemp(prefix="build-", dir=caches))
    started, wall = time.time(), time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        arguments = (
            task.read_text("utf-8"),
            candidate.read_text("utf-8"),
            backend,
            str(build),
            f"{build}.log",
            settings,
        )
        try:
            outcome = pool.apply_async(evaluate_as_kernelbench, arguments).get(timeout=settings["timeout"])
        except multiprocessing.TimeoutError:
            outcome = {"status": "timed_out", "reason": f"over {settings['timeout']} s"}
    wall = time.perf_counter() - wall
    seconds = {}
    if "done" in outcome:
        entered, imported, done = (outcome.pop(key) for key in ("entered", "imported", "done"))
        seconds = {
            "start process": entered - started,
            "import": imported - entered,
            "evaluate": done - imported,
        }
    verdict = {"candidate": candidate.name, "language": backend, "seconds": seconds, **outcome}
    if verdict["status"] != "passed" and (log := Path(f"{build}.log")).exists():
        verdict["reason"] += "\n" + log.read_text(encoding="utf-8", errors="replace")[-2000:]
    return {"column": "kernelbench", "task": task.parent.name, "wall_s": wall, "candidates": [verdict]}
