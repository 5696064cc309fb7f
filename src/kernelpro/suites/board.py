"""The board of a bench: a row for each problem, a summary against each baseline, what was left out and why.

A problem with several samples counts by its best one: right before wrong, then by speed-up against the best baseline. Problems
that cannot be scored, and those whose task does not run here, are listed with the reason and are in no mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelpro.records import BASELINES, Cost, Energy, Interval, Record, Status, Verdict
from kernelpro.records.energy import TITLES, cells, portion
from kernelpro.suites.ledger import Entry
from kernelpro.suites.problems import Problem
from kernelpro.suites.statistics import Saving, Summary, savings, summarise

BEST = "best"
"""Against whichever baseline is the fastest on the problem."""
NOT_RUN = "not run"
"""The task itself could not be run here."""


@dataclass(frozen=True)
class Row(Record):
    problem: str
    task: str
    """The task's identity."""
    status: str
    """A status of the judge's, or `no kernel`."""
    reason: str = ""
    kernel: str = ""
    samples: int = 0
    ms: float | None = None
    floor_ms: float | None = None
    speedup: dict[str, Interval] = field(default_factory=dict)
    """Against each baseline and the best of them; empty unless it passed."""
    energy: Energy | None = None
    """Without the single windows, which are in the ledger; None: not asked for."""
    authored_share: float | None = None
    seconds: float = 0.0
    cost: Cost = field(default_factory=Cost)

    @property
    def metered(self) -> Energy | None:
        """Its energy, where it was told."""
        return self.energy if self.energy and not self.energy.refused else None

    @property
    def scored(self) -> bool:
        return self.status not in (Status.NOT_SCORABLE.value, NOT_RUN)


@dataclass(frozen=True)
class Board(Record):
    suite: str
    evaluated: str
    target: str
    rows: tuple[Row, ...]
    left_out: tuple[Row, ...]
    open: tuple[str, ...]
    """Problems that have not been answered yet."""
    summary: dict[str, Summary]
    seconds: float
    cost: Cost
    places: tuple[str, ...]
    """Hardware and torch; more than one: the rows cannot be compared."""
    energy: dict[str, Saving] = field(default_factory=dict)
    """By the baseline beside which it was measured; empty where none was."""


def board(
    suite: str,
    evaluated: str,
    target: str,
    problems: Sequence[Problem],
    keys: Mapping[tuple[int, int], Sequence[str]],
    entries: Mapping[str, Entry],
) -> Board:
    """`keys`: the questions of each problem; a problem without any had no kernel."""
    rows, still_open, places = [], [], set()
    for problem in problems:
        wanted = keys.get((problem.level, problem.number), ())
        found = [entries[key] for key in wanted if key in entries]
        if len(found) < len(wanted):
            still_open.append(problem.label)
            continue
        rows.append(_row(problem, found))
        places |= {_place(entry.result.verdict) for entry in found if entry.result.verdict and entry.result.verdict.environment}
    scored = [row for row in rows if row.scored]
    return Board(
        suite,
        evaluated,
        target,
        tuple(scored),
        tuple(row for row in rows if not row.scored),
        tuple(still_open),
        _summaries(scored),
        sum(row.seconds for row in rows),
        sum((row.cost for row in rows), Cost()),
        tuple(sorted(places)),
        savings([row.metered for row in scored if row.metered]),
    )


def _row(problem: Problem, entries: Sequence[Entry]) -> Row:
    seconds, cost = sum(entry.seconds for entry in entries), sum((entry.cost for entry in entries), Cost())
    row = Row(problem.label, problem.task.id, "no kernel", "nothing was handed in", "", len(entries), seconds=seconds, cost=cost)
    verdicts = [entry.result.verdict for entry in entries if entry.result.verdict]
    if not verdicts:
        for result in (entry.result for entry in entries):
            if result.error:
                return replace(row, status=NOT_RUN, reason=result.error)
            row = replace(row, reason=str((result.data or {}).get("reason", row.reason)))
        return row
    best = min(verdicts, key=_rank)
    row = replace(row, status=best.status.value, reason=best.reason, kernel=best.candidate)
    if best.status is not Status.PASSED:
        return row
    slowest = min(best.speedup.values(), key=lambda ratio: ratio.value)
    return replace(
        row,
        ms=best.times["candidate"].value,
        floor_ms=best.floor_ms,
        speedup=best.speedup | {BEST: slowest},
        energy=replace(best.energy, windows=()) if best.energy else None,
        authored_share=best.authored_share,
    )


def _rank(verdict: Verdict) -> tuple[int, float]:
    if verdict.status is Status.PASSED:
        return 0, -min(ratio.value for ratio in verdict.speedup.values())
    return (2 if verdict.status is Status.NOT_SCORABLE else 1), 0.0


def _place(verdict: Verdict) -> str:
    where = verdict.environment
    return f"{where.get('gpu') or where.get('cpu') or 'unknown'}, torch {where.get('torch', '?')}"


def _summaries(rows: Sequence[Row]) -> dict[str, Summary]:
    """Against a baseline that a right kernel was not timed against (it does not compile), that problem is left out."""
    names = [name for name in (*BASELINES, BEST) if any(name in row.speedup for row in rows)] or [BEST]
    return {name: summarise([row.speedup.get(name) for row in rows if name in row.speedup or not row.speedup]) for name in names}


# --- tables ----------------------------------------------------------------------------------------------

Table = tuple[list[str], list[list[str]]]
"""Titles, and a list of cells for each line."""


def problem_table(found: Board) -> Table:
    names = [name for name in found.summary if name != BEST or found.rows]
    metered = any(row.metered for row in found.rows)
    told = [*TITLES, "energy against"] if metered else []
    titles = ["problem", "status", "ms", *(f"x {name}" for name in names), "of floor", *told, "device s", "cost"]
    lines = []
    for row in found.rows:
        shown = f"{row.ms:.4f}" if row.ms else ""
        of_floor = f"{row.floor_ms / row.ms:.0%}" if row.ms and row.floor_ms else ""
        ratios = [interval(row.speedup.get(name)) for name in names]
        energy = [*cells(row.energy), row.metered.against if row.metered else ""] if metered else []
        lines.append([row.problem, row.status, shown, *ratios, of_floor, *energy, f"{row.seconds:.1f}", money(row.cost)])
    return titles, lines


def summary_table(found: Board) -> Table:
    first = next(iter(found.summary.values()))
    titles = ["against", "problems", "correct", "geomean", *(f"fast_{p}" for p in first.fast)]
    lines = [
        [name, str(s.problems), f"{s.correct_rate:.0%}", interval(s.geomean), *(_share(s.fast[p], s.sure[p]) for p in s.fast)]
        for name, s in found.summary.items()
    ]
    return titles, lines


def remarks(found: Board) -> list[str]:
    """What the tables do not say, a line each."""
    lines = _energies(found)
    if any(row.samples > 1 for row in found.rows):
        lines.append(f"best of up to {max(row.samples for row in found.rows)} samples a problem")
    lines.append(f"in all: {found.seconds:.0f} s of the device, {money(found.cost) or 'no tokens'}")
    lines.append(f"measured on {'; '.join(found.places) or 'nothing yet'}")
    if len(found.places) > 1:
        lines.append("NOT COMPARABLE: these rows come from different machines")
    if found.left_out:
        lines.append(f"{len(found.left_out)} left out of all means:")
        lines += [f"  {row.problem}: {row.status}: {row.reason}" for row in found.left_out]
    if found.open:
        lines.append(f"{len(found.open)} not answered yet: {_some(found.open)}")
    return lines


def _energies(found: Board) -> list[str]:
    """Means, a line for each baseline; then who has no energy, and why."""
    lines = [
        f"energy against {name}: geomean {portion(mean.energy)}, energy-delay {portion(mean.edp)} "
        f"({mean.problems} problem{'s' * (mean.problems != 1)})"
        for name, mean in found.energy.items()
    ]
    refused: dict[str, list[str]] = {}
    for row in found.rows:
        if row.energy and row.energy.refused:
            refused.setdefault(row.energy.refused, []).append(row.problem)
    return lines + [f"energy not told of {_some(names)}: {reason}" for reason, names in refused.items()]


def markdown(table: Table) -> str:
    titles, lines = table
    rows = [titles, ["---"] * len(titles), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def interval(x: Interval | None) -> str:
    return f"{x.value:.2f} [{x.low:.2f}, {x.high:.2f}]" if x else ""


def money(cost: Cost) -> str:
    tokens = cost.tokens_in + cost.tokens_out
    return f"${cost.money:.2f}, {tokens} tokens" if tokens or cost.money else ""


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:10])}{' ...' if len(names) > 10 else ''}"


def _share(likely: float, sure: float) -> str:
    return f"{likely:.2f}" if likely == sure else f"{likely:.2f} ({sure:.2f} sure)"
