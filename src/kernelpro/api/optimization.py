"""Searches for a faster kernel."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelpro.api.judging import Stops, add_baselines, beside_any_loop, check_target
from kernelpro.api.messages import in_python, public
from kernelpro.api.result import OptimizationResult
from kernelpro.records import (
    BadInput,
    Limits,
    Mode,
    Objective,
    Options,
    Outcome,
    Precision,
    Role,
    RunConfig,
    Target,
    Task,
)
from kernelpro.tasks import Inputs, find_reference, load_task

if TYPE_CHECKING:
    from kernelpro.engine.session import RunRequest
    from kernelpro.engine.store import RunStore
    from kernelpro.pools.pool import Pool
    from kernelpro.records.events import RunEvent
    from kernelpro.report.notebook import LiveDisplay
    from kernelpro.report.progress import ProgressLines

BUDGET_PRESETS = {"quick": 20, "normal": 75, "max": 300}
"""Number of candidates of a run. 75 is STARK's budget: 15 seeds and 30 iterations with 2 candidates."""
OnEvent = Callable[["RunEvent"], None]


@public
def optimize(
    reference: Any,
    inputs: Inputs = (),
    *,
    weights: Sequence[float] = (),
    init_inputs: Sequence[Any] | None = None,
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
    race: int = RunConfig.race,
    tune_points: int = RunConfig.tune_points,
    finalists: int = RunConfig.finalists,
    policy: str = RunConfig.policy,
    concurrency: int = RunConfig.concurrency,
    languages: str | Sequence[str] = (),
    seed: int = RunConfig.seed,
    pool: str = "local",
    gpu_name: str = "",
    options: Options | None = None,
    runs_dir: str | Path | None = None,
    on_event: OnEvent | None = None,
) -> OptimizationResult:
    """Search for a faster kernel, as `kernelpro optimize` does.

    `reference`, `inputs`, `weights`, `init_inputs`, `mode` and `precision` describe the task, see
    `load_task`.

    `model` is the LLM that writes kernels. Alternatively, `author` names an author without an LLM
    (`playbook`, `files:DIR`). The default is KERNELPRO_MODEL, else a provider whose key is set, else the
    playbook. `roles` has settings for the roles design, plan, code and debug; `prices` has prices of models,
    such as `{"gpt-x": "1.25/10"}`.

    `budget` is quick, normal or max (20, 75 or 300 candidates); `candidates` overrides it. `dollars` limits
    the cost of the models (default 5 for a model with a price; 0 means no limit) and `tokens` their tokens.
    `wall` and `device` limit the run's time and its device time, in seconds.

    `baselines` are added to the default ones. `compile_seed`: start from the code that torch.compile
    generates. `race`: race the playbook's first designs in one process, and judge only this many of them; 0
    judges all. `tune_points`: how many points of a candidate's tunables are tried. `finalists`: how many of
    the best candidates are judged again at the end, at full length; with 0, the verdicts of the search count.

    `policy` (such as `mcts:seeds=6`), `concurrency`, `seed`, `pool` and `gpu_name` are as on the command
    line; with a spool, the call waits for workers. `languages` are those that kernels may be written in; by
    default all of the target. `options` sets everything else about judging. `on_event` is called with each
    event of the run. By default, the progress and the winner are shown: in a notebook as a table that is
    updated, elsewhere as lines on stderr.

    The same call continues a run that was stopped, and returns the result of a finished run at once. It also
    works in a notebook, where an event loop is running.
    """
    from kernelpro.authors.choice import cap_dollars, choose_author
    from kernelpro.engine import session, store
    from kernelpro.pools.factory import create_pool
    from kernelpro.records.events import Note
    from kernelpro.report import notebook
    from kernelpro.search.policy import parse_policy

    check_target(target)
    if budget not in BUDGET_PRESETS:
        raise BadInput(f"budget {budget!r}: use {', '.join(BUDGET_PRESETS)}, or give candidates=N")
    choice = choose_author(author, model)
    reference, inputs, init_inputs = find_reference(reference, inputs, init_inputs)
    policy_name, constants = parse_policy(policy)
    limits = Limits(
        BUDGET_PRESETS[budget] if candidates is None else candidates,
        cap_dollars(dollars, choice.models, prices or {}),
        tokens,
        wall,
        device,
        stop_at_floor,
    )
    config = RunConfig(
        load_task(reference, inputs, init_inputs, mode, precision, weights),
        target or "cpu",
        choice.author,
        choice.models,
        limits=limits,
        options=add_baselines(options or Options(), baselines),
        compile_seed=compile_seed,
        race=race,
        tune_points=tune_points,
        finalists=finalists,
        roles=roles or {},
        prices=prices or {},
        objective=objective,
        speed_tolerance=speed_tolerance,
        policy=policy_name,
        constants=constants,
        concurrency=concurrency,
        languages=(languages,) if isinstance(languages, str) else tuple(languages),
        seed=seed,
        pool=pool,
        gpu_name=gpu_name,
    )
    request = session.RunRequest(config, store.runs_dir(runs_dir), target, reuse="always")
    session.validate(request)
    printer = _Printer(None if on_event else notebook.live_display())
    notify = on_event or printer.on_event
    cap = f"; stops at {limits.dollars:g} dollars" if limits.dollars else ""
    with create_pool(
        pool, config.options.sandbox, wait=True, gpu_name=gpu_name, warn=printer.print
    ) as workers:
        result = beside_any_loop(_search, workers, request, notify, printer, Note(f"{choice.summary}{cap}"))
    if on_event is None:
        printer.print_result(result)
    is_live = not isinstance(reference, (str, Path, Task))
    return replace(result, reference=reference if is_live else None)


class _Printer:
    """Shows the events of a run that matter to a user, on stderr or in the output of a notebook cell."""

    def __init__(self, live: LiveDisplay | None = None):
        self._lines: ProgressLines | None = None
        self._live = live

    def watch(self, store: RunStore) -> None:
        """Show the events of this run."""
        from kernelpro.report.progress import ProgressLines

        self._lines = ProgressLines(store)

    def print(self, line: str) -> None:
        """Show a line."""
        if self._live:
            self._live.add_line(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def print_result(self, result: OptimizationResult) -> None:
        """Show the winner. A notebook shows the result itself."""
        if not self._live:
            print(result, file=sys.stderr, flush=True)

    def on_event(self, event: RunEvent) -> None:
        from kernelpro.records.events import Note

        if isinstance(event, Note):
            self.print(in_python(event.text))
        elif self._lines and (line := self._lines.line(event)):
            self.print(line)


async def _stoppable(work: Coroutine[Any, Any, Outcome], stops: Stops) -> Outcome:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    stops.append(lambda: loop.call_soon_threadsafe(task.cancel))
    return await task


def _search(
    pool: Pool, request: RunRequest, on_event: OnEvent, printer: _Printer, first: RunEvent, stops: Stops
) -> OptimizationResult:
    from kernelpro.engine import session

    store = session.open_run(request, pool)
    printer.watch(store)
    reports: list[Path | None] = []
    with session.closing(store, lambda _: reports.append(_write_report(store))):
        if not store.is_finished:
            on_event(first)
        outcome = asyncio.run(_stoppable(session.continue_run(store, pool, on_event), stops))
        winner = store.step(outcome.best) if outcome.best is not None else None
        source = store.source(winner.final_source) if winner else None
    return OptimizationResult(store.folder, outcome, source, winner.author if winner else "", reports[0])


def _write_report(store: RunStore) -> Path | None:
    """Write the report. Returns None if it cannot be written: the outcome of the run is still valid."""
    from kernelpro.report import write

    try:
        return write(store)
    except BadInput:
        return None
