"""The search loop of a run, asynchronous and repeatable.

1. The task is measured once, by a probe and a study (task_facts.py). The code of compilers becomes the first
   steps (authors/seeded.py).
2. While the budget lasts and fewer than `concurrency` steps are open, the policy chooses a node and an action
   from the tree and from a random generator that is a function of (seed, step) alone. The step is on disk
   before anything else happens.
3. Each open step proceeds on its own: its author writes a candidate, duplicates are dropped, the pool judges
   the candidate and tunes its tunables (evaluator.py). Each stage is on disk when it is done.
4. Results are settled in the order in which the steps were chosen. So the tree that a choice depends on is
   determined by results, never by timing, and a killed run continues exactly where it was.
5. At the end the best few candidates are judged again, at full length and against all baselines
   (final_judging.py).

Requests of the user (steering.py) are read between steps and change what is chosen next.

If answers or results come from outside, the run requests everything it can and then stops with `Paused`. When
it is resumed, it repeats the requests and finds what has arrived.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kernelpro.authors.author import (
    AnswerPending,
    Assignment,
    Author,
    BudgetExhausted,
    ModelUnreachable,
    NoMoreProposals,
    NoProposal,
    NoUsableAnswer,
    source_fingerprint,
)
from kernelpro.authors.seeded import SeededAuthor
from kernelpro.engine import learning, objective
from kernelpro.engine.author_state import AuthorState
from kernelpro.engine.design_race import RaceResults, race_designs
from kernelpro.engine.evaluator import Evaluator
from kernelpro.engine.final_judging import FinalJudging
from kernelpro.engine.prompt_context import PromptContext
from kernelpro.engine.run_state import OnEvent, RunState
from kernelpro.engine.step_profiler import StepProfiler, load_track_record
from kernelpro.engine.store import RunStore
from kernelpro.engine.task_facts import measure_task
from kernelpro.memory.knowledge import Knowledge
from kernelpro.pools.pool import Pool, ResultPending
from kernelpro.records import (
    BadInput,
    ComparableTimes,
    Job,
    NoVerdict,
    Outcome,
    Progress,
    Result,
    Step,
    StepDetails,
    Verdict,
)
from kernelpro.records.events import (
    JobProgress,
    Note,
    RunEvent,
    RunFailed,
    RunPaused,
    RunStarted,
    RunStopped,
    StepChosen,
    StepProgress,
    TaskMeasured,
)
from kernelpro.search.choice import SEED, Choice, expand
from kernelpro.search.policy import make_policy
from kernelpro.search.tree import Tree

_MEMORY_TOKENS = 800
_POLL_SECONDS = 0.5
"""Interval at which a running process checks for a request to stop."""


def ignore_event(event: RunEvent) -> None:
    """The default `on_event` callback."""


class Paused(Exception):
    """The run waits for answers or results from outside. It continues when it is resumed."""

    def __init__(self, answers: int, results: int):
        counts = ((answers, "answer"), (results, "result"))
        amounts = [f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count]
        super().__init__(f"{' and '.join(amounts)} outstanding")


class Stopped(Paused):
    """The user asked the run to stop."""

    def __init__(self) -> None:
        Exception.__init__(self, "stopped at the user's request")


class Engine(RunState):
    """Works on one run until its budget is spent, with an author and a pool."""

    def __init__(
        self,
        store: RunStore,
        pool: Pool,
        author: Author,
        on_event: OnEvent = ignore_event,
        knowledge: Knowledge | None = None,
    ):
        super().__init__(store, author, on_event)
        self._pool = pool
        self._knowledge = knowledge or Knowledge(None)
        self._policy = make_policy(self._config.policy, **self._config.constants)
        self._open: dict[int, asyncio.Task[Step]] = {}
        self._drafted: dict[int, asyncio.Event] = {}
        self._profiles: list[asyncio.Task[None]] = []
        self._stop_requested = False

    async def run(self, explain: bool = True) -> Outcome:
        """Work until the budget is spent or the floor is reached. A finished run continues if its budget was
        raised; otherwise its stored outcome is returned. `explain`: also diagnose the winner."""
        self._store.clear_activity()
        self._emit(RunStarted())
        watcher = asyncio.create_task(self._watch_for_stop(asyncio.current_task()))
        try:
            await self._prepare()
            self._restore()
            restored = len(self.steps)
            reason = await self._search()
            previous = self._store.outcome() if len(self.steps) == restored else None
            await asyncio.gather(*self._profiles, return_exceptions=True)
            outcome = previous or await self._judge_finalists(reason)
        except asyncio.CancelledError:
            with suppress(BadInput):
                self._steering.apply_stops(len(self.steps) + 1)
                self._store.add_event(RunStopped(str(Stopped()) if self._stop_requested else "interrupted"))
            if not self._stop_requested:
                raise
            raise Stopped from None
        except (AnswerPending, ResultPending):
            pending = sum(isinstance(result, AnswerPending) for result in await self._drain())
            paused = Paused(pending, self._pool.pending_jobs)
            self._store.add_event(RunPaused(str(paused)))
            raise paused from None
        except BadInput as error:
            await self._drain()  # keep the results of open steps, which cost money and device time
            with suppress(BadInput):  # the store itself may have failed
                self._store.add_event(RunFailed(str(error)))
            raise
        except Exception as error:  # a bug of KernelPro; the live page shows the event
            with suppress(BadInput):
                reason = f"internal error of KernelPro: {type(error).__name__}: {error}"
                self._store.add_event(RunFailed(reason))
            raise
        finally:
            for task in (watcher, *self._open.values(), *self._profiles):
                task.cancel()
            if self.facts:
                self._profiler.cancel()
            with suppress(BadInput):
                self._store.clear_activity()
            self._store.save_wall_seconds(self.budget.wall_seconds)
        if previous is None or not self._store.is_finished:  # the limits have changed
            self._store.save_outcome(outcome)
        if explain and outcome.best is not None:
            with suppress(ResultPending):  # the run does not wait for a result from outside
                await self._profiler.ensure_profiled(outcome.best)
        if previous is None and self._knowledge.enabled:
            steps = self.steps.values()
            self._knowledge.add(learning.observations(steps, self._config, self.times, self._store.id))
        return outcome

    async def _drain(self) -> list[Step | BaseException]:
        """Wait until every open step has got as far as it can. Returns each step or its exception."""
        return await asyncio.gather(*self._open.values(), return_exceptions=True)

    async def _watch_for_stop(self, worker: asyncio.Task[Any] | None) -> None:
        """Cancel the work as soon as the user requests a stop."""
        while True:
            with suppress(BadInput):  # disk full or store locked: the next transaction reports it
                self._steering.poll()
            if self._steering.stops_now and worker:
                self._stop_requested = True
                worker.cancel()
                worker.uncancel()  # the exception is not Ctrl-C's: it ends as Stopped
                return
            await asyncio.sleep(_POLL_SECONDS)

    # --- 1: the task -----------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        facts = await measure_task(self._store, self._config, self._submit)
        self.times = ComparableTimes.of(facts)
        self.tree = Tree(facts.baseline_ms, facts.floor_ms, len(facts.seeds), self._config.limits.candidates)
        self._evaluator = Evaluator(self._config, self._store, self._submit, self._emit, self.times)
        self._profiler = StepProfiler(
            self._config, self._store, self._submit, self._emit, self.steps, self._save, facts.baselines
        )
        self._context = PromptContext(self._config, facts, self.tree, self.steps, self._store)
        self._emit(TaskMeasured(facts.baselines, facts.floor_ms))
        first = self._context.assignment(Step(1, 0, "seed"))
        if self._config.race and not facts.race:
            designs = self._author.trusted_designs(first)
            facts = await race_designs(
                designs, facts, self._store, self._config, self._submit, lambda line: self._emit(Note(line))
            )
        self.facts, self._race = facts, RaceResults(facts.race, self._config.race)
        self._author_state = AuthorState(len(facts.seeds), self._author.design_count(first))
        if self._author.improves_own_only:
            self._author_state.exhausted_nodes |= set(range(1, len(facts.seeds) + 1))
        self._writer = SeededAuthor(self._author, facts.seeds)
        if facts.seed_errors:
            self._emit(Note(f"no seed from {facts.seed_errors}"))

    def _restore(self) -> None:
        """Rebuild the tree from the stored steps. Before a step is added, the results that its choice
        depended on are settled."""
        steps = self._store.steps()
        settled = [step for step in steps if step.stage == "settled"]
        self._steering.poll()
        for step in steps:
            self._index(step)
            if step.number in self._steering.applied_at:
                self._author_state.forget_streaks()
            # a choice of a resumed run may depend on more results than its concurrency implies
            visible = max(step.number - self._config.concurrency, step.parent, step.donor)
            while settled and settled[0].number <= visible:
                self._apply(settled.pop(0))
            self.tree.add(step.parent, step.action, step.donor or None)
            self._count(step)
        for step in settled:
            self._apply(step)
        self._author_state.forget_missing_answers()
        for step in steps:
            if step.stage != "settled":
                self._start(step)
        for number in self._steering.profiles:
            self._start_profile(number)
        for line in self._store.damage:
            self._emit(Note(line))

    # --- 2: choosing -----------------------------------------------------------------------------------

    async def _search(self) -> str:
        """Choose, run and settle steps until there is a reason to stop. Returns the reason."""
        while True:
            # a reason may vanish when open steps settle: a step without an answer does not count
            reason = ""
            while not reason and len(self._open) < self._config.concurrency:
                if self._apply_requests():
                    continue
                reason = self._author_budget_spent or self._stop_reason()
                if not reason and not self._choose():
                    break
            if not self._open:
                return reason
            oldest = min(self._open)
            try:
                step = await self._open[oldest]
            except BudgetExhausted as error:
                self._author_budget_spent = str(error)
                del self._open[oldest]
                continue
            del self._open[oldest]
            self._settle(step)

    def _choose(self) -> bool:
        """Choose and start the next step; False if the choice has to wait for results."""
        number = len(self.tree)
        choice = SEED
        if number > max(self._author_state.seeds, len(self._race.designs)):
            rng = random.Random(f"{self._config.seed}:{number}")
            choice = self._steering.choose(self._policy, self.tree, rng)
            if choice.action == "combine" and not self._author.combines:
                choice = expand(self.tree.nodes[choice.parent])
            choice = self._author_state.redirect(choice, self.tree, self._steering.forbidden(self.tree))
        if self._is_premature(choice):
            return False
        self.tree.add(choice.parent, choice.action, choice.donor)
        self.budget.begin()
        step = self._save(Step(number, choice.parent, choice.action, donor=choice.donor or 0))
        self._emit(StepChosen(number, choice.parent, choice.action))
        self._start(step)
        return True

    def _is_premature(self, choice: Choice) -> bool:
        """Whether the budget is nearly spent and an improvement should wait for new designs that are still
        open, because one of them may be a better start."""
        limit = self.budget.limits.candidates
        is_late = limit and limit - self.budget.candidates <= 2 * self._config.concurrency
        designs = (self.tree.nodes[child] for child in self.tree.nodes[0].children)
        return bool(
            is_late
            and choice.action in ("improve", "combine")
            and any(node.state == "pending" for node in designs)
        )

    def _start(self, step: Step) -> None:
        self._drafted[step.number] = asyncio.Event()
        if step.stage != "chosen":
            self._drafted[step.number].set()
        self._open[step.number] = asyncio.create_task(self._run_step(step))

    def _is_open(self, step: Step) -> bool:
        return step.number in self._open

    def _start_profile(self, number: int) -> None:
        if number in self.steps:
            self._profiles.append(asyncio.create_task(self._profiler.ensure_profiled(number)))

    # --- 3: a step -------------------------------------------------------------------------------------

    async def _run_step(self, step: Step) -> Step:
        if step.stage == "chosen":
            try:
                step = self._save(await self._write(step))
            finally:  # also if the step waits for an answer: later steps do not wait for it
                self._drafted[step.number].set()
        if step.stage == "drafted":
            await self._wait_for_earlier_drafts(step)  # so that the later of two equal drafts is dropped
            step = self._save(await self._evaluate(step))
            self._emit(StepProgress(step.number, "judged"))
        return step

    async def _wait_for_earlier_drafts(self, step: Step) -> None:
        """Wait until each earlier step is written, or waits for an answer itself."""
        for event in [event for number, event in self._drafted.items() if number < step.number]:
            await event.wait()

    async def _write(self, step: Step) -> Step:
        self._emit(StepProgress(step.number, "writing"))
        try:
            draft = await self._writer.write(await self._assignment(step))
        except NoProposal as error:
            return replace(
                step, stage="drafted", no_verdict=_no_verdict(error), note=str(error), cost=error.cost
            )
        key = self._store.save_source(draft.source)
        return replace(
            step,
            stage="drafted",
            source=key,
            final_source=key,
            plan=draft.plan,
            hypothesis=draft.hypothesis,
            author=draft.author or self._author.name,
            cost=draft.cost,
            details=StepDetails(
                source_fingerprint(draft.source), draft.diagnostic, draft.expected_speedup, draft.facts
            ),
        )

    async def _evaluate(self, step: Step) -> Step:
        step = replace(step, stage="judged")
        if not step.source:
            return step
        first = self._first_with[step.details.fingerprint]
        if first != step.number:
            return _duplicate(step, first)
        if lost := self._race.reason_lost(step):
            return replace(step, no_verdict=NoVerdict.LOST_RACE, note=lost)
        max_energy_ms = objective.max_energy_ms(self._config, self.times, self.steps.get(step.parent))
        return await self._evaluator.evaluate(
            step, self._judged_code(step), max_energy_ms, self._best_speedup(step)
        )

    async def _submit(self, job: Job) -> Result:
        """Send a job to the pool and add its device time to the budget."""

        loop = asyncio.get_running_loop()

        def on_progress(progress: Progress) -> None:
            self._on_event(JobProgress(job.id, progress.stage))
            with suppress(RuntimeError):  # the loop is closed: the run has ended
                loop.call_soon_threadsafe(self._set_activity, job.id, progress.stage)

        if job.kind == "judge" and self._config.target == "cuda":
            job = replace(job, sanitize=True)  # tells the debug agent the line of an illegal access
        try:
            result = await asyncio.wrap_future(self._pool.submit(job, on_progress))
        finally:
            self._set_activity(job.id, "")
        if job.options.effort == "full":
            use = "final judging"
        else:
            use = "candidates" if job.kind == "judge" else job.kind
        self._store.add_device_seconds(use, result.device_seconds)
        self.budget.device_seconds += result.device_seconds
        return result

    def _set_activity(self, job: str, stage: str) -> None:
        """Store what a job is doing, for displays. Nothing depends on it."""
        with suppress(BadInput):
            self._store.set_activity(job, stage)

    async def _assignment(self, step: Step) -> Assignment:
        if step.action in ("improve", "combine") and step.parent:
            await self._profiler.ensure_profiled(step.parent)
        if self._author.writes_in_order:
            await self._wait_for_earlier_drafts(step)
        assignment = self._context.assignment(step)
        leaders = {leader.number for leader in assignment.leaders}
        return replace(
            assignment,
            hints=self._steering.hints_for(step.number),
            memory=self._memory.digest(step.parent, _MEMORY_TOKENS, leaders),
            knowledge=learning.advice(self._knowledge, self._config, self.steps.get(step.parent)),
        )

    # --- 4: settling -----------------------------------------------------------------------------------

    def _settle(self, step: Step) -> None:
        step = replace(self.steps[step.number], stage="settled")
        first = self._first_with.get(step.details.fingerprint, step.number)
        if step.verdict and first != step.number:  # it was judged before the earlier step was written
            step = _duplicate(replace(step, verdict=None, final_source=step.source), first)
        self._save(step)
        self._apply(step)
        self._record_advice(step)
        self._store.save_wall_seconds(self.budget.wall_seconds)
        self._emit(StepProgress(step.number, "settled"))

    def _record_advice(self, step: Step) -> None:
        """Record what following a diagnostic's advice gained."""
        parent, diagnostic = self.steps.get(step.parent), step.details.diagnostic
        if not (diagnostic and parent and parent.diagnosis):
            return
        finding = next((f for f in parent.diagnosis.findings if f.diagnostic == diagnostic), None)
        if finding and (gain := objective.gain_of_advice(finding, self.times, parent, step)):
            load_track_record(self._config).add(finding.diagnostic, finding.gain.factor, gain)

    # --- 5: final judging ------------------------------------------------------------------------------

    async def _judge_finalists(self, reason: str) -> Outcome:
        ranked = [self.steps[node.id] for node in self.tree.ranked()]
        compiled = [step for number, step in self.steps.items() if number <= self._author_state.seeds]
        seeds = [step for step in ranked if step in compiled]
        seeds += self._race.fastest([step for step in compiled if step not in seeds])
        final = FinalJudging(reason, self._judge_fully, self._config, self.times)
        finalists = objective.finalists(self._config, self.times, ranked)
        outcome = await final.decide(finalists, seeds)
        verdicts = {step.number: step.verdict for step in self.steps.values()}
        unanswered = (
            reason == self._author_state.missing_answers_reason
            and self._author_state.is_unreachable
            and not self.budget.exhausted()
        )
        front = objective.front(self.times, verdicts | final.verdicts)
        return replace(outcome, front=front, unanswered=unanswered)

    async def _judge_fully(self, step: Step) -> Verdict:
        if not self._config.finalists and step.verdict:
            return step.verdict
        self._emit(StepProgress(step.number, "final_judging"))
        return await self._evaluator.judge_fully(step)


def _no_verdict(error: NoProposal) -> NoVerdict:
    match error:
        case ModelUnreachable():
            return NoVerdict.UNREACHABLE
        case NoUsableAnswer():
            return NoVerdict.NO_ANSWER
        case NoMoreProposals():
            return NoVerdict.OUT_OF_IDEAS
        case _:
            return NoVerdict.NO_IDEA


def _duplicate(step: Step, first: int) -> Step:
    return replace(step, no_verdict=NoVerdict.DUPLICATE, note=f"the same source as step {first}")
