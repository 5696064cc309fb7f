"""What the judge's probe reports for each problem: whether it can be scored, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelpro.records import Interval, ProbeData, Record
from kernelpro.suites.problems import Problem
from kernelpro.suites.results_log import LoggedResult
from kernelpro.suites.scoreboard import NOT_RUN, Table, describe_machines, machine_of


@dataclass(frozen=True)
class ProbeRow(Record):
    """The result of a probe."""

    problem: str
    task: str
    """The id of the task."""
    scorable: bool | None = None
    """None: no result yet, or the task does not run."""
    reason: str = ""
    precision: str = ""
    baselines: dict[str, Interval] = field(default_factory=dict)
    """Milliseconds."""
    floor_ms: float | None = None
    dropped_inputs: dict[str, str] = field(default_factory=dict)
    """Input distributions on which the reference gives no usable output, and why."""
    hardware: str = ""
    torch: str = ""
    seconds: float = 0.0
    """Device time."""

    @property
    def machine(self) -> str:
        """Hardware and torch version."""
        return f"{self.hardware}, torch {self.torch}" if self.hardware else ""


def probe_rows(
    problems: Sequence[Problem],
    keys: Mapping[tuple[int, int], Sequence[str]],
    results: Mapping[str, LoggedResult],
) -> list[ProbeRow]:
    """A row for each problem."""
    return [_row(problem, results.get(keys[problem.level, problem.number][0])) for problem in problems]


def _row(problem: Problem, item: LoggedResult | None) -> ProbeRow:
    if item is None:
        return ProbeRow(problem.label, problem.task.id, reason="no result yet")
    data = item.result.data
    if not isinstance(data, ProbeData):
        reason = f"{NOT_RUN}: {item.result.error}"
        return ProbeRow(problem.label, problem.task.id, reason=reason, seconds=item.seconds)
    hardware, torch = machine_of(item.result) or ("", "")
    return ProbeRow(
        problem.label,
        problem.task.id,
        data.scorable,
        data.reason,
        data.precision,
        data.baselines,
        data.floor_ms,
        data.dropped,
        hardware,
        torch,
        item.seconds,
    )


def table(rows: Sequence[ProbeRow]) -> Table:
    """All rows as a table."""
    has_several = len(_machines(rows)) > 1
    machine = ["measured on"] if has_several else []
    titles = ["problem", "scorable", "precision", "baselines, ms", "floor, ms", *machine, "why not"]
    answers = {True: "yes", False: "no", None: "?"}
    lines = []
    for row in rows:
        times = ", ".join(f"{name} {time.value:.3f}" for name, time in row.baselines.items())
        floor = f"{row.floor_ms:.4f}" if row.floor_ms else ""
        machine = [row.machine] if has_several else []
        lines.append([row.problem, answers[row.scorable], row.precision, times, floor, *machine, row.reason])
    return titles, lines


def remarks(rows: Sequence[ProbeRow]) -> list[str]:
    """What the table does not show, one line each."""
    yes, no, unknown = (sum(row.scorable is state for row in rows) for state in (True, False, None))
    return [
        f"{len(rows)} problems: {yes} can be scored, {no} cannot, {unknown} not run or without a result yet",
        f"total: {sum(row.seconds for row in rows):.0f} s of device time",
        *describe_machines(_machines(rows)),
    ]


def _machines(rows: Sequence[ProbeRow]) -> list[str]:
    return sorted({row.machine for row in rows if row.machine})
