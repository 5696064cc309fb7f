"""Runs an author on a suite: one run per problem, in the benchmark's folder, so that each can resume."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelpro.authors.by_name import create_author
from kernelpro.engine import model_costs, session
from kernelpro.engine.design_race import designs_ahead
from kernelpro.engine.loop import Paused
from kernelpro.engine.store import RunStore
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput, InternalError, Result, RunConfig, Status, Step, Verdict, digest
from kernelpro.records.events import JobProgress, Note, RunEvent, StepProgress
from kernelpro.suites.compile_next import CompileNext, DesignsOf
from kernelpro.suites.judging import OnStage
from kernelpro.suites.problems import Problem
from kernelpro.suites.results_log import LoggedResult, ResultsLog


@dataclass(frozen=True)
class BenchSearch:
    """A problem and the configuration of its run."""

    problem: Problem
    config: RunConfig

    @property
    def key(self) -> str:
        """The identity of the search, by its content."""
        return digest("assignment", self.problem.task.id, session.identity(self.config))


async def run_searches(
    searches: Sequence[BenchSearch],
    pool: Pool,
    log: ResultsLog,
    parallel: int,
    on_stage: OnStage,
    on_done: Callable[[BenchSearch], None],
    on_note: Callable[[str], None] = lambda line: None,
    time_limit: float | None = None,
) -> int:
    """Run all searches, `parallel` at a time; return how many wait for answers or results from outside, or
    were stopped after `time_limit` seconds."""
    if not searches:
        return 0
    semaphore = asyncio.Semaphore(parallel)
    problems = ((search.problem.task, search.config.target, search.config.options) for search in searches)
    compile_next = CompileNext(pool, problems, _designs_of(searches))

    async def run(search: BenchSearch) -> bool:
        async with semaphore:
            compile_next.after(search.problem.task)
            try:
                log.add(await _search(search, pool, log.folder / "runs", on_stage, on_note))
            except Paused as paused:
                on_stage(search.problem.label, str(paused))
                return False
            on_done(search)
            return True

    tasks = [asyncio.create_task(run(search)) for search in searches]
    done, stopped = await asyncio.wait(tasks, timeout=time_limit, return_when=asyncio.FIRST_EXCEPTION)
    for task in stopped:
        task.cancel()
    await asyncio.gather(*stopped, return_exceptions=True)
    compile_next.close()
    return sum(not task.result() for task in done) + len(stopped)


def _designs_of(searches: Sequence[BenchSearch]) -> DesignsOf | None:
    """The function that writes the designs that will race; None if designs do not race."""
    config = searches[0].config if searches else None
    if config is None or not config.race or config.models:
        return None
    author = create_author(config, Path())
    return lambda task, study: designs_ahead(author, config, task, study)


async def _search(
    search: BenchSearch, pool: Pool, runs_dir: Path, on_stage: OnStage, on_note: Callable[[str], None]
) -> LoggedResult:
    label, config = search.problem.label, search.config
    store = session.find_or_create_run(
        session.RunRequest(config, runs_dir, config.target, label, reuse="always")
    )

    def on_event(event: RunEvent) -> None:
        match event:
            case Note(text):
                on_note(f"{label}: {text}")
            case StepProgress(step, phase):
                on_stage(label, f"step {step}: {phase.replace('_', ' ')}")
            case JobProgress(_, stage):
                on_stage(label, stage)
            case _:
                on_stage(label, event.kind.replace("_", " "))

    author = ending = no_gain = ""
    try:
        outcome = await session.continue_run(store, pool, on_event, explain=False)
        reason = f"run {store.id}: {outcome.reason}"
        if outcome.unanswered:  # the model could not be reached: `--retry` continues the run
            result = Result(search.key, error=reason)
        elif verdict := outcome.verdict or _first_failure(store):
            result = Result(search.key, verdict=verdict)
            winner = store.step(outcome.best) if outcome.best is not None else None
            author = winner.author if winner else ""
            no_gain = _no_gain(store, winner, verdict)
        else:
            result, ending = Result(search.key), reason
    except BadInput as error:  # the task cannot be scored, or does not run
        result = Result(search.key, error=str(error), internal_error=isinstance(error, InternalError))
    finally:
        steps, by_use = store.steps(), store.device_seconds
        store.close()
    cost = model_costs.read(store.folder, steps).total
    return LoggedResult(search.key, result, sum(by_use.values()), by_use, cost, author, ending, no_gain)


def _no_gain(store: RunStore, winner: Step | None, verdict: Verdict) -> str:
    """A text that says that nothing is faster than the baselines; empty if something is."""
    facts = store.task_facts()
    if winner is None or facts is None or verdict.faster == "yes":
        return ""
    if winner.number <= len(facts.seeds):
        return f"no gain: the fastest is {winner.author}'s own code"
    return f"no gain: keep {verdict.measurement.against}" if verdict.faster == "no" else ""


def _first_failure(store: RunStore) -> Verdict | None:
    """The verdict on the first candidate that was judged and failed."""
    verdicts = (step.verdict for step in store.steps() if step.verdict)
    return next((verdict for verdict in verdicts if verdict.status is not Status.PASSED), None)
