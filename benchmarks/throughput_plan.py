"""Which candidates are measured, and in which order.

A library for judge_throughput.py, not a command.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from kernelbench_evaluation import Call
from throughput_table import COLUMNS

Work = list[tuple[Path, list[Path]]]
"""Tasks with their candidates."""
Tasks = dict[str, tuple[Path, dict[str, list[Path]]]]
"""By name: the task's file, and the candidates of each column."""


def collect_tasks(folder: Path, names: list[str] | None, max_cuda: int | None) -> Tasks:
    """Find the tasks (all, or these); checks that both forms of a CUDA candidate contain the same kernel."""
    tasks: Tasks = {}
    for task in sorted(folder.glob("*/task.py")):
        triton = sorted(task.parent.glob("triton_*.py"))
        inline = sorted(task.parent.glob("cuda_*_inline.py"))[:max_cuda]
        runtime = [path.with_name(path.name.replace("_inline", "_runtime")) for path in inline]
        for first, second in zip(inline, runtime, strict=True):
            if kernel_text(first) != kernel_text(second):
                raise SystemExit(f"{first} and {second} do not contain the same kernel")
        if names is None or task.parent.name in names:
            files = inline + triton
            tasks[task.parent.name] = (
                task,
                {"kernelbench": files, "kernelpro": files, "kernelpro_runtime": runtime + triton},
            )
    if unknown := set(names or ()) - set(tasks):
        raise SystemExit(f"unknown task {', '.join(sorted(unknown))}: see {folder}")
    if not tasks:
        raise SystemExit(f"no */task.py in {folder}")
    return tasks


def limit_kernelbench(tasks: Tasks, count: int | None) -> int:
    """Leave KernelBench `count` candidates (None: all), spread evenly; returns how many it gets."""
    files = [path for _, columns in tasks.values() for path in columns["kernelbench"]]
    kept = set(files if count is None else [files[i * len(files) // count] for i in range(count)])
    for _, columns in tasks.values():
        columns["kernelbench"] = [path for path in columns["kernelbench"] if path in kept]
    return len(kept)


def kernel_text(candidate: Path) -> str:
    """The string that the candidate assigns to KERNEL."""
    for node in ast.parse(candidate.read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "KERNEL"
        ):
            return str(ast.literal_eval(node.value))
    raise SystemExit(f"{candidate}: no assignment KERNEL = ...")


def finished(calls: list[Call]) -> set[tuple[str, str, str]]:
    """Column, task and candidate of everything that was measured."""
    return {
        (call["column"], call["task"], candidate["candidate"])
        for call in calls
        for candidate in call["candidates"]
    }


def plan(
    tasks: Tasks, columns: list[str], done: set[tuple[str, str, str]], at_once: int
) -> Iterator[tuple[str, Work]]:
    """What to run, by column: the judge gets everything at once, KernelBench a few candidates per call."""
    for column in (name for name in COLUMNS if name in columns):
        missing = [
            (task, [path for path in files[column] if (column, name, path.name) not in done])
            for name, (task, files) in tasks.items()
        ]
        if column == "kernelbench":
            yield from ((column, group) for group in _groups(missing, at_once))
        elif work := [(task, paths) for task, paths in missing if paths]:
            yield column, work


def _groups(missing: Work, at_once: int) -> Iterator[Work]:
    """Candidates that KernelBench evaluates together: first two alone, one of each half, then groups."""
    single = [(task, [path]) for task, paths in missing for path in paths]
    if at_once > 1 and len(single) > 1:
        for position in (len(single) * 3 // 4, len(single) // 4):
            yield [single.pop(position)]
    yield from (single[first : first + at_once] for first in range(0, len(single), at_once))
