"""`kernelpro bench`: a suite, what is evaluated on it, and the table."""

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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Drawing

import kernelpro
from kernelpro.authors.by_name import absolute, author
from kernelpro.cli.choosing import require_models_to_be_of_use
from kernelpro.cli.place import Place
from kernelpro.cli.roles import prices, roles
from kernelpro.cli.running import limits, require_counter
from kernelpro.engine.session import target_of
from kernelpro.engine.store import default_home
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput, Limits, Options, Result, RunConfig, Target, digest
from kernelpro.suites import asking, authoring, board, kernels, probing, problems
from kernelpro.suites.ledger import Entry, Ledger

_QUIET_SECONDS = 30.0
"""Off a terminal: stages are told when nothing else was for so long."""


@dataclass(frozen=True)
class Wanted:
    suite: str
    listed: bool
    probe: bool
    kernels: str | None
    author: str | None
    model: str
    budget: tuple[str, ...]
    objective: Any
    tolerance: float
    parallel: int
    compiler: bool
    levels: tuple[int, ...]
    ids: str
    sample: int | None
    target: Any
    precision: Any
    mode: Any
    options: Options
    out: str | None
    retry: bool
    format: str
    roles: tuple[str, ...] = ()
    prices: tuple[str, ...] = ()
    in_flight: int = RunConfig.concurrency
    tune: int = RunConfig.tune_points

    def terms(self, target: Target) -> board.Terms:
        how, now = self.options, datetime.now(UTC).isoformat(timespec="seconds")
        baselines = tuple(name for name in how.baselines if target == "cuda" or name != "eager_tf32")
        return board.Terms(
            how.effort, self.precision, self.mode, baselines, how.min_authored, kernelpro.__version__, now
        )

    @property
    def evaluated(self) -> str:
        if self.probe:
            return "probe"
        if self.kernels:
            return f"kernels of {self.kernels}"
        wanted = f", objective {self.objective}" if self.objective != "speed" else ""
        return f"author {self.author} {self.model}".strip() + wanted

    def check(self) -> None:
        """What cannot be meant."""
        if sum(map(bool, (self.listed, self.probe, self.kernels, self.author))) != 1:
            raise BadInput(
                "say what to evaluate: --probe, --kernels DIR or --author NAME, one of them; --list names the problems"
            )
        if self.options.energy and not self.kernels:
            raise BadInput(
                "--energy goes with --kernels; an author looks for less energy with --objective energy-at-speed or edp"
            )
        if self.objective != "speed" and not self.author:
            raise BadInput(
                f"--objective {self.objective} goes with --author; kernels are measured with --energy"
            )
        if self.tolerance != RunConfig.speed_tolerance and self.objective == "speed":
            raise BadInput("--tolerance goes with --author and --objective energy-at-speed or edp")


def run(wanted: Wanted, place: Place) -> int:
    """0: everything is answered; 1: nothing could be run; 3: answers or results from outside are outstanding."""
    wanted.check()
    if wanted.listed:
        return _list(wanted)
    place.require(wanted.target)
    with _terminated_as_interrupted(), place.open(wanted.options.sandbox) as pool:
        target: Target = wanted.target or target_of(pool)
        require_counter(pool, target, wanted.objective)
        chosen = problems.find(wanted.suite, wanted.levels, wanted.ids, target, wanted.mode, wanted.precision)
        with Ledger(_folder(wanted)) as ledger:
            if ledger.unreadable:
                _say(
                    f"{ledger.unreadable} lines of {ledger.folder / 'results.jsonl'} cannot be read and are asked again"
                )
            keys: Keys = {}
            try:
                outstanding = (_author if wanted.author else _ask)(
                    wanted, place, chosen, target, pool, ledger, keys
                )
            except KeyboardInterrupt:
                if _answers(keys, ledger):
                    _show(wanted, target, chosen, keys, ledger)
                    _say(f"results: {ledger.folder / 'results.jsonl'}; the same command goes on")
                raise
            _show(wanted, target, chosen, keys, ledger)
            _say(f"results: {ledger.folder / 'results.jsonl'}")
            if wanted.author:
                home = f"--home {shlex.quote(str((ledger.folder / 'runs').absolute()))}"
                _say(
                    f"runs: kernelpro runs {home} lists them, kernelpro report RUN {home} writes the report of one"
                )
            answers = _answers(keys, ledger)
    failed = sum(answer.unsettled for answer in answers)
    if failed:
        _say(f"{failed} could not be run or judged: --retry asks again")
    if outstanding:
        _say(f"{outstanding} answers or results are outstanding; the same command goes on")
    return 3 if outstanding else 1 if failed and failed == len(answers) else 0


def _list(wanted: Wanted) -> int:
    chosen = problems.find(
        wanted.suite, wanted.levels, wanted.ids, wanted.target or "cpu", wanted.mode, wanted.precision
    )
    if wanted.format == "json":
        print(
            json.dumps(
                [{"level": one.level, "number": one.number, "name": one.task.name} for one in chosen],
                indent=1,
            )
        )
    else:
        print("\n".join(f"{'- ' * (wanted.format == 'md')}{one.label}" for one in chosen))
    return 0


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends a bench as Ctrl-C does: workers are ended, nobody writes into a closed pipe."""

    def interrupt(number: int, frame: Any) -> None:
        at_present = signal.getsignal(
            signal.SIGINT
        )  # asyncio has its own; in the background of a script it is ignored
        (at_present if callable(at_present) else signal.default_int_handler)(number, frame)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _folder(wanted: Wanted) -> Path:
    if wanted.out:
        return Path(wanted.out)
    kind = "probe" if wanted.probe else "kernels" if wanted.kernels else "author"
    return (
        default_home().parent
        / "benches"
        / f"{Path(wanted.suite).resolve().name if wanted.suite != 'own' else 'own'}-{kind}"
    )


Keys = dict[tuple[int, int], list[str]]
"""By level and number of a problem, under which its answers are kept."""


def _answers(keys: Keys, ledger: Ledger) -> list[Entry]:
    return [ledger.entries[key] for some in keys.values() for key in some if key in ledger.entries]


def _ask(
    wanted: Wanted,
    place: Place,
    chosen: list[problems.Problem],
    target: Target,
    pool: Pool,
    ledger: Ledger,
    keys: Keys,
) -> int:
    """How many answers are outstanding. `keys` are there before anybody is asked."""
    given = kernels.find(Path(wanted.kernels), chosen, wanted.sample) if wanted.kernels else None
    if given and given.strays:
        many = len(given.strays) > 1
        _say(
            f"{len(given.strays)} {'files belong' if many else 'file belongs'} to no selected problem: {board.some(given.strays)}"
        )
    plain = [asking.Question(problem, target, wanted.options) for problem in chosen]
    questions = _questions(wanted.options, chosen, target, given) if given else plain
    for question in questions:
        keys.setdefault((question.problem.level, question.problem.number), []).append(question.key)
    left = {question.key: question for question in questions if ledger.lacks(question.key, wanted.retry)}
    with _Progress(len(questions), len(left)) as progress:
        if left:
            place.demand(pool, target)
        done = lambda question: progress.done(question.problem.label)
        outstanding = asking.ask(list(left.values()), pool, ledger, progress.stage, done)
    if given:
        _refuse(given, chosen, keys, ledger)
    return outstanding


def _questions(
    options: Options, chosen: list[problems.Problem], target: Target, given: kernels.Given
) -> list[asking.Question]:
    """Each kernel; of a problem that has none, whether it can be scored at all: no baseline need be compiled for that."""
    briefly = replace(options, effort="quick", baselines=("eager_fp32",), min_authored=0.0, energy=False)
    found = []
    for problem in chosen:
        written = given.kernels.get((problem.level, problem.number), {}).values()
        found += [asking.Question(problem, target, options, candidate) for candidate in written]
        if not written:
            found.append(asking.Question(problem, target, briefly))
    return found


def _refuse(given: kernels.Given, chosen: list[problems.Problem], keys: Keys, ledger: Ledger) -> None:
    """Kernels that nobody need be asked about."""
    for problem in chosen:
        spot = (problem.level, problem.number)
        for verdict in given.unreadable.get(spot, ()):
            key = digest("unreadable", problem.task.id, verdict.reason)
            keys.setdefault(spot, []).append(key)
            if ledger.lacks(key, retry=False):
                ledger.add(Entry(key, Result(key, verdict=verdict)))


def _author(
    wanted: Wanted,
    place: Place,
    chosen: list[problems.Problem],
    target: Target,
    pool: Pool,
    ledger: Ledger,
    keys: Keys,
) -> int:
    """As `_ask`. Problems are independent: nothing is learnt from one for the next."""
    assert wanted.author
    named, asked = roles(wanted.roles)
    models = ({"code": wanted.model} if wanted.model else {}) | named
    require_models_to_be_of_use(wanted.author, models)
    budget = limits(wanted.budget, Limits())
    common = RunConfig(
        chosen[0].task,
        target,
        wanted.author,
        models,
        wait=place.wait,
        pool=place.lasting,
        gpu_name=place.match,
        concurrency=wanted.in_flight,
        tune_points=wanted.tune,
        limits=budget,
        options=wanted.options,
        compile_seed=wanted.compiler,
        knowledge=False,
        objective=wanted.objective,
        speed_tolerance=wanted.tolerance,
        roles=asked,
        prices=prices(wanted.prices),
    )
    common = absolute(common, ledger.folder / "runs")
    configs = [replace(common, task=problem.task) for problem in chosen]
    author(configs[0], ledger.folder / "unborn")  # a bad name shows before anything is begun
    every = [authoring.Assignment(problem, config) for problem, config in zip(chosen, configs, strict=True)]
    keys |= {(item.problem.level, item.problem.number): [item.key] for item in every}
    left = [item for item in every if ledger.lacks(item.key, wanted.retry)]
    with _Progress(len(every), len(left)) as progress:
        if left:
            place.demand(pool, target)
        done = lambda item: progress.done(item.problem.label)
        return asyncio.run(
            authoring.work(left, pool, ledger, wanted.parallel, progress.stage, done, progress.note)
        )


# --- showing ---------------------------------------------------------------------------------------------


def _show(wanted: Wanted, target: Target, chosen: list[problems.Problem], keys: Keys, ledger: Ledger) -> None:
    title = f"{wanted.suite} on {target}: {wanted.evaluated}"
    if wanted.probe:
        rows = probing.probed(chosen, keys, ledger.entries)
        if wanted.format == "json":
            found = {"suite": wanted.suite, "target": target, "terms": wanted.terms(target).to_json()}
            print(json.dumps(found | {"problems": [row.to_json() for row in rows]}, indent=1))
        else:
            _print(
                wanted.format,
                title,
                [probing.table(rows)],
                [*probing.remarks(rows), wanted.terms(target).words],
            )
        return
    made = board.board(
        wanted.suite, wanted.evaluated, target, chosen, keys, ledger.entries, wanted.terms(target)
    )
    if wanted.format == "json":
        print(json.dumps(made.to_json(), indent=1))
    else:
        _print(
            wanted.format, title, [board.problem_table(made), board.summary_table(made)], board.remarks(made)
        )


def _print(form: str, title: str, tables: Sequence[board.Table], lines: Sequence[str]) -> None:
    if form == "md":
        print(f"## {title}\n")
        print("\n\n".join(board.markdown(table) for table in tables), end="\n\n")
        print("\n".join(f"- {line.strip()}" for line in lines))
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(title, markup=False)
    for titles, rows in tables:
        drawing = Drawing()
        for name in titles:
            drawing.add_column(name, overflow="fold")
        for row in rows:
            drawing.add_row(*(cell.replace("[", r"\[") for cell in row))
        console.print(drawing)
    for line in lines:
        console.print(line, markup=False)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Progress:
    """On a terminal a line that changes; elsewhere a line for each problem that begins and that is done, and now and then one for
    what is being done. On stderr."""

    def __init__(self, total: int, left: int):
        self._total, self._done = total, total - left
        self._console = Console(stderr=True)
        self._status = self._console.status("starting") if self._console.is_terminal else None
        self._lock = threading.Lock()
        self._begun: set[str] = set()
        self._told = time.monotonic()
        if self._done:
            _say(f"{self._done} of {total} were answered before")

    def stage(self, problem: str, stage: str) -> None:
        if self._status:
            self._status.update(f"{self._done} of {self._total} done; {problem}: {stage}")
            return
        with self._lock:
            begins = problem not in self._begun and not stage.startswith("waiting")
            if begins or time.monotonic() - self._told >= _QUIET_SECONDS:
                self._begun |= {problem} if begins else set()
                self._line(f"{problem}: {stage}")

    def note(self, line: str) -> None:
        """Above the line that changes."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def done(self, problem: str) -> None:
        self._done += 1
        if self._status is None:
            with self._lock:
                self._line(f"{self._done} of {self._total} done: {problem}")

    def _line(self, text: str) -> None:
        self._told = time.monotonic()
        _say(text)

    def __enter__(self) -> _Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()
