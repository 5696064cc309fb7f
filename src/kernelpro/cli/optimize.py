"""`kernelpro optimize` and `kernelpro resume`: a run with a live display."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace

from kernelpro import report
from kernelpro.authors.by_name import create_author
from kernelpro.cli.commands.optimize import OptimizeOptions, ResumeOptions
from kernelpro.cli.display import Display
from kernelpro.cli.errors import INTERNAL_ERROR, INTERRUPTED, print_error
from kernelpro.cli.options import PoolOptions
from kernelpro.cli.parsing import gives_dollars, parse_budget, parse_prices, select_baselines
from kernelpro.cli.pools import (
    absolute_pool,
    open_pool,
    require_target,
    require_target_option,
    stops_for_results,
    worker_hint,
)
from kernelpro.cli.run_config import describe_budget, describe_mode, describe_target, make_run_config
from kernelpro.engine import session
from kernelpro.engine.loop import Engine, Paused, Stopped
from kernelpro.engine.steering import apply_budget
from kernelpro.engine.store import RunStore, runs_dir
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput, Limits, NoVerdict, Options, Outcome, RunConfig
from kernelpro.records.events import ResumeRequested
from kernelpro.report.reproduce import runs_dir_option
from kernelpro.tasks import load_task, with_shapes


def optimize_task(options: OptimizeOptions) -> int:
    """Search for a faster kernel; return the exit code."""
    task = with_shapes(load_task(options.task, mode=options.mode, precision=options.precision), options.shape)
    judge_options = Options(baselines=select_baselines(options), sandbox=options.sandbox)
    config, choice = make_run_config(options, task, judge_options, not options.no_knowledge)
    is_resumable = _exits_while_waiting(config)
    request = session.RunRequest(
        config,
        runs_dir(options.runs_dir),
        options.target,
        options.name or "",
        "unfinished" if is_resumable else "never",
    )
    require_target_option(options, options.target)
    session.validate(request)
    with open_pool(options) as pool:
        if options.target:
            require_target(pool, options.pool, options.target)
        store = session.open_run(request, pool)
        lines = [
            describe_target(store.config().target, options.pool, options.target is not None),
            describe_mode(task, options.mode is not None),
            choice.summary,
            describe_budget(config.limits, gives_dollars(options.budget)),
        ]
        if store.task_facts():
            lines.append(f"continuing run {store.id}, which the same command started; --name starts another")
        outstanding = stops_for_results(config.pool, config.wait)
        return _work(store, pool, options.json, "\n".join(lines), delete_if_unmeasured=not outstanding)


def _exits_while_waiting(config: RunConfig) -> bool:
    """Whether the run exits while answers or results from outside are missing. The same command then
    continues it."""
    has_inbox = any(spec.startswith("inbox:") for spec in config.models.values())
    return not config.wait and (has_inbox or stops_for_results(config.pool, config.wait))


def resume_run(options: ResumeOptions) -> int:
    """Continue a run; return the exit code. A finished run stays as it is unless its budget was raised."""
    store = RunStore.open(runs_dir(options.runs_dir), options.run)
    store.lock()
    has_work = apply_budget(store)
    config = store.config()
    limits = parse_budget(options.budget, config.limits, options.stop_at_floor)
    if store.is_finished and not _allows_more(limits, config.limits):
        limits = config.limits
    changed = replace(
        config,
        limits=limits,
        prices=config.prices | parse_prices(options.price),
        pool=absolute_pool(options.pool or config.pool),
        wait=config.wait or options.wait,
    )
    if changed != config:
        create_author(changed, store.folder)  # raises BadInput before anything is changed
        store.save_config(changed)
    if not has_work and store.is_finished and store.is_winner_profiled and (outcome := store.outcome()):
        print_error(
            f"run {store.id} is finished ({outcome.reason}); to continue it, raise its budget, such as "
            f"--budget candidates={config.limits.candidates + 20}"
        )
        code = _exit_code(store, outcome)
        store.close()
        return code
    store.add_event(ResumeRequested())
    pool_options = PoolOptions(
        pool=changed.pool, gpu_name=changed.gpu_name, wait=changed.wait, sandbox=changed.options.sandbox
    )
    with open_pool(pool_options) as pool:
        return _work(store, pool, options.json)


def _allows_more(limits: Limits, before: Limits) -> bool:
    """Whether a limit was raised or removed."""
    pairs = zip(limits.to_json().values(), before.to_json().values(), strict=True)
    return any(old and (new == 0 or new > old) for new, old in pairs)


def _work(
    store: RunStore, pool: Pool, as_json: bool, first_lines: str = "", delete_if_unmeasured: bool = False
) -> int:
    """Work on a run until it ends or Ctrl-C is pressed; return the exit code."""
    config = store.config()
    display = Display(store, config, as_json)
    if first_lines:
        display.print_line(first_lines)
    resume = f"kernelpro resume {store.id}{runs_dir_option(store)}"
    with session.closing(store, lambda _: _write_report(store, display), delete_if_unmeasured):
        engine = session.create_engine(store, pool, display.on_event)
        display.watch(engine)
        try:
            with display:
                outcome = asyncio.run(_run_until_interrupted(engine))
        except (KeyboardInterrupt, asyncio.CancelledError):
            display.print_line(f"everything so far is saved; continue with: {resume}")
            return INTERRUPTED
        except Stopped as stopped:
            display.print_line(f"{stopped}; everything so far is saved; continue with: {resume}")
            return INTERRUPTED
        except Paused as paused:
            folders = sorted(
                {spec.removeprefix("inbox:") for spec in config.models.values() if spec.startswith("inbox:")}
            )
            questions = ", ".join(f"{folder}/{store.id}__*.md" for folder in folders)
            where = f" (questions: {questions})" if folders else ""
            hint = worker_hint(config.pool)
            display.print_line(f"{paused}{where}{hint}; when they have arrived, continue with: {resume}")
            return 3
        display.print_outcome(outcome)
        return _exit_code(store, outcome)


def _exit_code(store: RunStore, outcome: Outcome) -> int:
    if outcome.best is not None:
        return 0
    failed = any(step.no_verdict is NoVerdict.INTERNAL_ERROR for step in store.steps())
    return INTERNAL_ERROR if failed else 1


def _write_report(store: RunStore, display: Display) -> None:
    """Write the report, however the run ended. If it cannot be written, the outcome does not change."""
    try:
        display.print_report(report.write(store))
    except BadInput as error:
        display.print_line(f"no report: {error}")


async def _run_until_interrupted(engine: Engine) -> Outcome:
    """Run the engine. Ctrl-C and SIGTERM cancel it between two transactions."""
    task = asyncio.ensure_future(engine.run())
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, task.cancel)
    return await task
