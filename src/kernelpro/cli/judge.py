"""`kernelpro judge`: a table for people, JSON lines for programs."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import Future

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kernelpro.cli.commands.judge import JudgeOptions
from kernelpro.cli.errors import INTERNAL_ERROR, print_error
from kernelpro.cli.output import table_console
from kernelpro.cli.parsing import judge_effort, select_baselines
from kernelpro.cli.pools import open_pool, worker_hint
from kernelpro.pools.pool import ResultPending
from kernelpro.records import (
    BASELINES,
    BadInput,
    Candidate,
    InternalError,
    Job,
    Options,
    Progress,
    Result,
    Status,
    Task,
    Verdict,
)
from kernelpro.records.energy import ENERGY_COLUMNS, energy_cells
from kernelpro.records.interval import format_share
from kernelpro.report import wording
from kernelpro.tasks import load_task, with_shapes


def judge_candidates(options: JudgeOptions) -> int:
    """Judge all candidates and print their verdicts; return the exit code."""
    judge_options = Options(
        effort=judge_effort(options),
        baselines=select_baselines(options),
        disabled_tripwires=tuple(options.disable_tripwire),
        min_own_share=options.min_own_share,
        sandbox=options.sandbox,
        call_timeout=options.timeout,
        build_timeout=options.build_timeout,
        memory_gib=options.memory,
        energy=options.energy,
    )
    candidates = [Candidate.from_file(path) for path in options.candidates]
    task = with_shapes(load_task(options.task, mode=options.mode, precision=options.precision), options.shape)
    jobs = [
        Job(str(index), "judge", task, candidate, options.target, judge_options)
        for index, candidate in enumerate(candidates)
    ]
    verdicts, errors = _judge(jobs, options)
    if not options.json and verdicts:
        print_table(task, verdicts)
    if errors:
        kind = InternalError if any(isinstance(error, InternalError) for error in errors) else BadInput
        raise kind("; ".join(dict.fromkeys(map(str, errors))))
    if missing := len(jobs) - len(verdicts):
        results = "results are" if missing > 1 else "result is"
        print_error(
            f"{missing} {results} outstanding{worker_hint(options.pool)}, then run this command again"
        )
        return 3
    statuses = {verdict.status for verdict in verdicts}
    if Status.INTERNAL_ERROR in statuses:
        return INTERNAL_ERROR
    return 0 if statuses == {Status.PASSED} else 1


def _judge(jobs: list[Job], options: JudgeOptions) -> tuple[list[Verdict], list[BadInput]]:
    """Run the jobs. Returns the verdicts that have arrived and the errors of jobs without a verdict; each
    verdict is printed at once.

    An error concerns the task or the machine; the other candidates are still judged.
    """
    console, paths = Console(stderr=True), options.candidates
    verdicts: list[Verdict] = []
    errors: list[BadInput] = []
    last_line, last_time = "", time.monotonic()
    with open_pool(options) as pool, console.status("starting") as status:
        if not console.is_terminal:
            status.stop()

        def show_progress(progress: Progress) -> None:
            nonlocal last_line, last_time
            line = f"{paths[int(progress.job)]}: {progress.stage}"
            if console.is_terminal:
                status.update(line)
            elif options.json or line == last_line:
                pass
            elif time.monotonic() - last_time > _SECONDS_BETWEEN_LINES:
                last_line, last_time = line, time.monotonic()
                print(line, file=sys.stderr, flush=True)

        answers: list[Future[Result]] = [pool.submit(job, show_progress) for job in jobs]
        for path, answer in zip(paths, answers, strict=True):
            try:
                result = answer.result()
            except ResultPending:
                continue
            if result.verdict is None:
                errors.append(result.exception("verdict"))
                continue
            verdict = Verdict.from_json(result.verdict.to_json() | {"candidate": path})
            verdicts.append(verdict)
            status.stop()
            _print_verdict(verdict, options.json)
            if console.is_terminal:
                status.start()
    return verdicts, errors


def _print_verdict(verdict: Verdict, as_json: bool) -> None:
    if as_json:
        print(json.dumps(verdict.to_json(), separators=(",", ":")), flush=True)
    else:
        line = f"{verdict.status.value:<13} {verdict.candidate}: {verdict.reason}"
        print(line, file=sys.stderr, flush=True)


_SECONDS_BETWEEN_LINES = 10.0
"""Shortest time between two lines of progress if stderr is not a terminal."""
_LEGEND = (
    "ms: median time of a call; x NAME: speed-up over that baseline [95 % interval]; error: largest relative "
    "error ||output - oracle|| / ||oracle||; of floor: share of the fastest speed that the hardware allows; "
    "own share: share of the time in the candidate's own kernels"
)
_COLORS = {Status.PASSED: "green", Status.CHEATING: "red", Status.WRONG: "red"}


def print_table(task: Task, verdicts: list[Verdict]) -> None:
    """Print all verdicts as one table, with the baselines, the environment and the notes."""
    baselines = sorted({name for verdict in verdicts for name in verdict.speedup}, key=BASELINES.index)
    environment = next((verdict.environment for verdict in verdicts if verdict.environment.torch), None)
    title = f"{task.name}, mode {task.mode}"
    if environment:  # else no candidate was run
        title += f", on {environment.device}, precision {environment.precision}, torch {environment.torch}"
    table = Table(title=title, title_justify="left")
    table.add_column("candidate", overflow="fold")
    table.add_column("status")
    has_energy = any(verdict.energy for verdict in verdicts)
    speedups = [f"x {name}" for name in baselines]
    energy = ENERGY_COLUMNS if has_energy else ()
    for name in ("ms", *speedups, "faster", "error", "of floor", "own share", *energy):
        table.add_column(name, justify="right")
    for verdict in verdicts:
        color = _COLORS.get(verdict.status, "yellow")
        table.add_row(
            escape(verdict.candidate),
            f"[{color}]{verdict.status.value}[/]",
            f"{verdict.times['candidate'].value:.4g}" if verdict.times else "",
            *(verdict.speedup[name].format() if name in verdict.speedup else "" for name in baselines),
            verdict.faster or "",
            f"{verdict.error:.1e}" if verdict.error is not None else "",
            format_share(verdict.of_floor) if verdict.of_floor else "",
            format_share(verdict.own_share) if verdict.own_share is not None and verdict.times else "",
            *(energy_cells(verdict.energy) if has_energy else ()),
        )
    console = table_console()
    console.print(table)
    if measured := next((verdict for verdict in verdicts if verdict.times), None):
        times = ", ".join(f"{name} {measured.times[name].value:.4g} ms" for name in baselines)
        no_tf32 = "" if measured.environment.gpu else "; a CPU has no eager_tf32"
        console.print(
            f"baselines: {times}{no_tf32}; floor {measured.floor_ms:.4g} ms; sandbox: {measured.sandbox}"
        )
        console.print(_LEGEND, style="dim")
    for verdict in verdicts:
        for line in filter(None, (*wording.describe_shapes(verdict), wording.describe_unseen(verdict))):
            console.print(f"{verdict.candidate}: {line}", markup=False)
    for line in dict.fromkeys(f"energy: {wording.describe_energy(v.energy)}" for v in verdicts if v.energy):
        console.print(line)
    for note in dict.fromkeys(note for verdict in verdicts for note in verdict.notes):
        noted = [verdict.candidate for verdict in verdicts if note in verdict.notes]
        label = "note" if len(noted) == len(verdicts) else f"note on {', '.join(noted)}"
        console.print(f"{label}: {note}", markup=False)
