"""The scoreboard of a benchmark: a row for each problem, a summary against each baseline, what was excluded
and why.

A problem with several samples counts by its best one: passed before failed, then by speed-up over the hardest
baseline. Problems that cannot be scored, whose task does not run, or whose kernels were not judged because of
another failure are listed with the reason and are in no mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from kernelpro.records import (
    BASELINES,
    Cost,
    Energy,
    Interval,
    ProbeData,
    Record,
    Result,
    Status,
    Verdict,
)
from kernelpro.records.energy import ENERGY_COLUMNS, energy_cells, format_ratio
from kernelpro.suites.problems import Problem
from kernelpro.suites.results_log import LoggedResult
from kernelpro.suites.statistics import EnergySummary, Summary, summarize, summarize_energy

FILE = "scoreboard.json"
"""The scoreboard's name in the folder of a benchmark."""
BEST = "best"
"""Name of the comparison with the hardest baseline of each problem."""
NOT_RUN = "not run"
"""The task itself could not be run."""
NOT_JUDGED = "not judged"
"""A worker or a device failed, so nothing is known about the kernel."""
NO_KERNEL = "no kernel"

Table = tuple[list[str], list[list[str]]]
"""Titles, and a list of cells for each row."""


@dataclass(frozen=True)
class BenchConditions(Record):
    """How and when the benchmark was run. Results under different conditions cannot be compared."""

    effort: str = "normal"
    precision: str | None = None
    """None: the default of each task."""
    mode: str = "train"
    baselines: tuple[str, ...] = ()
    """Requested baselines; a problem lacks those that do not compile."""
    min_own_share: float = 0.0
    version: str = ""
    """The version of KernelPro."""
    date: str = ""
    """When the scoreboard was made."""

    @property
    def summary(self) -> str:
        """All conditions in one line."""
        own = f", own kernels at least {self.min_own_share:.0%}" if self.min_own_share else ""
        judging = f"effort {self.effort}, precision {self.precision or 'default'}, mode {self.mode}{own}"
        baselines = ", ".join(self.baselines) or "none"
        return f"{judging}, baselines {baselines}; KernelPro {self.version}, {self.date}"


@dataclass(frozen=True)
class ProblemResult(Record):
    """One row: the best result on a problem."""

    problem: str
    task: str
    """The id of the task."""
    status: str
    """A status of the judge, or `no kernel`, `not run`, `not judged`."""
    reason: str = ""
    kernel: str = ""
    author: str = ""
    """Who wrote the kernel, if it is the result of a search: the author or a compiler."""
    language: str = ""
    """The language of the kernel."""
    samples: int = 0
    ms: float | None = None
    floor_ms: float | None = None
    speedup: dict[str, Interval] = field(default_factory=dict)
    """Over each baseline and the hardest of them; empty unless it passed."""
    energy: Energy | None = None
    """Without the individual measurement windows, which are in the results log; None: not requested."""
    own_share: float | None = None
    seconds: float = 0.0
    """Device time."""
    cost: Cost = field(default_factory=Cost)
    precision: str = ""
    """The precision it was judged with."""
    no_gain: str = ""
    """See `LoggedResult.no_gain`."""

    @property
    def measured_energy(self) -> Energy | None:
        """Its energy, if it was measured."""
        return self.energy if self.energy and not self.energy.unavailable else None

    @property
    def is_scored(self) -> bool:
        """Whether the problem counts in the means."""
        return self.status not in (Status.NOT_SCORABLE.value, NOT_RUN, NOT_JUDGED)


@dataclass(frozen=True)
class Scoreboard(Record):
    """All results of a benchmark."""

    suite: str
    evaluated: str
    """What was evaluated: kernels, a model or an author."""
    target: str
    rows: tuple[ProblemResult, ...]
    excluded: tuple[ProblemResult, ...]
    """Problems that count in no mean."""
    pending: tuple[str, ...]
    """Problems without a result yet."""
    summary: dict[str, Summary]
    """By baseline."""
    seconds: float
    """Device time."""
    cost: Cost
    machines: tuple[str, ...]
    """Hardware and torch version. With more than one, the rows cannot be compared."""
    energy: dict[str, EnergySummary] = field(default_factory=dict)
    """By the baseline it was measured against; empty if energy was not measured."""
    conditions: BenchConditions = BenchConditions()
    seconds_by_use: dict[str, float] = field(default_factory=dict)
    """Median device time of a problem by what it was used for; empty without a search."""


def make_scoreboard(
    suite: str,
    evaluated: str,
    target: str,
    problems: Sequence[Problem],
    keys: Mapping[tuple[int, int], Sequence[str]],
    results: Mapping[str, LoggedResult],
    conditions: BenchConditions,
) -> Scoreboard:
    """The scoreboard of these problems. `keys`: the jobs of each problem, by level and number; the result of
    a probe decides whether a problem without a kernel counts."""
    rows: list[ProblemResult] = []
    pending: list[str] = []
    machines: set[str] = set()
    for problem in problems:
        job_keys = keys.get((problem.level, problem.number), ())
        available = [results[key] for key in job_keys if key in results]
        if len(available) < len(job_keys):
            pending.append(problem.label)
            continue
        rows.append(_summarize_problem(problem, available))
        machines |= {", torch ".join(machine) for item in available if (machine := machine_of(item.result))}
    scored = [row for row in rows if row.is_scored]
    searches = [
        r.seconds_by_use for ks in keys.values() for k in ks if (r := results.get(k)) and r.seconds_by_use
    ]
    uses = dict.fromkeys(use for search in searches for use in search)
    return Scoreboard(
        suite,
        evaluated,
        target,
        tuple(scored),
        tuple(row for row in rows if not row.is_scored),
        tuple(pending),
        _summaries(scored),
        sum(row.seconds for row in rows),
        sum((row.cost for row in rows), Cost()),
        tuple(sorted(machines)),
        summarize_energy([row.measured_energy for row in scored if row.measured_energy]),
        conditions,
        {use: median(search.get(use, 0.0) for search in searches) for use in uses},
    )


def _summarize_problem(problem: Problem, results: Sequence[LoggedResult]) -> ProblemResult:
    row = ProblemResult(
        problem.label,
        problem.task.id,
        NO_KERNEL,
        "no kernel was given",
        samples=sum(not _is_probe(item) and item.result.error is None for item in results),
        seconds=sum(item.seconds for item in results),
        cost=sum((item.cost for item in results), Cost()),
    )
    verdicts = [item.result.verdict for item in results if item.result.verdict and not item.failure]
    best = min(verdicts, key=_rank, default=None)
    failed = next((item for item in results if item.should_retry), None)
    if failed and (best is None or best.status not in (Status.PASSED, Status.NOT_SCORABLE)):
        # the kernel that could not be judged might have been the best one
        status = NOT_JUDGED if failed.failure else NOT_RUN
        return replace(row, status=status, reason=failed.failure or failed.result.error or "")
    for item in results:
        data = item.result.data
        if isinstance(data, ProbeData) and not data.scorable:
            return replace(row, status=Status.NOT_SCORABLE.value, reason=data.reason)
        row = replace(row, reason=item.reason or row.reason, author=item.author, no_gain=item.no_gain)
    if best is None:
        return row
    precision = best.environment.precision
    row = replace(
        row, status=best.status.value, reason=best.reason, kernel=best.candidate, precision=precision
    )
    if best.status is not Status.PASSED:
        return row
    return replace(
        row,
        language=best.language,
        ms=best.times["candidate"].value,
        floor_ms=best.floor_ms,
        speedup=best.speedup | {BEST: min(best.speedup.values(), key=lambda ratio: ratio.value)},
        energy=replace(best.energy, windows=()) if best.energy else None,
        own_share=best.own_share,
    )


def _rank(verdict: Verdict) -> tuple[int, float]:
    if verdict.status is Status.PASSED:
        return 0, -min(ratio.value for ratio in verdict.speedup.values())
    return (2 if verdict.status is Status.NOT_SCORABLE else 1), 0.0


def _is_probe(item: LoggedResult) -> bool:
    return isinstance(item.result.data, ProbeData)


def machine_of(result: Result) -> tuple[str, str] | None:
    """Hardware and torch version of a result; None if the result does not contain them."""
    if result.verdict and (environment := result.verdict.environment).torch:
        return environment.device or "unknown", environment.torch
    if isinstance(result.data, ProbeData):
        return result.data.hardware.name, result.data.hardware.facts.get("torch", "?")
    return None


def describe_machines(machines: Sequence[str]) -> list[str]:
    """Where the results come from, with a warning if they come from different machines."""
    lines = [f"measured on {'; '.join(machines) or 'nothing yet'}"]
    return [*lines, "NOT COMPARABLE: these rows come from different machines"] if len(machines) > 1 else lines


def _summaries(rows: Sequence[ProblemResult]) -> dict[str, Summary]:
    """By baseline. A passed kernel counts only against baselines that it was timed against."""
    names = [name for name in (*BASELINES, BEST) if any(name in row.speedup for row in rows)] or [BEST]
    return {
        name: summarize([row.speedup.get(name) for row in rows if name in row.speedup or not row.speedup])
        for name in names
    }


# --- tables ----------------------------------------------------------------------------------------------


def problem_table(board: Scoreboard) -> Table:
    """A row for each scored problem."""
    baselines = [name for name in board.summary if name != BEST or board.rows]
    optional = {
        "author": any(row.author for row in board.rows),
        "language": any(row.author and row.language for row in board.rows),
        "energy": any(row.measured_energy for row in board.rows),
    }
    titles = [
        "problem",
        "status",
        *(["author"] if optional["author"] else []),
        *(["language"] if optional["language"] else []),
        "ms",
        *(f"x {name}" for name in baselines),
        "of floor",
        *([*ENERGY_COLUMNS, "energy against"] if optional["energy"] else []),
        "device s",
        "cost",
    ]
    rows = []
    for row in board.rows:
        energy = [*energy_cells(row.energy), row.measured_energy.baseline if row.measured_energy else ""]
        rows.append(
            [
                row.problem,
                row.status,
                *([row.author] if optional["author"] else []),
                *([row.language] if optional["language"] else []),
                f"{row.ms:.4g}" if row.ms else "",
                *(format_interval(row.speedup.get(name)) for name in baselines),
                f"{row.floor_ms / row.ms:.0%}" if row.ms and row.floor_ms else "",
                *(energy if optional["energy"] else []),
                f"{row.seconds:.1f}",
                format_cost(row.cost),
            ]
        )
    return titles, rows


def summary_table(board: Scoreboard) -> Table:
    """A row for each baseline."""
    first = next(iter(board.summary.values()))
    titles = ["against", "problems", "correct", "geomean", *(f"fast_{p}" for p in first.fast)]
    rows = [
        [
            name,
            str(summary.problems),
            f"{summary.correct_rate:.0%}",
            format_interval(summary.geomean),
            *(_format_share(summary.fast[p], summary.surely_fast[p]) for p in summary.fast),
        ]
        for name, summary in board.summary.items()
    ]
    return titles, rows


def remarks(board: Scoreboard) -> list[str]:
    """What the tables do not show, one line each."""
    lines = _energy_remarks(board)
    winners = [row for row in board.rows if row.author and row.speedup]
    for what, names in (
        ("winners", Counter(f"by {row.author}" for row in winners)),
        ("languages of the winners", Counter(row.language for row in winners if row.language)),
    ):
        if names:
            lines.append(f"{what}: {', '.join(f'{count} {name}' for name, count in names.most_common())}")
    for reason, count in Counter(row.no_gain for row in board.rows if row.no_gain).most_common():
        problems = [row.problem for row in board.rows if row.no_gain == reason]
        lines.append(f"{reason}: {count} problem{'s' * (count != 1)} ({first_names(problems)})")
    if any(row.samples > 1 for row in board.rows):
        lines.append(f"best of up to {max(row.samples for row in board.rows)} samples per problem")
    lines.append(f"total: {board.seconds:.0f} s of device time, {format_cost(board.cost) or 'no tokens'}")
    if board.seconds_by_use:
        parts = ", ".join(f"{use} {seconds:.1f} s" for use, seconds in board.seconds_by_use.items())
        lines.append(f"device time of a problem by use (medians): {parts}")
    lines += [board.conditions.summary, *describe_machines(board.machines)]
    if board.excluded:
        failed = sum(row.status in (NOT_RUN, NOT_JUDGED) for row in board.excluded)
        detail = f", {failed} of them because they could not be run or judged" if failed else ""
        lines.append(f"{len(board.excluded)} excluded from all means{detail}:")
        lines += [f"  {row.problem}: {row.status}: {row.reason}" for row in board.excluded]
    if board.pending:
        lines.append(f"{len(board.pending)} without a result yet: {first_names(board.pending)}")
    return lines


def _energy_remarks(board: Scoreboard) -> list[str]:
    """Means by baseline, then the problems without energy and why."""
    lines = [
        f"energy against {name}: geomean {format_ratio(mean.energy)}, energy-delay {format_ratio(mean.edp)} "
        f"({mean.problems} problem{'s' * (mean.problems != 1)})"
        for name, mean in board.energy.items()
    ]
    missing: dict[str, list[str]] = {}
    for row in board.rows:
        if row.energy and row.energy.unavailable:
            missing.setdefault(row.energy.unavailable, []).append(row.problem)
    return lines + [
        f"energy not measured for {first_names(names)}: {reason}" for reason, names in missing.items()
    ]


def markdown(table: Table) -> str:
    """A table in Markdown."""
    titles, rows = table
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def format_interval(x: Interval | None) -> str:
    """A ratio with its interval; empty for None."""
    return x.format() if x else ""


def format_cost(cost: Cost) -> str:
    """Dollars and tokens; empty for none."""
    tokens = cost.tokens_in + cost.tokens_out
    return f"${cost.dollars:.2f}, {tokens} tokens" if tokens or cost.dollars else ""


def first_names(names: Sequence[str]) -> str:
    """The first ten names."""
    return f"{', '.join(names[:10])}{' ...' if len(names) > 10 else ''}"


def _format_share(share: float, certain: float) -> str:
    return f"{share:.2f}" if share == certain else f"{share:.2f} ({certain:.2f} certain)"
