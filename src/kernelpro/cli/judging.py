"""`kernelpro judge`: a table for people, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from kernelpro.cli import joules
from kernelpro.cli.place import Place
from kernelpro.pools.pool import Outstanding
from kernelpro.records import (
    BASELINES,
    BadInput,
    Candidate,
    Job,
    Options,
    Progress,
    Result,
    Status,
    Task,
    Verdict,
)
from kernelpro.records.energy import TITLES, cells
from kernelpro.records.interval import share


def run(
    task_path: str,
    paths: list[str],
    target: Any,
    precision: Any,
    mode: Any,
    settings: dict[str, Any],
    baselines: list[str] | None,
    place: Place,
    json_lines: bool,
) -> int:
    task = Task.from_file(task_path, mode, precision)
    for name in baselines or ():
        if name not in BASELINES:
            raise BadInput(f"--baseline {name}: not one of {', '.join(BASELINES)}")
    if baselines:
        settings = settings | {"baselines": tuple(baselines)}
    options = Options(**settings)
    unreadable, jobs = {}, []
    for index, path in enumerate(paths):
        try:
            jobs.append(Job(str(index), "judge", task, Candidate.from_file(path), target, options))
        except BadInput as error:
            unreadable[index] = Verdict(path, Status.BUILD_FAILED, str(error), task=task.name)
    verdicts, errors = _judged(jobs, unreadable, paths, options, place, json_lines)
    if not json_lines and verdicts:
        _print_table(task, verdicts)
    if errors:
        raise BadInput("; ".join(errors))
    if missing := len(paths) - len(verdicts):
        print(
            f"kernelpro: {missing} result{'s' * (missing > 1)} outstanding; call again when they are there",
            file=sys.stderr,
        )
        return 3
    return 0 if all(v.status is Status.PASSED for v in verdicts) else 1


def _judged(
    jobs: list[Job],
    unreadable: dict[int, Verdict],
    paths: list[str],
    options: Options,
    place: Place,
    json_lines: bool,
) -> tuple[list[Verdict], list[str]]:
    """Verdicts in the order of the paths, each shown as soon as it is there, and why others have none; those that are outstanding
    are left out."""
    console = Console(stderr=True)
    by_index: dict[int, Verdict] = {}
    errors: list[str] = []
    quiet = json_lines or not console.is_terminal
    with place.open(options.sandbox) as where, console.status("starting") as status:
        if quiet:
            status.stop()

        def progress(step: Progress) -> None:
            status.update(f"{paths[int(step.job)]}: {step.stage}")

        answers = {int(job.id): where.submit(job, progress) for job in jobs}
        for index, path in enumerate(paths):
            try:
                verdict = (
                    unreadable[index] if index in unreadable else _verdict_of(answers[index].result(), path)
                )
            except Outstanding:
                continue
            except BadInput as error:  # of the task or the machine: the others may still be judged
                errors.append(str(error))
                continue
            by_index[index] = verdict
            if not quiet:
                status.stop()
            _show(verdict, json_lines)
            if not quiet:
                status.start()
    if errors and not set(by_index) - set(unreadable):
        raise BadInput(errors[0])
    return list(by_index.values()), list(dict.fromkeys(errors))


def _verdict_of(result: Result, path: str) -> Verdict:
    if result.verdict is None:
        raise BadInput(result.error or "the worker gave no verdict")
    return Verdict.from_json(result.verdict.to_json() | {"candidate": path})


def _show(verdict: Verdict, json_lines: bool) -> None:
    if json_lines:
        print(json.dumps(verdict.to_json(), separators=(",", ":")), flush=True)
    else:
        print(
            f"{verdict.status.value:<13} {verdict.candidate}: {verdict.reason}", file=sys.stderr, flush=True
        )


_COLOURS = {Status.PASSED: "green", Status.CHEATING: "red", Status.WRONG: "red"}


def _print_table(task: Task, verdicts: list[Verdict]) -> None:
    baselines = sorted({name for v in verdicts for name in v.speedup}, key=BASELINES.index)
    where = next((v.environment for v in verdicts if v.environment), {})
    title = f"{task.name}, mode {task.mode}"
    if where:  # else nothing was run
        title += f", on {where.get('gpu') or where.get('cpu')}, precision {where.get('precision')}, torch {where.get('torch')}"
    table = Table(title=title, title_justify="left")
    table.add_column("candidate", overflow="fold")
    table.add_column("status")
    table.add_column("ms", justify="right")
    for name in baselines:
        table.add_column(f"x {name}", justify="right")
    metered = any(v.energy for v in verdicts)
    for name in ("faster", "error", "of floor", "own kernels", *(TITLES if metered else ())):
        table.add_column(name, justify="right")
    for v in verdicts:
        colour = _COLOURS.get(v.status, "yellow")
        row = [v.candidate, f"[{colour}]{v.status.value}[/]", _milliseconds(v)]
        row += [v.speedup[name].words() if name in v.speedup else "" for name in baselines]
        row += [
            v.faster or "",
            _error(v),
            _of_floor(v),
            "" if v.authored_share is None or not v.times else share(v.authored_share),
            *(cells(v.energy) if metered else ()),
        ]
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    measured = next((v for v in verdicts if v.times), None)
    if measured:
        shown = ", ".join(f"{name} {measured.times[name].value:.4g} ms" for name in baselines)
        console.print(f"baselines: {shown}; floor {measured.floor_ms:.4g} ms; sandbox: {measured.sandbox}")
    for line in dict.fromkeys(f"energy: {joules.line(v.energy)}" for v in verdicts if v.energy):
        console.print(line)
    for note in dict.fromkeys(note for v in verdicts for note in v.notes):
        console.print(f"note: {note}")


def _milliseconds(v: Verdict) -> str:
    return f"{v.times['candidate'].value:.4g}" if v.times else ""


def _error(v: Verdict) -> str:
    return f"{v.error:.1e}" if v.error is not None else ""


def _of_floor(v: Verdict) -> str:
    return share(v.floor_ms / v.times["candidate"].value) if v.times and v.floor_ms else ""
