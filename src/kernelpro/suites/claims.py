"""Published kernels: claimed and measured speed-ups side by side, one row per kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelpro.records import BASELINES, Interval, Record, Status, Verdict
from kernelpro.records.interval import format_share
from kernelpro.suites.published import PublishedKernel
from kernelpro.suites.results_log import LoggedResult
from kernelpro.suites.scoreboard import (
    BEST,
    NOT_JUDGED,
    NOT_RUN,
    Table,
    describe_machines,
    first_names,
    format_interval,
    machine_of,
)
from kernelpro.suites.statistics import geomean

PENDING = "no result yet"
_MAX_REASON = 160
"""Characters of a reason in a table; JSON has the whole reason."""


@dataclass(frozen=True)
class ClaimRow(Record):
    """One published kernel."""

    id: str
    task: str
    """The id of its task."""
    claimed: dict[str, float]
    """Claimed speed-ups, by what the authors compared with."""
    status: str
    """A status of the judge, or `not run`, `not judged`, `no result yet`."""
    reason: str = ""
    speedup: dict[str, Interval] = field(default_factory=dict)
    """Measured over each baseline and the fastest of them; empty unless it passed."""
    faster: str | None = None
    """Whether it is faster than the fastest baseline."""
    own_share: float | None = None
    ms: float | None = None
    floor_ms: float | None = None
    error: float | None = None
    language: str = ""
    precision: str = ""
    machine: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    """Device time."""

    @property
    def passed(self) -> bool:
        """Whether the judge passed it."""
        return self.status == Status.PASSED.value


def claim_rows(
    kernels: Sequence[PublishedKernel], keys: Mapping[str, str], results: Mapping[str, LoggedResult]
) -> list[ClaimRow]:
    """A row for each kernel. `keys`: the key of its result, by the kernel's id."""
    return [_row(kernel, results.get(keys.get(kernel.id, ""))) for kernel in kernels]


def _row(kernel: PublishedKernel, item: LoggedResult | None) -> ClaimRow:
    if item is None:
        return _make(kernel, PENDING)
    machine = ", torch ".join(machine_of(item.result) or ())
    if item.failure:
        return _make(kernel, NOT_JUDGED, reason=item.failure, seconds=item.seconds)
    if (verdict := item.result.verdict) is None:
        return _make(kernel, NOT_RUN, reason=item.result.error or "", seconds=item.seconds)
    return _make(
        kernel,
        verdict.status.value,
        reason=verdict.reason,
        speedup=_with_best(verdict),
        faster=verdict.faster,
        own_share=verdict.own_share,
        ms=verdict.times["candidate"].value if verdict.times else None,
        floor_ms=verdict.floor_ms,
        error=verdict.error,
        language=verdict.language,
        precision=verdict.environment.precision,
        machine=machine,
        notes=verdict.notes,
        seconds=item.seconds,
    )


def _make(kernel: PublishedKernel, status: str, **more: Any) -> ClaimRow:
    return ClaimRow(kernel.id, kernel.problem.task.id, kernel.claimed, status, **more)


def _with_best(verdict: Verdict) -> dict[str, Interval]:
    if not verdict.speedup:
        return {}
    return verdict.speedup | {BEST: min(verdict.speedup.values(), key=lambda ratio: ratio.value)}


def table(rows: Sequence[ClaimRow]) -> Table:
    """All rows as a table."""
    claims = list(dict.fromkeys(name for row in rows for name in row.claimed))
    baselines = [name for name in (*BASELINES, BEST) if any(name in row.speedup for row in rows)]
    titles = [
        "kernel",
        *(f"claimed x {name}" for name in claims),
        "verdict",
        *(f"x {name}" for name in baselines),
        "own kernels",
        "reason",
    ]
    return titles, [
        [
            row.id,
            *(f"{row.claimed[name]:.2f}" if name in row.claimed else "" for name in claims),
            row.status,
            *(format_interval(row.speedup.get(name)) for name in baselines),
            format_share(row.own_share) if row.passed and row.own_share is not None else "",
            "" if row.passed else _shorten(row.reason),
        ]
        for row in rows
    ]


def _shorten(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _MAX_REASON else f"{line[:_MAX_REASON]} ..."


def remarks(rows: Sequence[ClaimRow]) -> list[str]:
    """Counts and means over all rows, one line each."""
    statuses = Counter(row.status for row in rows)
    passed = [row for row in rows if row.passed]
    plural = "s" if len(rows) != 1 else ""
    counts = ", ".join(f"{count} {name}" for name, count in statuses.most_common())
    lines = [f"{len(rows)} kernel{plural}: {counts}"]
    if passed:
        faster = Counter(row.faster for row in passed)
        lines.append(
            f"of {len(passed)} that passed, {faster['yes']} are faster than the fastest baseline, "
            f"{faster['no']} are not, {faster['unclear']} are unclear"
        )
        lines += _means(passed)
    borrowed = [row.id for row in passed if row.own_share == 0]
    if borrowed:
        lines.append(f"{len(borrowed)} passed without a kernel of their own: {first_names(borrowed)}")
    machines = sorted({row.machine for row in rows if row.machine})
    lines.append(f"total: {sum(row.seconds for row in rows):.0f} s of device time")
    return [*lines, *describe_machines(machines)]


def _means(passed: Sequence[ClaimRow]) -> list[str]:
    """Geometric means over the kernels that passed: claimed, and measured over the same kernels."""
    lines = []
    for claim in dict.fromkeys(name for row in passed for name in row.claimed):
        claiming = [row for row in passed if row.claimed.get(claim, 0) > 0]
        claimed = geomean([Interval(*[row.claimed[claim]] * 3) for row in claiming])
        baselines = [name for name in (*BASELINES, BEST) if all(name in row.speedup for row in claiming)]
        measured = {name: geomean([row.speedup[name] for row in claiming]) for name in baselines}
        if claimed and measured:
            words = ", ".join(f"{mean.value:.2f} over {name}" for name, mean in measured.items() if mean)
            lines.append(
                f"claimed over {claim}: {claimed.value:.2f} (geomean of {len(claiming)} that passed); "
                f"measured: {words}"
            )
    return lines
