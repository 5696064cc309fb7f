"""Kernels that somebody wrote, matched to problems by where they lie."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelpro.records import BadInput, Candidate, Status, Verdict
from kernelpro.suites.problems import Problem

_KERNELBENCH = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")


@dataclass
class Given:
    """Kernels by (level, number) of a problem, then by sample."""

    kernels: dict[tuple[int, int], dict[int, Candidate]] = field(default_factory=dict)
    unreadable: dict[tuple[int, int], list[Verdict]] = field(default_factory=dict)
    """Files that are no text fail as those that do not compile."""
    strays: list[str] = field(default_factory=list)
    """Files that belong to no selected problem."""


def find(folder: Path, problems: Sequence[Problem], sample: int | None = None) -> Given:
    """Either KernelBench's runs (`level_1_problem_3_sample_0_kernel.py`), or files named like the tasks: `NAME.py`, or `NAME/*.py`
    for several samples in the order of their names, both also below `levelN/`. With `sample` only that one counts."""
    if not folder.is_dir():
        raise BadInput(f"--kernels {folder}: not a folder")
    given, used = Given(), set[Path]()
    runs = [
        (match, path) for path in sorted(folder.glob("*.py")) if (match := _KERNELBENCH.fullmatch(path.name))
    ]
    for problem in problems:
        place = (problem.level, problem.number)
        paths = {int(match[3]): path for match, path in runs if (int(match[1]), int(match[2])) == place}
        paths = paths or dict(enumerate(_named(folder, problem)))
        used.update(paths.values())
        for number, path in paths.items():
            if sample not in (None, number):
                continue
            try:
                given.kernels.setdefault(place, {})[number] = Candidate.from_file(path)
            except BadInput as error:
                refusal = Verdict(path.name, Status.BUILD_FAILED, str(error), task=problem.task.name)
                given.unreadable.setdefault(place, []).append(refusal)
    if not given.kernels and not given.unreadable:
        raise BadInput(f"--kernels {folder}: no file belongs to a selected problem; {_advice(folder)}")
    there = sorted(path for path in folder.rglob("*.py") if path.name != "task.py")
    given.strays = [str(path.relative_to(folder)) for path in there if path not in used]
    return given


def _named(folder: Path, problem: Problem) -> list[Path]:
    for place in (folder / f"level{problem.level}", folder):
        if (single := place / f"{problem.task.name}.py").is_file():
            return [single]
        if several := sorted(
            path for path in (place / problem.task.name).glob("*.py") if path.name != "task.py"
        ):
            return several
    return []


def _advice(folder: Path) -> str:
    runs = sorted({path.parent.name for path in folder.glob("*/*.py") if _KERNELBENCH.fullmatch(path.name)})
    if runs:
        return f"give one of: {', '.join(runs[:10])}{' ...' if len(runs) > 10 else ''}"
    return "name them like the tasks, or level_L_problem_N_sample_S_kernel.py"
