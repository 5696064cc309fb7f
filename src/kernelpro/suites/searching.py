"""Runs an author on a suite: one run per problem, in the benchmark's folder, so that each can resume."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelpro.authors.author import Author
from kernelpro.engine import model_costs, session
from kernelpro.engine.loop import Paused
from kernelpro.engine.store import RunStore
from kernelpro.pools.local import DeviceFailed
from kernelpro.pools.pool import Pool
from kernelpro.records import (
    BadInput,
    Candidate,
    InternalError,
    NotScorable,
    Result,
    RunConfig,
    Status,
    Step,
    StudyData,
    Task,
    Verdict,
    digest,
)
from kernelpro.records.base import describe_bug
from kernelpro.records.events import JobProgress, Note, RunEvent, StepProgress
from kernelpro.suites.compile_next import CompileNext, DesignsOf
from kernelpro.suites.design_writers import WriterProcesses, WritersClosed
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
    problem_limit: float | None = None,
) -> int:
    """Run all searches, `parallel` at a time; return how many wait for answers or results from outside, or
    were stopped after `time_limit` seconds. A search that takes longer than `problem_limit` seconds is given
    up: its problem counts as not run.

    The next search is the first that is compiled and built ahead; if there is none, the first.
    """
    if not searches:
        return 0
    problems = ((search.problem.task, search.config.target, search.config.options) for search in searches)
    authors = _AheadAuthors(searches)
    compile_next = CompileNext(pool, problems, authors.designs_of)
    waiting, outstanding = list(searches), len(searches)

    async def run_next() -> None:
        nonlocal outstanding
        while waiting:
            search = waiting.pop(compile_next.first_ready([each.problem.task for each in waiting]))
            compile_next.after(search.problem.task)
            try:
                author = authors.take(search.problem.task)
                runs_dir = log.folder / "runs"
                log.add(await _search(search, author, pool, runs_dir, on_stage, on_note, problem_limit))
            except Paused as paused:
                on_stage(search.problem.label, str(paused))
                continue
            finally:
                pool.end_run(search.problem.task)
            outstanding -= 1
            on_done(search)

    tasks = [asyncio.create_task(run_next()) for _ in range(parallel)]
    try:
        done, stopped = await asyncio.wait(tasks, timeout=time_limit, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        authors.close()
    for task in stopped:
        task.cancel()
    await asyncio.gather(*stopped, return_exceptions=True)
    for task in done:
        task.result()  # raises its exception
    return outstanding


class _AheadAuthors:
    """Authors that write the designs of later searches, which then continue with these authors: writing the
    designs of a network takes up to a minute."""

    def __init__(self, searches: Sequence[BenchSearch]):
        self._configs = {search.problem.task.id: search.config for search in searches}
        self._authors: dict[str, Author] = {}
        self._writers = WriterProcesses()

    @property
    def designs_of(self) -> DesignsOf | None:
        """The function that writes the designs that will race; None if designs do not race."""
        config = next(iter(self._configs.values()))
        return self._designs_of if config.race and not config.models else None

    def _designs_of(self, task: Task, study: StudyData) -> tuple[Candidate, ...]:
        try:
            self._authors[task.id], designs = self._writers.write(self._configs[task.id], study)
        except WritersClosed:
            return ()
        return designs

    def take(self, task: Task) -> Author | None:
        """The author that has written the designs of a task; None if there is none."""
        return self._authors.pop(task.id, None)

    def close(self) -> None:
        """Stop writing."""
        self._writers.close()


async def _search(
    search: BenchSearch,
    author: Author | None,
    pool: Pool,
    runs_dir: Path,
    on_stage: OnStage,
    on_note: Callable[[str], None],
    seconds_limit: float | None,
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

    winner_author = ending = no_gain = ""
    limit = asyncio.timeout(seconds_limit)
    try:
        async with limit:
            outcome = await session.continue_run(store, pool, on_event, explain=False, author=author)
        reason = f"run {store.id}: {outcome.reason}"
        if outcome.unanswered:  # the model could not be reached: `--retry` continues the run
            result = Result(search.key, error=reason)
        elif verdict := outcome.verdict or _first_failure(store):
            result = Result(search.key, verdict=verdict)
            winner = store.step(outcome.best) if outcome.best is not None else None
            winner_author = winner.author if winner else ""
            no_gain = _no_gain(store, winner, verdict)
        else:
            result, ending = Result(search.key), reason
    except NotScorable as error:
        verdict = Verdict("", Status.NOT_SCORABLE, error.reason, task=config.task.name)
        result = Result(search.key, verdict=verdict)
    except DeviceFailed:  # the other searches would fail too
        raise
    except BadInput as error:  # the task does not run
        result = Result(search.key, error=str(error), internal_error=isinstance(error, InternalError))
    except Exception as error:
        if limit.expired():
            pool.abandon_task(config.task)  # a worker may be busy with it for ever
            result = Result(search.key, error=f"given up after {seconds_limit:g} s (--problem-limit)")
        else:  # a bug: the other searches go on
            traceback.print_exc()
            result = Result(search.key, error=describe_bug(error), internal_error=True)
    finally:
        steps, by_use = store.steps(), store.device_seconds
        store.close()
    cost = model_costs.read(store.folder, steps).total
    seconds = sum(by_use.values())
    return LoggedResult(search.key, result, seconds, by_use, cost, winner_author, ending, no_gain, label)


def _no_gain(store: RunStore, winner: Step | None, verdict: Verdict) -> str:
    """A text that says that nothing is faster than the baselines; empty if something is."""
    facts = store.task_facts()
    if winner is None or facts is None or verdict.faster == "yes":
        return ""
    if winner.number <= len(facts.seeds):
        return f"no gain: the fastest is {winner.author}'s own code"
    fastest = min(verdict.speedup, key=lambda name: verdict.speedup[name].value)
    return f"no gain: keep {fastest}" if verdict.faster == "no" else ""


def _first_failure(store: RunStore) -> Verdict | None:
    """The verdict on the first candidate that was judged and failed."""
    verdicts = (step.verdict for step in store.steps() if step.verdict)
    return next((verdict for verdict in verdicts if verdict.status is not Status.PASSED), None)
