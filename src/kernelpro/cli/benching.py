"""`kernelpro bench`: a suite, what is evaluated on it, and the table."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Drawing

from kernelpro.authors.by_name import absolute, author
from kernelpro.cli.place import Place
from kernelpro.cli.roles import prices, roles
from kernelpro.cli.running import limits, require_counter
from kernelpro.engine.session import target_of
from kernelpro.engine.store import default_home
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput, Limits, Options, RunConfig, Target
from kernelpro.suites import asking, authoring, board, kernels, probing, problems
from kernelpro.suites.ledger import Ledger


@dataclass(frozen=True)
class Wanted:
    suite: str
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
        if sum(map(bool, (self.probe, self.kernels, self.author))) != 1:
            raise BadInput("say what to evaluate: --probe, --kernels DIR or --author NAME, one of them")
        if self.options.energy and not self.kernels:
            raise BadInput("--energy goes with --kernels; an author looks for less energy with --objective energy-at-speed or edp")
        if self.objective != "speed" and not self.author:
            raise BadInput(f"--objective {self.objective} goes with --author; kernels are measured with --energy")
        if self.tolerance != RunConfig.speed_tolerance and self.objective == "speed":
            raise BadInput("--tolerance goes with --author and --objective energy-at-speed or edp")


def run(wanted: Wanted, place: Place) -> int:
    """0: everything is answered; 3: answers or results from outside are outstanding."""
    wanted.check()
    place.require(wanted.target)
    with place.open(wanted.options.sandbox) as pool:
        target: Target = wanted.target or target_of(pool)
        require_counter(pool, target, wanted.objective)
        chosen = problems.find(wanted.suite, wanted.levels, wanted.ids, target, wanted.mode, wanted.precision)
        with Ledger(_folder(wanted)) as ledger:
            if ledger.unreadable:
                _say(f"{ledger.unreadable} lines of {ledger.folder / 'results.jsonl'} cannot be read and are asked again")
            if wanted.author:
                keys, outstanding = _author(wanted, place, chosen, target, pool, ledger)
            else:
                keys, outstanding = _ask(wanted, chosen, target, pool, ledger)
            _show(wanted, target, chosen, keys, ledger)
            _say(f"results: {ledger.folder / 'results.jsonl'}")
    if outstanding:
        _say(f"{outstanding} answers or results are outstanding; the same command goes on")
    return 3 if outstanding else 0


def _folder(wanted: Wanted) -> Path:
    if wanted.out:
        return Path(wanted.out)
    kind = "probe" if wanted.probe else "kernels" if wanted.kernels else "author"
    return default_home().parent / "benches" / f"{Path(wanted.suite).resolve().name if wanted.suite != 'own' else 'own'}-{kind}"


Keys = dict[tuple[int, int], list[str]]


def _ask(wanted: Wanted, chosen: list[problems.Problem], target: Target, pool: Pool, ledger: Ledger) -> tuple[Keys, int]:
    if wanted.kernels:
        given = kernels.find(Path(wanted.kernels), chosen, wanted.sample)
        questions = [
            asking.Question(problem, target, wanted.options, candidate)
            for problem in chosen
            for candidate in given.get((problem.level, problem.number), {}).values()
        ]
    else:
        questions = [asking.Question(problem, target, wanted.options) for problem in chosen]
    left = {question.key: question for question in questions if ledger.lacks(question.key, wanted.retry)}
    with _Progress(len(questions), len(left)) as progress:
        done = lambda question: progress.done(question.problem.label)
        outstanding = asking.ask(list(left.values()), pool, ledger, progress.stage, done)
    keys: Keys = {}
    for question in questions:
        keys.setdefault((question.problem.level, question.problem.number), []).append(question.key)
    return keys, outstanding


def _author(
    wanted: Wanted, place: Place, chosen: list[problems.Problem], target: Target, pool: Pool, ledger: Ledger
) -> tuple[Keys, int]:
    """Problems are independent: nothing is learnt from one for the next."""
    assert wanted.author
    named, asked = roles(wanted.roles)
    models = ({"code": wanted.model} if wanted.model else {}) | named
    budget = limits(wanted.budget, Limits())
    common = RunConfig(
        chosen[0].task,
        target,
        wanted.author,
        models,
        wait=place.wait,
        limits=budget,
        options=wanted.options,
        compiler=wanted.compiler,
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
    left = [item for item in every if ledger.lacks(item.key, wanted.retry)]
    with _Progress(len(every), len(left)) as progress:
        done = lambda item: progress.done(item.problem.label)
        outstanding = asyncio.run(authoring.work(left, pool, ledger, wanted.parallel, progress.stage, done, progress.note))
    return {(item.problem.level, item.problem.number): [item.key] for item in every}, outstanding


# --- showing ---------------------------------------------------------------------------------------------


def _show(wanted: Wanted, target: Target, chosen: list[problems.Problem], keys: Keys, ledger: Ledger) -> None:
    title = f"{wanted.suite} on {target}: {wanted.evaluated}"
    if wanted.probe:
        rows = probing.probed(chosen, keys, ledger.entries)
        if wanted.format == "json":
            found = {"suite": wanted.suite, "target": target, "problems": [row.to_json() for row in rows]}
            print(json.dumps(found, indent=1))
        else:
            _print(wanted.format, title, [probing.table(rows)], probing.remarks(rows))
        return
    made = board.board(wanted.suite, wanted.evaluated, target, chosen, keys, ledger.entries)
    if wanted.format == "json":
        print(json.dumps(made.to_json(), indent=1))
    else:
        _print(wanted.format, title, [board.problem_table(made), board.summary_table(made)], board.remarks(made))


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
    """On a terminal a line that changes; elsewhere a line for each problem that is done. On stderr."""

    def __init__(self, total: int, left: int):
        self._total, self._done = total, total - left
        self._console = Console(stderr=True)
        self._status = self._console.status("starting") if self._console.is_terminal else None
        if self._done:
            _say(f"{self._done} of {total} were answered before")

    def stage(self, problem: str, stage: str) -> None:
        if self._status:
            self._status.update(f"{self._done} of {self._total} done; {problem}: {stage}")

    def note(self, line: str) -> None:
        """Above the line that changes."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def done(self, problem: str) -> None:
        self._done += 1
        if self._status is None:
            _say(f"{self._done}/{self._total} {problem}")

    def __enter__(self) -> _Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()
