"""Kernels that somebody wrote, matched to problems by where they lie."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kernelpro.records import BadInput, Candidate
from kernelpro.suites.problems import Problem

_KERNELBENCH = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")


def find(folder: Path, problems: Sequence[Problem], sample: int | None = None) -> dict[tuple[int, int], dict[int, Candidate]]:
    """By (level, number) of a problem, then by sample.

    Either KernelBench's runs (`level_1_problem_3_sample_0_kernel.py`), or files named like the tasks: `NAME.py`, or `NAME/*.py`
    for several samples in the order of their names, both also below `levelN/`. With `sample` only that one counts."""
    if not folder.is_dir():
        raise BadInput(f"--kernels {folder}: not a folder")
    found: dict[tuple[int, int], dict[int, Candidate]] = {}
    runs = [(match, path) for path in sorted(folder.glob("*.py")) if (match := _KERNELBENCH.fullmatch(path.name))]
    for problem in problems:
        place = (problem.level, problem.number)
        paths = {int(match[3]): path for match, path in runs if (int(match[1]), int(match[2])) == place}
        paths = paths or dict(enumerate(_named(folder, problem)))
        chosen = {number: path for number, path in paths.items() if sample in (None, number)}
        if chosen:
            found[place] = {number: Candidate.from_file(path) for number, path in chosen.items()}
    if not found:
        how = "name them like the tasks, or level_L_problem_N_sample_S_kernel.py"
        raise BadInput(f"--kernels {folder}: no file belongs to a selected problem; {how}")
    return found


def _named(folder: Path, problem: Problem) -> list[Path]:
    for place in (folder / f"level{problem.level}", folder):
        if (single := place / f"{problem.task.name}.py").is_file():
            return [single]
        if several := sorted(path for path in (place / problem.task.name).glob("*.py") if path.name != "task.py"):
            return several
    return []
