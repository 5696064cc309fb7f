"""The board of a bench: a row for each problem, a summary against each baseline, what was left out and why.

A problem with several samples counts by its best one: right before wrong, then by speed-up against the best baseline. Problems
that cannot be scored, those whose task does not run here, and those whose kernels were not judged because something else failed
are listed with the reason and are in no mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelpro.records import BASELINES, Cost, Energy, Interval, Record, Result, Status, Verdict
from kernelpro.records.energy import TITLES, cells, portion
from kernelpro.suites.ledger import Entry
from kernelpro.suites.problems import Problem
from kernelpro.suites.statistics import Saving, Summary, savings, summarise

BEST = "best"
"""Against whichever baseline is the fastest on the problem."""
NOT_RUN = "not run"
"""The task itself could not be run here."""
NOT_JUDGED = "not judged"
"""A worker or a device failed on the way: nothing is known of the kernel."""
NO_KERNEL = "no kernel"


@dataclass(frozen=True)
class Terms(Record):
    """How it was asked for, and when: what differs in this cannot be compared."""

    effort: str = "normal"
    precision: str | None = None
    """None: the usual one of each task."""
    mode: str = "train"
    baselines: tuple[str, ...] = ()
    """Asked for; where one does not compile, the problem has none."""
    min_authored: float = 0.0
    version: str = ""
    """KernelPro's."""
    date: str = ""
    """When this was put together."""

    @property
    def words(self) -> str:
        authored = f", own kernels at least {self.min_authored:.0%}" if self.min_authored else ""
        asked = f"effort {self.effort}, precision {self.precision or 'as usual'}, mode {self.mode}{authored}"
        return (
            f"{asked}, baselines {', '.join(self.baselines) or 'none'}; KernelPro {self.version}, {self.date}"
        )


@dataclass(frozen=True)
class Row(Record):
    problem: str
    task: str
    """The task's identity."""
    status: str
    """A status of the judge's, or `no kernel`, `not run`, `not judged`."""
    reason: str = ""
    kernel: str = ""
    by: str = ""
    """Who wrote it, where that is known: of a search, the author or a compiler."""
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
    precision: str = ""
    """Which it was judged with."""

    @property
    def metered(self) -> Energy | None:
        """Its energy, where it was told."""
        return self.energy if self.energy and not self.energy.refused else None

    @property
    def scored(self) -> bool:
        return self.status not in (Status.NOT_SCORABLE.value, NOT_RUN, NOT_JUDGED)


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
    terms: Terms = Terms()


def board(
    suite: str,
    evaluated: str,
    target: str,
    problems: Sequence[Problem],
    keys: Mapping[tuple[int, int], Sequence[str]],
    entries: Mapping[str, Entry],
    terms: Terms,
) -> Board:
    """`keys`: the questions of each problem; one that is a probe says whether a problem without a kernel counts."""
    rows, still_open, places = [], [], set()
    for problem in problems:
        wanted = keys.get((problem.level, problem.number), ())
        found = [entries[key] for key in wanted if key in entries]
        if len(found) < len(wanted):
            still_open.append(problem.label)
            continue
        rows.append(_row(problem, found))
        places |= {", torch ".join(where) for entry in found if (where := measured_on(entry.result))}
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
        terms,
    )


def _row(problem: Problem, entries: Sequence[Entry]) -> Row:
    seconds, cost = sum(entry.seconds for entry in entries), sum((entry.cost for entry in entries), Cost())
    samples = sum(not _is_probe(entry) and entry.result.error is None for entry in entries)
    row = Row(
        problem.label,
        problem.task.id,
        NO_KERNEL,
        "nothing was handed in",
        samples=samples,
        seconds=seconds,
        cost=cost,
    )
    verdicts = [entry.result.verdict for entry in entries if entry.result.verdict and not entry.lost]
    best = min(verdicts, key=_rank, default=None)
    unsettled = next((entry for entry in entries if entry.unsettled), None)
    if unsettled and (
        best is None or best.status not in (Status.PASSED, Status.NOT_SCORABLE)
    ):  # it might have been the best
        return replace(
            row,
            status=NOT_JUDGED if unsettled.lost else NOT_RUN,
            reason=unsettled.lost or unsettled.result.error or "",
        )
    for data in (entry.result.data or {} for entry in entries):
        if data.get("scorable") is False:
            return replace(row, status=Status.NOT_SCORABLE.value, reason=str(data["reason"]))
        row = replace(row, reason=str(data.get("reason") or row.reason), by=str(data.get("by", "")))
    if best is None:
        return row
    precision = str(best.environment.get("precision", ""))
    row = replace(
        row, status=best.status.value, reason=best.reason, kernel=best.candidate, precision=precision
    )
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


def _is_probe(entry: Entry) -> bool:
    return "scorable" in (entry.result.data or {})


def measured_on(result: Result) -> tuple[str, str] | None:
    """Hardware and torch, as a verdict or a probe tells them; None where it does not."""
    if result.verdict and (where := result.verdict.environment):
        return where.get("gpu") or where.get("cpu") or "unknown", where.get("torch", "?")
    if hardware := (result.data or {}).get("hardware"):
        torch = next((fact for fact in hardware.get("facts", ()) if fact.startswith("torch: ")), "torch: ?")
        return hardware["name"], torch.removeprefix("torch: ")
    return None


def places_in_words(places: Sequence[str]) -> list[str]:
    lines = [f"measured on {'; '.join(places) or 'nothing yet'}"]
    return [*lines, "NOT COMPARABLE: these rows come from different machines"] if len(places) > 1 else lines


def _summaries(rows: Sequence[Row]) -> dict[str, Summary]:
    """Against a baseline that a right kernel was not timed against (it does not compile), that problem is left out."""
    names = [name for name in (*BASELINES, BEST) if any(name in row.speedup for row in rows)] or [BEST]
    return {
        name: summarise([row.speedup.get(name) for row in rows if name in row.speedup or not row.speedup])
        for name in names
    }


# --- tables ----------------------------------------------------------------------------------------------

Table = tuple[list[str], list[list[str]]]
"""Titles, and a list of cells for each line."""


def problem_table(found: Board) -> Table:
    names = [name for name in found.summary if name != BEST or found.rows]
    metered = any(row.metered for row in found.rows)
    told = [*TITLES, "energy against"] if metered else []
    by = ["by"] if any(row.by for row in found.rows) else []
    titles = [
        "problem",
        "status",
        *by,
        "ms",
        *(f"x {name}" for name in names),
        "of floor",
        *told,
        "device s",
        "cost",
    ]
    lines = []
    for row in found.rows:
        shown = f"{row.ms:.4f}" if row.ms else ""
        of_floor = f"{row.floor_ms / row.ms:.0%}" if row.ms and row.floor_ms else ""
        ratios = [interval(row.speedup.get(name)) for name in names]
        energy = [*cells(row.energy), row.metered.against if row.metered else ""] if metered else []
        who = [row.by] if by else []
        lines.append(
            [
                row.problem,
                row.status,
                *who,
                shown,
                *ratios,
                of_floor,
                *energy,
                f"{row.seconds:.1f}",
                money(row.cost),
            ]
        )
    return titles, lines


def summary_table(found: Board) -> Table:
    first = next(iter(found.summary.values()))
    titles = ["against", "problems", "correct", "geomean", *(f"fast_{p}" for p in first.fast)]
    lines = [
        [
            name,
            str(s.problems),
            f"{s.correct_rate:.0%}",
            interval(s.geomean),
            *(_share(s.fast[p], s.sure[p]) for p in s.fast),
        ]
        for name, s in found.summary.items()
    ]
    return titles, lines


def remarks(found: Board) -> list[str]:
    """What the tables do not say, a line each."""
    lines = _energies(found)
    if writers := Counter(row.by for row in found.rows if row.by and row.speedup):
        lines.append(f"winners: {', '.join(f'{count} by {name}' for name, count in writers.most_common())}")
    if any(row.samples > 1 for row in found.rows):
        lines.append(f"best of up to {max(row.samples for row in found.rows)} samples a problem")
    lines.append(f"in all: {found.seconds:.0f} s of the device, {money(found.cost) or 'no tokens'}")
    lines += [found.terms.words, *places_in_words(found.places)]
    if found.left_out:
        unsettled = sum(row.status in (NOT_RUN, NOT_JUDGED) for row in found.left_out)
        among = f", {unsettled} of them because they could not be run or judged" if unsettled else ""
        lines.append(f"{len(found.left_out)} left out of all means{among}:")
        lines += [f"  {row.problem}: {row.status}: {row.reason}" for row in found.left_out]
    if found.open:
        lines.append(f"{len(found.open)} not answered yet: {some(found.open)}")
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
    return lines + [f"energy not told of {some(names)}: {reason}" for reason, names in refused.items()]


def markdown(table: Table) -> str:
    titles, lines = table
    rows = [titles, ["---"] * len(titles), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def interval(x: Interval | None) -> str:
    return x.words() if x else ""


def money(cost: Cost) -> str:
    tokens = cost.tokens_in + cost.tokens_out
    return f"${cost.dollars:.2f}, {tokens} tokens" if tokens or cost.dollars else ""


def some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:10])}{' ...' if len(names) > 10 else ''}"


def _share(likely: float, sure: float) -> str:
    return f"{likely:.2f}" if likely == sure else f"{likely:.2f} ({sure:.2f} sure)"
