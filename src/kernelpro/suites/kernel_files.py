"""Kernel files, matched to problems by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelpro.records import BadInput, Candidate, Status, Verdict
from kernelpro.suites.problems import Problem

_KERNELBENCH = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")


@dataclass
class KernelFiles:
    """The kernels of a folder, by level and number of the problem."""

    kernels: dict[tuple[int, int], dict[int, Candidate]] = field(default_factory=dict)
    """By sample."""
    unreadable: dict[tuple[int, int], list[Verdict]] = field(default_factory=dict)
    """Verdicts on files that are not text: they fail like files that do not compile."""
    unmatched: list[str] = field(default_factory=list)
    """Files that belong to no selected problem."""


def find_kernels(folder: Path, problems: Sequence[Problem], sample: int | None = None) -> KernelFiles:
    """Find the kernels of all problems; with `sample`, only that sample of each.

    Two layouts: a KernelBench run (`level_1_problem_3_sample_0_kernel.py`), or files named like the tasks:
    `NAME.py`, or `NAME/*.py` for several samples, ordered by name. Both may be in folders `levelN`.
    """
    if not folder.is_dir():
        raise BadInput(f"--kernels {folder}: not a folder")
    files, used = KernelFiles(), set[Path]()
    samples = [
        (match, path) for path in sorted(folder.glob("*.py")) if (match := _KERNELBENCH.fullmatch(path.name))
    ]
    for problem in problems:
        id = (problem.level, problem.number)
        paths = {int(match[3]): path for match, path in samples if (int(match[1]), int(match[2])) == id}
        paths = paths or dict(enumerate(_paths_by_name(folder, problem)))
        used.update(paths.values())
        for number, path in paths.items():
            if sample not in (None, number):
                continue
            try:
                files.kernels.setdefault(id, {})[number] = Candidate.from_file(path)
            except BadInput as error:
                verdict = Verdict(path.name, Status.BUILD_FAILED, str(error), task=problem.task.name)
                files.unreadable.setdefault(id, []).append(verdict)
    if not files.kernels and not files.unreadable:
        raise BadInput(f"--kernels {folder}: no file belongs to a selected problem; {_naming_hint(folder)}")
    others = sorted(path for path in folder.rglob("*.py") if path.name != "task.py" and path not in used)
    files.unmatched = [str(path.relative_to(folder)) for path in others]
    return files


def _paths_by_name(folder: Path, problem: Problem) -> list[Path]:
    for parent in (folder / f"level{problem.level}", folder):
        if (single := parent / f"{problem.task.name}.py").is_file():
            return [single]
        paths = sorted((parent / problem.task.name).glob("*.py"))
        if samples := [path for path in paths if path.name != "task.py"]:
            return samples
    return []


def _naming_hint(folder: Path) -> str:
    runs = sorted({path.parent.name for path in folder.glob("*/*.py") if _KERNELBENCH.fullmatch(path.name)})
    if runs:
        return f"give one of its folders: {', '.join(runs[:10])}{' ...' if len(runs) > 10 else ''}"
    return "name them like the tasks, or level_L_problem_N_sample_S_kernel.py"
