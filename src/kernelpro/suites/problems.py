"""The problems of a suite, in KernelBench's layout (`level1/3_name.py`) or a plain folder of tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kernelpro.records import BadInput, Mode, Precision, Target, Task

BUILTIN = Path(__file__).parent / "builtin"
T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """One task of a suite."""

    level: int
    """0 if the suite has no levels."""
    number: int
    task: Task

    @property
    def label(self) -> str:
        """Level, number and name: `1/3 softmax`."""
        name = re.sub(r"^\d+_", "", self.task.name)
        return f"{self.level}/{self.number} {name}" if self.level else f"{self.number} {name}"


def find_problems(
    suite: str,
    levels: Collection[int],
    ids: str,
    target: Target,
    mode: Mode = "train",
    precision: Precision | None = None,
) -> list[Problem]:
    """The problems of a suite in order, with the sizes for the target.

    `suite`: builtin, kernelbench:PATH or a folder. `levels`: empty for all. `ids`: numbers and ranges, of
    each level or of one (`1-20,2/33`); empty for all.
    """
    folder = _folder(suite)
    by_level = {int(path.name[5:]): path for path in folder.glob("level*") if path.name[5:].isdigit()}
    _require_levels(suite, levels, by_level)
    problems = [
        Problem(level, number, Task.from_file(path, mode, precision).for_target(target))
        for level, level_folder in (sorted(by_level.items()) if by_level else [(0, folder)])
        if not levels or level in levels
        for number, path in _number(_task_files(level_folder))
    ]
    if not problems:
        raise BadInput(
            f"{suite}: no task in {folder}; a task is a Python file with Model, get_inputs, get_init_inputs"
        )
    return select_problems(suite, problems, levels, ids)


def _require_levels(suite: str, levels: Collection[int], available: Collection[int]) -> None:
    if missing := set(levels) - set(available):
        names = ", ".join(map(str, sorted(available))) or "none"
        raise BadInput(f"--level {min(missing)}: {suite} has no such level; it has: {names}")


def select_problems(suite: str, problems: list[Problem], levels: Collection[int], ids: str) -> list[Problem]:
    """The problems of these levels and ids (empty: all); raises BadInput for a level or an id without one."""
    _require_levels(suite, levels, {problem.level for problem in problems if problem.level})
    problems = [problem for problem in problems if not levels or problem.level in levels]
    ranges = parse_ids(ids)
    for selected in ranges:
        if not any(map(selected.contains, problems)):
            raise BadInput(f"--ids {ids}: {suite} has no problem {selected.text}")
    return [p for p in problems if not ranges or any(selected.contains(p) for selected in ranges)]


def interleave(items: Sequence[T], level: Callable[[T], int]) -> list[T]:
    """Order by the relative position in the level, so that every prefix covers all levels alike."""
    by_level: dict[int, list[T]] = {}
    for item in items:
        by_level.setdefault(level(item), []).append(item)
    placed = [
        ((position + 0.5) / len(members), number, item)
        for number, members in by_level.items()
        for position, item in enumerate(members)
    ]
    return [item for *_, item in sorted(placed, key=lambda entry: entry[:2])]


def _folder(suite: str) -> Path:
    if suite == "builtin":
        return BUILTIN
    path = Path(suite.removeprefix("kernelbench:"))
    if not path.is_dir():
        raise BadInput(
            f"{suite}: neither `builtin` nor a folder; use kernelbench:PATH for a KernelBench checkout"
        )
    inner = path / "KernelBench"
    return inner if inner.is_dir() else path


def _task_files(folder: Path) -> list[Path]:
    """Task files of a folder, and `NAME/task.py` below it."""
    paths = [
        path
        for path in folder.glob("*.py")
        if "def get_inputs" in path.read_text(encoding="utf-8", errors="replace")
    ]
    return sorted(paths) + sorted(folder.glob("*/task.py"))


def _number(paths: list[Path]) -> list[tuple[int, Path]]:
    """Number files by the numbers in their names; if these are missing or not unique, by position."""
    numbers = [int(match[1]) for path in paths if (match := re.match(r"(\d+)_", path.name))]
    if len(set(numbers)) == len(paths):
        return sorted(zip(numbers, paths, strict=True))
    return list(enumerate(paths, 1))


@dataclass(frozen=True)
class ProblemRange:
    """A range of problem numbers, of one level or of all."""

    text: str
    level: int | None
    numbers: range

    def contains(self, problem: Problem) -> bool:
        """Whether a problem is in the range."""
        return problem.number in self.numbers and self.level in (None, problem.level)


def parse_ids(text: str) -> list[ProblemRange]:
    """The ranges of `1-20,33,2/5-7`."""
    ranges = []
    for part in filter(None, text.replace(" ", "").split(",")):
        match = re.fullmatch(r"(?:(\d+)/)?(\d+)(?:-(\d+))?", part)
        if not match or int(match[3] or match[2]) < int(match[2]):
            raise BadInput(
                f"--ids {text}: `{part}` is not a number or range; use for example 1-20,33 or 1/1-20,2/33"
            )
        level = int(match[1]) if match[1] else None
        ranges.append(ProblemRange(part, level, range(int(match[2]), int(match[3] or match[2]) + 1)))
    return ranges
