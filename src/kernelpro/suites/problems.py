"""The problems of a suite: KernelBench's layout (`level1/3_name.py`) or a plain folder of tasks."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from kernelpro.records import BadInput, Mode, Precision, Target, Task

OWN = Path(__file__).parent / "own"


@dataclass(frozen=True)
class Problem:
    level: int
    """0 where the suite has no levels."""
    number: int
    task: Task

    @property
    def label(self) -> str:
        name = re.sub(r"^\d+_", "", self.task.name)
        return f"{self.level}/{self.number} {name}" if self.level else f"{self.number} {name}"


def find(
    suite: str,
    levels: Collection[int],
    ids: str,
    target: Target,
    mode: Mode = "train",
    precision: Precision | None = None,
) -> list[Problem]:
    """The problems of `own`, of a KernelBench checkout or of a folder, at the size meant for the target, in order.

    `levels` empty: all there are. `ids`: numbers and ranges, in each level or in one (`1-20,2/33`); empty: all."""
    folder = _folder(suite)
    by_level = {int(path.name[5:]): path for path in folder.glob("level*") if path.name[5:].isdigit()}
    if missing := set(levels) - set(by_level):
        there = ", ".join(map(str, sorted(by_level))) or "none"
        raise BadInput(f"--level {min(missing)}: {suite} has no such level; there are: {there}")
    wanted = numbered(ids)
    found = []
    for level, place in sorted(by_level.items()) if by_level else [(0, folder)]:
        if not levels or level in levels:
            paths = _numbered(_tasks(place))
            found += [
                Problem(level, n, Task.from_file(path, mode, precision).for_target(target))
                for n, path in paths
            ]
    if not found:
        raise BadInput(
            f"{suite}: no task in {folder}; a task is a Python file with Model, get_inputs and get_init_inputs"
        )
    for some in wanted:
        if not any(map(some.holds, found)):
            raise BadInput(f"--ids {ids}: {suite} has no problem {some.text}")
    return [problem for problem in found if not wanted or any(some.holds(problem) for some in wanted)]


def _folder(suite: str) -> Path:
    if suite == "own":
        return OWN
    given = Path(suite)
    if not given.is_dir():
        raise BadInput(f"{suite}: neither `own` nor a folder (a KernelBench checkout, or task files)")
    inner = given / "KernelBench"
    return inner if inner.is_dir() else given


def _tasks(folder: Path) -> list[Path]:
    """Task files of a folder, and `NAME/task.py` below it."""
    paths = [
        path
        for path in folder.glob("*.py")
        if "def get_inputs" in path.read_text(encoding="utf-8", errors="replace")
    ]
    return sorted(paths) + sorted(folder.glob("*/task.py"))


def _numbered(paths: list[Path]) -> list[tuple[int, Path]]:
    """By the number in front of each name; where not all have one of their own, by place."""
    numbers = [int(found[1]) for path in paths if (found := re.match(r"(\d+)_", path.name))]
    if len(set(numbers)) == len(paths):
        return sorted(zip(numbers, paths, strict=True))
    return list(enumerate(paths, 1))


@dataclass(frozen=True)
class Some:
    """A number or a range of them, of one level or of all."""

    text: str
    level: int | None
    numbers: range

    def holds(self, problem: Problem) -> bool:
        return problem.number in self.numbers and self.level in (None, problem.level)


def numbered(text: str) -> list[Some]:
    """`1-20,33,2/5-7` part by part."""
    found = []
    for part in filter(None, text.replace(" ", "").split(",")):
        match = re.fullmatch(r"(?:(\d+)/)?(\d+)(?:-(\d+))?", part)
        if not match or int(match[3] or match[2]) < int(match[2]):
            raise BadInput(
                f"--ids {text}: `{part}` is neither a number nor a range; say for example 1-20,33 or 1/1-20,2/33"
            )
        level = int(match[1]) if match[1] else None
        found.append(Some(part, level, range(int(match[2]), int(match[3] or match[2]) + 1)))
    return found
