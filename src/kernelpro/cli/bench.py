"""`kernelpro bench`: runs a suite and shows the scoreboard."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

import kernelpro
from kernelpro.cli.commands.bench import BenchOptions
from kernelpro.cli.errors import INTERNAL_ERROR
from kernelpro.cli.output import table_console, write_file
from kernelpro.cli.parsing import gives_dollars, judge_effort, select_baselines
from kernelpro.cli.pools import open_pool, require_target, require_target_option, worker_hint
from kernelpro.cli.run_config import describe_budget, make_run_config
from kernelpro.engine import session
from kernelpro.engine.store import runs_dir
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput, Options, Result, Target, digest
from kernelpro.suites import (
    claims,
    judging,
    kernel_files,
    probe,
    problems,
    published,
    scoreboard,
    searching,
)
from kernelpro.suites.results_log import LoggedResult, ResultsLog

_QUIET_SECONDS = 30.0
"""Without a terminal: after this many seconds without output, the stage of a problem is printed."""

JobKeys = dict[tuple[int, int], list[str]]
"""The keys of results, by level and number of the problem."""


class _Bench:
    """One call of `kernelpro bench`."""

    def __init__(
        self, options: BenchOptions, target: Target, pool: Pool, log: ResultsLog, deadline: float | None
    ):
        """`deadline`: when to stop, by `time.monotonic`."""
        self.options, self.target, self.pool, self.log = options, target, pool, log
        self._deadline = deadline
        self.judge_options = _judge_options(options)
        self.published = _find_published(options, target)
        self.problems = [kernel.problem for kernel in self.published] or _find_problems(options, target)
        self.keys: JobKeys = {}

    def run(self) -> int:
        """Run everything without a result; return how many results are outstanding."""
        return self._search() if _is_search(self.options) else self._judge()

    def results(self) -> list[LoggedResult]:
        """All results so far."""
        results = self.log.entries
        return [results[key] for keys in self.keys.values() for key in keys if key in results]

    def _judge(self) -> int:
        folder = self.options.kernels
        files = (
            kernel_files.find_kernels(Path(folder), self.problems, self.options.sample) if folder else None
        )
        if files and files.unmatched:
            belong = "files belong" if len(files.unmatched) > 1 else "file belongs"
            names = scoreboard.first_names(files.unmatched)
            _print(f"{len(files.unmatched)} {belong} to no selected problem: {names}")
        jobs = self._published_jobs() if _judges_published(self.options) else self._jobs(files)
        for job in jobs:
            self.keys.setdefault((job.problem.level, job.problem.number), []).append(job.key)
        missing = {job.key: job for job in jobs if self.log.is_missing(job.key, self.options.retry)}
        with _Progress(len(jobs), len(missing)) as progress:
            if missing:
                require_target(self.pool, self.options.pool, self.target)
            outstanding = judging.run_jobs(
                list(missing.values()),
                self.pool,
                self.log,
                progress.stage,
                lambda job: progress.done(job.problem.label),
                self._seconds_left(),
            )
        if files:
            self._log_unreadable(files)
        return outstanding

    def _jobs(self, files: kernel_files.KernelFiles | None) -> list[judging.BenchJob]:
        """The jobs of the benchmark. Without files: a probe of each problem. With files: a judgement of each
        kernel, and for a problem without a kernel a probe without compiled baselines, which decides whether
        the problem counts."""
        if files is None:
            return [judging.BenchJob(problem, self.target, self.judge_options) for problem in self.problems]
        probe_options = replace(
            self.judge_options, effort="quick", baselines=("eager_fp32",), min_own_share=0.0, energy=False
        )
        jobs = []
        for problem in self.problems:
            kernels = files.kernels.get((problem.level, problem.number), {}).values()
            jobs += [judging.BenchJob(problem, self.target, self.judge_options, kernel) for kernel in kernels]
            if not kernels:
                jobs.append(judging.BenchJob(problem, self.target, probe_options))
        return jobs

    def _published_jobs(self) -> list[judging.BenchJob]:
        return [
            judging.BenchJob(kernel.problem, self.target, self.judge_options, kernel.candidate)
            for kernel in self.published
        ]

    def _log_unreadable(self, files: kernel_files.KernelFiles) -> None:
        for problem in self.problems:
            id = (problem.level, problem.number)
            for verdict in files.unreadable.get(id, ()):
                key = digest("unreadable", problem.task.id, verdict.reason)
                self.keys.setdefault(id, []).append(key)
                if self.log.is_missing(key, retry=False):
                    self.log.add(LoggedResult(key, Result(key, verdict=verdict)))

    def _search(self) -> int:
        """Search all problems. They are independent: no search learns from another."""
        options, folder = self.options, self.log.folder / "runs"
        config, choice = make_run_config(options, self.problems[0].task, self.judge_options, knowledge=False)
        config = session.validate(session.RunRequest(config, folder, self.target)).config
        searches = [
            searching.BenchSearch(problem, replace(config, task=problem.task, target=self.target))
            for problem in problems.interleave(self.problems, lambda problem: problem.level)
        ]
        self.keys |= {(item.problem.level, item.problem.number): [item.key] for item in searches}
        missing = [item for item in searches if self.log.is_missing(item.key, options.retry)]
        _print(
            f"{choice.summary}\n{describe_budget(config.limits, gives_dollars(options.budget))} per problem"
        )
        with _Progress(len(searches), len(missing)) as progress:
            if missing:
                require_target(self.pool, options.pool, self.target)
            return asyncio.run(
                searching.run_searches(
                    missing,
                    self.pool,
                    self.log,
                    options.parallel,
                    progress.stage,
                    lambda item: progress.done(item.problem.label),
                    progress.note,
                    self._seconds_left(),
                    options.problem_limit,
                )
            )

    def _seconds_left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())


def run_bench(options: BenchOptions) -> int:
    """Run a benchmark and print its scoreboard; return the exit code."""
    deadline = time.monotonic() + options.time_limit if options.time_limit else None
    _check(options)
    if options.list_problems:
        return _list_problems(options)
    require_target_option(options, options.target)
    with _sigterm_as_interrupt(), open_pool(options) as pool:
        target = options.target or session.pool_target(pool)
        session.check_languages(target, [language.value for language in options.language])
        session.check_objective(pool, target, options.objective)
        with ResultsLog(_folder(options)) as log:
            file = log.folder / "results.jsonl"
            if log.unreadable_lines:
                _print(f"{log.unreadable_lines} lines of {file} cannot be read; their jobs run again")
            bench = _Bench(options, target, pool, log, deadline)
            try:
                outstanding = bench.run()
            except KeyboardInterrupt:
                if bench.results():
                    _show(bench)
                    _print(f"results: {file}; the same command continues")
                raise
            _show(bench)
            _print(f"results: {file}")
            if _is_search(options):
                option = f"--runs-dir {shlex.quote(str((log.folder / 'runs').absolute()))}"
                _print(f"runs: `kernelpro runs {option}` lists them; report: `kernelpro report RUN {option}`")
            results = bench.results()
    failed = sum(result.should_retry for result in results)
    if failed:
        _print(f"{failed} could not be run or judged: --retry repeats them")
    if outstanding:
        hint = worker_hint(options.pool)
        _print(f"{outstanding} answers or results are outstanding{hint}; the same command continues")
    if any(result.result.internal_error for result in results):
        return INTERNAL_ERROR
    return 3 if outstanding else 1 if failed and failed == len(results) else 0


def _is_search(options: BenchOptions) -> bool:
    return bool(options.author or options.model)


def _judges_published(options: BenchOptions) -> bool:
    """Whether this command judges the published kernels of the suite. With --probe, --model
    or --author it uses only their references."""
    return published.is_published(options.suite) and not (options.probe or _is_search(options))


def _find_published(options: BenchOptions, target: Target) -> list[published.PublishedKernel]:
    """The published kernels of the suite; empty if it has none."""
    if not published.is_published(options.suite):
        return []
    return published.find_published(
        options.suite, options.level, options.ids, target, options.mode or "train", options.precision
    )


def _find_problems(options: BenchOptions, target: Target) -> list[problems.Problem]:
    return problems.find_problems(
        options.suite, options.level, options.ids, target, options.mode or "train", options.precision
    )


def _check(options: BenchOptions) -> None:
    """Raise BadInput for options that exclude each other."""
    choices = (options.list_problems, options.probe, options.kernels, options.author or options.model)
    if published.is_published(options.suite):
        if options.kernels or sum(map(bool, choices)) > 1:
            raise BadInput(
                f"{options.suite} has kernels of its own: give no --kernels, and at most one of --probe, "
                "--model SPEC (or --author NAME) and --list"
            )
    elif sum(map(bool, choices)) != 1:
        raise BadInput(
            "give exactly one of --probe, --kernels DIR, --model SPEC (or --author NAME) and --list"
        )
    if options.author and options.model:
        raise BadInput("--author and --model exclude each other: give one")
    if options.energy and not (options.kernels or _judges_published(options)):
        raise BadInput(
            "--energy needs --kernels; a search saves energy with --objective energy-at-speed or edp"
        )
    if options.problem_limit and not _is_search(options):
        raise BadInput("--problem-limit needs --author or --model; --timeout limits the calls of kernels")
    if options.objective != "speed" and not _is_search(options):
        raise BadInput(
            f"--objective {options.objective} needs --author or --model; with --kernels, use --energy"
        )


def _judge_options(options: BenchOptions) -> Options:
    return Options(
        effort=judge_effort(options),
        baselines=select_baselines(options, may_be_empty=options.probe),
        min_own_share=options.min_own_share,
        sandbox=options.sandbox,
        energy=options.energy,
        call_timeout=options.timeout,
        build_timeout=options.build_timeout,
    )


def _list_problems(options: BenchOptions) -> int:
    target = options.target or "cpu"
    listed = [kernel.problem for kernel in _find_published(options, target)] or _find_problems(
        options, target
    )
    if options.format == "json":
        data = [{"level": item.level, "number": item.number, "name": item.task.name} for item in listed]
        print(json.dumps(data, indent=1))
    else:
        print("\n".join(f"{'- ' * (options.format == 'md')}{item.label}" for item in listed))
    return 0


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that the workers are stopped."""

    def interrupt(number: int, frame: Any) -> None:
        # asyncio has its own handler; it is not callable if SIGINT is ignored, as in the background of a
        # script
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(number, frame)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _folder(options: BenchOptions) -> Path:
    if options.out:
        return Path(options.out)
    judges = options.kernels or _judges_published(options)
    kind = "probe" if options.probe else "kernels" if judges else "author"
    path = Path(options.suite.removeprefix("kernelbench:").removeprefix(published.PREFIX)).resolve()
    name = "builtin" if options.suite == "builtin" else path.stem if path.is_file() else path.name
    return runs_dir().parent / "benches" / f"{name}-{kind}"


# --- output ----------------------------------------------------------------------------------------------


def _describe_evaluated(options: BenchOptions) -> str:
    if options.probe:
        return "probe"
    if options.kernels:
        return f"kernels of {options.kernels}"
    if _judges_published(options):
        return "published kernels"
    objective = f", objective {options.objective}" if options.objective != "speed" else ""
    return f"{options.author or options.model}{objective}"


def _show(bench: _Bench) -> None:
    options, target = bench.options, bench.target
    evaluated = _describe_evaluated(options)
    title = f"{options.suite} on {target}: {evaluated}"
    baselines = bench.judge_options.baselines
    conditions = scoreboard.BenchConditions(
        bench.judge_options.effort,
        options.precision,
        options.mode or "train",
        tuple(name for name in baselines if target == "cuda" or name != "eager_tf32"),
        options.min_own_share,
        kernelpro.__version__,
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if options.probe:
        rows = probe.probe_rows(bench.problems, bench.keys, bench.log.entries)
        if options.format == "json":
            data = {"suite": options.suite, "target": target, "conditions": conditions.to_json()}
            print(json.dumps(data | {"problems": [row.to_json() for row in rows]}, indent=1))
        else:
            lines = [*probe.remarks(rows), conditions.summary]
            _print_tables(options.format, title, [probe.table(rows)], lines)
        return
    if _judges_published(options):
        _show_claims(bench, title, conditions)
        return
    board = scoreboard.make_scoreboard(
        options.suite, evaluated, target, bench.problems, bench.keys, bench.log.entries, conditions
    )
    write_file(bench.log.folder / scoreboard.FILE, json.dumps(board.to_json()), "--out")
    if options.format == "json":
        print(json.dumps(board.to_json(), indent=1))
    else:
        tables = [scoreboard.problem_table(board), scoreboard.summary_table(board)]
        _print_tables(options.format, title, tables, scoreboard.remarks(board))


def _show_claims(bench: _Bench, title: str, conditions: scoreboard.BenchConditions) -> None:
    keys = {k.id: bench.keys[k.problem.level, k.problem.number][0] for k in bench.published if bench.keys}
    rows = claims.claim_rows(bench.published, keys, bench.log.entries)
    if bench.options.format == "json":
        about = {"suite": bench.options.suite, "target": bench.target, "conditions": conditions.to_json()}
        found = {"summary": claims.remarks(rows), "kernels": [row.to_json() for row in rows]}
        print(json.dumps(about | found, indent=1))
    else:
        lines = [*claims.remarks(rows), conditions.summary]
        _print_tables(bench.options.format, title, [claims.table(rows)], lines)


def _print_tables(form: str, title: str, tables: Sequence[scoreboard.Table], lines: Sequence[str]) -> None:
    if form == "md":
        print(f"## {title}\n")
        print("\n\n".join(scoreboard.markdown(table) for table in tables), end="\n\n")
        print("\n".join(f"- {line.strip()}" for line in lines))
        return
    console = table_console()
    console.print(title, markup=False)
    for titles, rows in tables:
        table = RichTable()
        for name in titles:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(cell.replace("[", r"\[") for cell in row))
        console.print(table)
    for line in lines:
        console.print(line, markup=False)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Progress:
    """Progress on stderr. On a terminal it is one line that is updated; otherwise a line is printed when a
    problem starts or ends."""

    def __init__(self, total: int, missing: int):
        self._total, self._done = total, total - missing
        self._console = Console(stderr=True)
        self._status = self._console.status("starting") if self._console.is_terminal else None
        self._lock = threading.Lock()
        self._started: set[str] = set()
        self._last_line = time.monotonic()
        if self._done:
            _print(f"{self._done} of {total} have a result already")

    def stage(self, problem: str, stage: str) -> None:
        """Show the stage of a problem; without a terminal, only when it starts or after a silence."""
        if self._status:
            self._status.update(f"{self._done} of {self._total} done; {problem}: {stage}")
            return
        with self._lock:
            starts = problem not in self._started and not stage.startswith("waiting")
            if starts or time.monotonic() - self._last_line >= _QUIET_SECONDS:
                self._started |= {problem} if starts else set()
                self._print_line(f"{problem}: {stage}")

    def note(self, line: str) -> None:
        """Print a line above the progress line."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def done(self, problem: str) -> None:
        """Count a completed problem."""
        self._done += 1
        if self._status is None:
            with self._lock:
                self._print_line(f"{self._done} of {self._total} done: {problem}")

    def _print_line(self, text: str) -> None:
        self._last_line = time.monotonic()
        _print(text)

    def __enter__(self) -> _Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()
