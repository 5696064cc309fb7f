"""Published kernels: each comes with its own reference, and often with the speed-up that its authors claim.

Two layouts are supported:

- a file of JSON lines, one object per kernel, as CUDA-L1 publishes them: `ref_code`, `custom_code`,
  `level_id`, `task_id`, and claimed speed-ups (`score_default` over eager, `score_torch_compile_default`);
- a folder of pairs, `NAME/ref.py` and `NAME/src.py`. The folder may have a `claimed.json` with the claimed
  speed-up over eager of each name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelpro.records import BadInput, Candidate, Mode, Precision, Target, Task
from kernelpro.records.judging import read_source
from kernelpro.suites.problems import Problem, select_problems

PREFIX = "kernels:"
_CLAIM_KEYS = {"eager": "score_default", "compile": "score_torch_compile_default"}
"""Keys of claimed speed-ups in JSON lines, by the baseline that the authors compared with."""
_KEYS_HINT = " with level_id, task_id, ref_code and custom_code"


@dataclass(frozen=True)
class PublishedKernel:
    """A kernel, the problem that it came with, and what its authors claim."""

    id: str
    """Level and number of its problem, or its name."""
    problem: Problem
    candidate: Candidate
    claimed: dict[str, float] = field(default_factory=dict)
    """Speed-ups by the baseline that the authors compared with: eager, compile."""


def is_published(suite: str) -> bool:
    """Whether a suite brings its own kernels: kernels:PATH."""
    return suite.startswith(PREFIX)


def find_published(
    suite: str,
    levels: Collection[int],
    ids: str,
    target: Target,
    mode: Mode = "train",
    precision: Precision | None = None,
) -> list[PublishedKernel]:
    """The kernels of a collection in order; `levels` and `ids` select as for any suite."""
    path = Path(suite.removeprefix(PREFIX)).expanduser()
    if path.is_dir():
        entries = _read_pairs(path)
    elif path.is_file():
        entries = _read_json_lines(path)
    else:
        raise BadInput(f"{suite}: neither a file of JSON lines nor a folder of pairs (NAME/ref.py, src.py)")
    kernels = {}
    for entry in entries:
        task = Task(entry.reference, entry.name, mode=mode, precision=precision).for_target(target)
        problem = Problem(entry.level, entry.number, task)
        kernel_id = f"{entry.level}/{entry.number}" if entry.level else entry.name
        kernels[problem.level, problem.number] = PublishedKernel(
            kernel_id, problem, Candidate(entry.kernel, entry.name), entry.claimed
        )
    if not kernels:
        raise BadInput(f"{suite}: no kernel in {path}; a kernel is a Python file with `class ModelNew`")
    selected = select_problems(suite, [kernel.problem for kernel in kernels.values()], levels, ids)
    return [kernels[problem.level, problem.number] for problem in selected]


@dataclass(frozen=True)
class _Entry:
    level: int
    number: int
    name: str
    reference: str
    kernel: str
    claimed: dict[str, float]


def _read_json_lines(path: Path) -> list[_Entry]:
    """All entries with a kernel: a collection lists problems without one, too."""
    entries = []
    lines: dict[tuple[int, int], int] = {}
    for number, line in enumerate(read_source(path, "collection").split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            item = json.loads(line)
        except ValueError:
            raise BadInput(f"{where}: not JSON; each line is one object{_KEYS_HINT}") from None
        if not isinstance(item, dict):
            raise BadInput(f"{where}: no object{_KEYS_HINT}")
        try:
            level, task, reference = int(item["level_id"]), int(item["task_id"]), item["ref_code"]
        except KeyError as error:
            raise BadInput(f"{where}: no object{_KEYS_HINT}; {error.args[0]} is missing") from None
        except (ValueError, TypeError):
            raise BadInput(f"{where}: level_id and task_id must be integers") from None
        if not isinstance(reference, str):
            raise BadInput(f"{where}: ref_code must be the reference's source, a string")
        kernel = item.get("custom_code")
        if isinstance(kernel, str) and "class ModelNew" in kernel:
            if (first := lines.setdefault((level, task), number)) != number:
                raise BadInput(
                    f"{where}: another kernel for problem {level}/{task} is in line {first}; "
                    "split the file, so that each part has one kernel per problem"
                )
            claimed = _numbers({name: item.get(key) for name, key in _CLAIM_KEYS.items()})
            entries.append(_Entry(level, task, f"{path.stem}_{level}_{task}", reference, kernel, claimed))
    return sorted(entries, key=lambda entry: (entry.level, entry.number))


def _read_pairs(folder: Path) -> list[_Entry]:
    claims: Any = {}
    if (file := folder / "claimed.json").exists():
        try:
            claims = json.loads(read_source(file, "claims"))
        except ValueError as error:
            raise BadInput(f"{file}: not JSON ({error})") from None
        if not isinstance(claims, dict):
            raise BadInput(f'{file}: no object with a speed-up for each name, like {{"softmax": 1.5}}')
    names = [
        path.parent.name for path in sorted(folder.glob("*/src.py")) if path.with_name("ref.py").exists()
    ]
    return [
        _Entry(
            0,
            number,
            name,
            read_source(folder / name / "ref.py", "task"),
            read_source(folder / name / "src.py", "candidate"),
            _numbers({"eager": claims.get(name)}),
        )
        for number, name in enumerate(names, 1)
    ]


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
