"""What the judge's probe says of each problem: can it be scored, and if not, why?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelpro.records import Interval, Record
from kernelpro.suites.board import NOT_RUN, Table, measured_on, places_in_words
from kernelpro.suites.ledger import Entry
from kernelpro.suites.problems import Problem


@dataclass(frozen=True)
class Probed(Record):
    problem: str
    task: str
    """The task's identity."""
    scorable: bool | None = None
    """None: not answered yet, or the task does not run here."""
    reason: str = ""
    precision: str = ""
    baselines: dict[str, Interval] = field(default_factory=dict)
    """Milliseconds."""
    floor_ms: float | None = None
    not_used: dict[str, str] = field(default_factory=dict)
    """Input distributions that the task cannot bear, and why."""
    hardware: str = ""
    """What it was measured on."""
    torch: str = ""
    seconds: float = 0.0
    """For which it held the device."""

    @property
    def place(self) -> str:
        return f"{self.hardware}, torch {self.torch}" if self.hardware else ""


def probed(
    problems: Sequence[Problem], keys: Mapping[tuple[int, int], Sequence[str]], entries: Mapping[str, Entry]
) -> list[Probed]:
    found = []
    for problem in problems:
        (key,) = keys[problem.level, problem.number]
        if key not in entries:
            found.append(Probed(problem.label, problem.task.id, reason="not answered yet"))
            continue
        result, seconds = entries[key].result, entries[key].seconds
        if result.error is not None or result.data is None:
            found.append(
                Probed(problem.label, problem.task.id, reason=f"{NOT_RUN}: {result.error}", seconds=seconds)
            )
        else:
            hardware, torch = measured_on(result) or ("", "")
            data = {**result.data, "reason": result.data["reason"] or "", "not_used": result.data["dropped"]}
            data |= {
                "problem": problem.label,
                "task": problem.task.id,
                "hardware": hardware,
                "torch": torch,
                "seconds": seconds,
            }
            found.append(Probed.from_json(data))
    return found


def table(rows: Sequence[Probed]) -> Table:
    mixed = len(_places(rows)) > 1
    titles = [
        "problem",
        "scorable",
        "precision",
        "baselines, ms",
        "floor, ms",
        *(["measured on"] if mixed else []),
        "why not",
    ]
    words = {True: "yes", False: "no", None: "?"}
    lines = []
    for row in rows:
        times = ", ".join(f"{name} {time.value:.3f}" for name, time in row.baselines.items())
        floor = f"{row.floor_ms:.4f}" if row.floor_ms else ""
        place = [row.place] if mixed else []
        lines.append([row.problem, words[row.scorable], row.precision, times, floor, *place, row.reason])
    return titles, lines


def remarks(rows: Sequence[Probed]) -> list[str]:
    count = {state: sum(row.scorable is state for row in rows) for state in (True, False, None)}
    return [
        f"{len(rows)} problems: {count[True]} can be scored, {count[False]} cannot, {count[None]} not run or not answered",
        f"in all: {sum(row.seconds for row in rows):.0f} s of the device",
        *places_in_words(_places(rows)),
    ]


def _places(rows: Sequence[Probed]) -> list[str]:
    return sorted({row.place for row in rows if row.place})
