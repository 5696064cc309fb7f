"""The Python API: judge or optimize a KernelBench file, a class by name, a module with example inputs, or a
function."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from kernelpro.records import (
    BASELINES,
    BadInput,
    Candidate,
    Interval,
    Job,
    Limits,
    Mode,
    Objective,
    Options,
    Outcome,
    Precision,
    Role,
    RunConfig,
    Target,
    Verdict,
)
from kernelpro.tasks import load_task

if TYPE_CHECKING:
    from kernelpro.engine.session import RunRequest
    from kernelpro.engine.store import RunStore
    from kernelpro.pools.pool import Pool
    from kernelpro.records.events import RunEvent

BUDGET_PRESETS = {"quick": 20, "normal": 75, "max": 300}
"""Candidates of a run. 75 is STARK's budget: 15 seeds and 30 iterations of 2."""
OnEvent = Callable[["RunEvent"], None]

_OPTION = re.compile(r"`?--(author|model|target|mode|price|role|disable-tripwire)(?: ([^\s;,)`]+))?`?")
_NOT_VALUES = ("and", "or", "as", "to", "for", "uses", "needs")

__all__ = ["BUDGET_PRESETS", "OnEvent", "OptimizationResult", "judge", "load_task", "optimize"]


def in_python(message: str) -> str:
    """A message of KernelPro with the parameters of Python instead of command-line options."""

    def keyword(match: re.Match[str]) -> str:
        name, value = match[1], match[2] or ""
        if value in _NOT_VALUES:
            return f"{_keyword(name, '')} {value}"
        end = value[len(value.rstrip(":.")) :]
        return _keyword(name, value.rstrip(":.")) + end

    return _OPTION.sub(keyword, message)


def _keyword(option: str, value: str) -> str:
    match option, value:
        case "price", _:
            model, _, price = value.partition("=")
            return f'prices={{"{model}": "{price}"}}' if value else "prices"
        case "role", _:
            return f'roles={{"{value}": ...}}' if value else "roles"
        case "disable-tripwire", _:
            return f'options=Options(disabled_tripwires=("{value}",))'
        case _:
            return f'{option}="{value}"' if value else option


@contextmanager
def _errors_in_python() -> Iterator[None]:
    try:
        yield
    except BadInput as error:
        raise type(error)(in_python(str(error))) from None


@_errors_in_python()
def judge(
    reference: Any,
    candidates: str | Path | Candidate | Sequence[str | Path | Candidate],
    inputs: Sequence[Any] = (),
    *,
    init_inputs: Sequence[Any] = (),
    mode: Mode | None = None,
    precision: Precision | None = None,
    target: Target | None = None,
    quick: bool = False,
    full: bool = False,
    baselines: str | Sequence[str] = (),
    options: Options | None = None,
) -> list[Verdict]:
    """Judge candidates (paths or Candidates) on this machine; returns a verdict for each.

    `reference`, `inputs`, `init_inputs`, `mode` and `precision` describe the task, see `load_task`. `quick`
    and `full` measure for a shorter or longer time. `baselines` are added to the default ones. `options` sets
    everything else about judging.
    """
    from kernelpro.pools import local

    _check_target(target)
    if quick and full:
        raise BadInput("quick and full exclude each other: give one")
    several = [candidates] if isinstance(candidates, (str, Path, Candidate)) else list(candidates)
    loaded = [item if isinstance(item, Candidate) else Candidate.from_file(item) for item in several]
    task = load_task(reference, inputs, init_inputs, mode, precision)
    judge_options = _add_baselines(options or Options(), baselines)
    if quick or full:
        judge_options = replace(judge_options, effort="quick" if quick else "full")
    jobs = [Job(str(i), "judge", task, item, target, judge_options) for i, item in enumerate(loaded)]
    verdicts = []
    for result in local.run_locally(jobs, sandbox=judge_options.sandbox):
        if result.verdict is None:
            raise result.exception("verdict")
        verdicts.append(replace(result.verdict, reason=in_python(result.verdict.reason)))
    return verdicts


def _check_target(target: str | None) -> None:
    if target not in (None, *get_args(Target)):
        raise BadInput(f"target {target!r}: use {' or '.join(map(repr, get_args(Target)))}")


def _add_baselines(options: Options, baselines: str | Sequence[str]) -> Options:
    baselines = [baselines] if isinstance(baselines, str) else baselines
    if unknown := [name for name in baselines if name not in BASELINES]:
        raise BadInput(f"baseline {unknown[0]}: not one of {', '.join(BASELINES)}")
    names = {*options.baselines, *baselines}
    return replace(options, baselines=tuple(name for name in BASELINES if name in names))


@dataclass(frozen=True, repr=False)
class OptimizationResult:
    """How a run ended, and its winner."""

    run: Path
    """The folder of the run; `kernelpro show NAME --runs-dir FOLDER` shows it."""
    outcome: Outcome
    source: str | None
    """The source of the winner, a file with `ModelNew`; None if no candidate passed."""
    author: str = ""
    """Who wrote the winner."""
    report: Path | None = None
    """The HTML report; None if it could not be written."""

    @property
    def verdict(self) -> Verdict | None:
        """The final verdict on the winner."""
        return self.outcome.verdict

    @property
    def speedups(self) -> dict[str, Interval]:
        """The speedup of the winner over each baseline; empty if there is no winner."""
        return self.verdict.speedup if self.verdict else {}

    @property
    def speedup(self) -> float | None:
        """The speedup of the winner over the fastest baseline; None if there is no winner."""
        return min((ratio.value for ratio in self.speedups.values()), default=None)

    def __str__(self) -> str:
        from kernelpro.report import wording

        if self.verdict is None:
            return f"no winner: {self.outcome.reason}"
        lines = [wording.describe_winner(self.verdict, self.outcome.best, self.author)]
        speedups = [f"{name} {wording.format_speedup(ratio)}" for name, ratio in self.speedups.items()]
        lines.append(f"  over each baseline: {', '.join(speedups)}")
        if self.report:
            lines.append(f"  report: {self.report}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"OptimizationResult({str(self).splitlines()[0]}; run {self.run})"


@_errors_in_python()
def optimize(
    reference: Any,
    inputs: Sequence[Any] = (),
    *,
    init_inputs: Sequence[Any] = (),
    mode: Mode | None = None,
    precision: Precision | None = None,
    target: Target | None = None,
    model: str = "",
    author: str | None = None,
    roles: dict[str, Role] | None = None,
    prices: dict[str, str] | None = None,
    budget: str = "normal",
    candidates: int | None = None,
    dollars: float | None = None,
    tokens: int = 0,
    wall: float = 0.0,
    device: float = 0.0,
    stop_at_floor: float = Limits.stop_at_floor,
    baselines: str | Sequence[str] = (),
    objective: Objective = "speed",
    speed_tolerance: float = RunConfig.speed_tolerance,
    compile_seed: bool = True,
    options: Options | None = None,
    runs_dir: str | Path | None = None,
    on_event: OnEvent | None = None,
) -> OptimizationResult:
    """Search for a faster kernel, as `kernelpro optimize` does.

    `reference`, `inputs`, `init_inputs`, `mode` and `precision` describe the task, see `load_task`.

    `model` is the LLM that writes kernels, or `author` names an author without one (`playbook`, `files:DIR`);
    by default KERNELPRO_MODEL, else a provider whose key is set, else the playbook. `roles` are settings of
    design, plan, code and debug; `prices` are prices of models, such as `{"gpt-x": "1.25/10"}`.

    `budget` is quick, normal or max (20, 75 or 300 candidates); `candidates` overrides it. `dollars` limits
    the cost of the models (default 5 for a model with a price; 0: no limit), `tokens` their tokens, `wall`
    and `device` the seconds.

    `baselines` are added to the default ones. `compile_seed`: start from the code that torch.compile
    generates. `options` sets everything else about judging. `on_event` receives the events of the run; by
    default, lines about the progress and the winner go to stderr.

    The same call continues a run that was stopped and returns the result of a finished one at once. It can be
    called in a notebook, where an event loop is running.
    """
    from kernelpro.authors.choice import cap_dollars, choose_author
    from kernelpro.engine import session, store
    from kernelpro.pools.local import LocalPool
    from kernelpro.records.events import Note

    _check_target(target)
    if budget not in BUDGET_PRESETS:
        raise BadInput(f"budget {budget!r}: use {', '.join(BUDGET_PRESETS)}, or give candidates=N")
    choice = choose_author(author, model)
    limits = Limits(
        BUDGET_PRESETS[budget] if candidates is None else candidates,
        cap_dollars(dollars, choice.models, prices or {}),
        tokens,
        wall,
        device,
        stop_at_floor,
    )
    config = RunConfig(
        load_task(reference, inputs, init_inputs, mode, precision),
        target or "cpu",
        choice.author,
        choice.models,
        limits=limits,
        options=_add_baselines(options or Options(), baselines),
        compile_seed=compile_seed,
        roles=roles or {},
        prices=prices or {},
        objective=objective,
        speed_tolerance=speed_tolerance,
    )
    request = session.RunRequest(config, store.runs_dir(runs_dir), target, reuse="always")
    session.validate(request)
    printer = _Printer()
    notify = on_event or printer.on_event
    cap = f"; stops at {limits.dollars:g} dollars" if limits.dollars else ""
    with LocalPool(config.options.sandbox) as pool:
        result = _beside_any_loop(_search, pool, request, notify, printer, Note(f"{choice.summary}{cap}"))
    if on_event is None:
        print(result, file=sys.stderr, flush=True)
    return result


class _Printer:
    """Prints the events of a run that a user wants to read, on stderr."""

    store: RunStore | None = None

    def on_event(self, event: RunEvent) -> None:
        from kernelpro.records.events import Note, RunStarted, StepProgress, TaskMeasured
        from kernelpro.report import wording

        line = ""
        match event:
            case RunStarted():
                if (store := self.store) is not None:
                    measured = store.task_facts() is not None
                    line = wording.describe_start(store.id, store.config(), measured)
            case Note(text):
                line = in_python(text)
            case TaskMeasured():
                line = wording.describe_baselines(event)
            case StepProgress(number, "final_judging"):
                line = wording.describe_final_judging(number)
            case StepProgress(number, "settled"):
                step = self.store.step(number) if self.store else None
                line = wording.describe_step(step) if step else ""
        if line:
            print(line, file=sys.stderr, flush=True)


Stops = list[Callable[[], object]]
"""Functions that stop a run from another thread."""


def _beside_any_loop(work: Callable[..., OptimizationResult], *arguments: Any) -> OptimizationResult:
    """Run `work` in its own thread if an event loop is running here, as in a notebook. Ctrl-C stops it."""
    stops: Stops = []
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work(*arguments, stops)
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(work, *arguments, stops).result()
        except KeyboardInterrupt:
            for stop in stops:
                stop()
            raise


async def _stoppable(work: Coroutine[Any, Any, Outcome], stops: Stops) -> Outcome:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    stops.append(lambda: loop.call_soon_threadsafe(task.cancel))
    return await task


def _search(
    pool: Pool, request: RunRequest, on_event: OnEvent, printer: _Printer, first: RunEvent, stops: Stops
) -> OptimizationResult:
    from kernelpro.engine import session

    store = session.open_run(request, pool)
    printer.store = store
    reports: list[Path | None] = []
    with session.closing(store, lambda _: reports.append(_write_report(store))):
        if not store.is_finished:
            on_event(first)
        outcome = asyncio.run(_stoppable(session.continue_run(store, pool, on_event), stops))
        winner = store.step(outcome.best) if outcome.best is not None else None
        source = store.source(winner.final_source) if winner else None
    return OptimizationResult(store.folder, outcome, source, winner.author if winner else "", reports[0])


def _write_report(store: RunStore) -> Path | None:
    """The report, or None: a report that cannot be written does not change the outcome."""
    from kernelpro.report import write

    try:
        return write(store)
    except BadInput:
        return None
