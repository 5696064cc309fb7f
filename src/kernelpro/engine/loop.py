"""The loop of a run, asynchronous and repeatable.

1. Ground: probe and study the task, once (ground.py). What compilers made of it are the first steps (authors/seeded.py).
2. While the budget lasts and fewer than `in_flight` steps are open: the policy chooses a node and an action, from
   the tree and a random generator that is a function of (seed, step) alone. The step is on disk before anything is done.
3. Each open step goes its way: its author writes (several at once, or one after another), duplicates are recognised, the pool
   judges, declared tunables are searched (trial.py). Every stage is on disk when it is done.
4. Results are settled in the order in which steps were chosen. So the tree that a choice sees depends on results alone,
   never on who was faster; and a run that was killed goes on as if nothing had happened.
5. At the end the best few are judged again, at full length and against all baselines (finals.py).

Where answers or results come from outside, everything that can be asked for is asked for, and then the run stops. Called again, it
asks the same again, and finds what has come.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kernelpro.authors.author import (
    Assignment,
    Author,
    Draft,
    BudgetExhausted,
    NoProposal,
    NoMoreProposals,
    NoUsableAnswer,
    ModelUnreachable,
    AnswerPending,
    source_fingerprint,
)
from kernelpro.authors.seeded import SeededAuthor
from kernelpro.diagnose import evidence, guidance
from kernelpro.diagnose.record import TrackRecord
from kernelpro.diagnose.tools import registry
from kernelpro.engine import baseline_profile, learning, objective, profiling, task_facts
from kernelpro.engine.budget import Budget
from kernelpro.engine.final_judging import FinalJudging
from kernelpro.engine.prompt_context import PromptContext
from kernelpro.engine.store import RunStore
from kernelpro.engine.evaluator import Evaluator
from kernelpro.memory.knowledge import Knowledge
from kernelpro.memory.run_memory import RunMemory
from kernelpro.pools.pool import Outstanding, Pool
from kernelpro.records import (
    BadInput,
    Candidate,
    Job,
    Outcome,
    Progress,
    Result,
    RunConfig,
    Step,
    Verdict,
)
from kernelpro.search.choice import SEED, Choice, grow
from kernelpro.search.policy import make
from kernelpro.search.tree import Tree

Report = Callable[[str, dict[str, Any]], None]
_MEMORY_TOKENS = 800
_NO_IDEA, _NO_ANSWER = "no idea: ", "no answer: "
_IDLE_AUTHOR = 3
"""Nodes in a row at which an author has no idea: then it has none. As many questions in a row without an answer end a run too."""


class Paused(Exception):
    """The run waits for answers or results from outside; it goes on when called again."""

    def __init__(self, answers: int, results: int):
        amounts = [
            f"{n} {what}{'s' * (n > 1)}" for n, what in ((answers, "answer"), (results, "result")) if n
        ]
        super().__init__(f"{' and '.join(amounts)} outstanding")


class Engine:
    def __init__(
        self,
        store: RunStore,
        pool: Pool,
        author: Author,
        report: Report = lambda kind, data: None,
        knowledge: Knowledge | None = None,
    ):
        self._store, self._pool, self._author, self._report = store, pool, author, report
        self._knowledge = knowledge or Knowledge(None)
        self._memory = RunMemory()
        self._config: RunConfig = store.config()
        self._policy = make(self._config.policy, **self._config.constants)
        self._budget = Budget(self._config.limits, store.wall_seconds, sum(store.device_seconds.values()))
        self._steps: dict[int, Step] = {}
        self._first: dict[str, int] = {}
        """The first step with some code, comments and layout aside."""
        self._open: dict[int, asyncio.Task[Step]] = {}
        self._drafted: dict[int, asyncio.Event] = {}
        self._profiles: dict[int, asyncio.Task[None]] = {}
        self._without_idea, self._last_excuse = 0, ""
        self._barren: set[int] = set()
        """Nodes at which the author had no idea, or will have none."""
        self._designs: int | None = None
        """How many fresh designs the author has, where it says so."""
        self._unanswered, self._unheard, self._stuck = 0, 0, set[int]()
        """Steps in a row that had no usable answer, those of them that had none at all, and their nodes, which are left alone until
        one comes."""
        self.task_facts: dict[str, Any] = {}

    async def run(self, explain: bool = True) -> Outcome:
        """Until the budget is spent or the floor is reached. A finished run with budget left goes on. `explain`: then the winner is
        diagnosed."""
        self._tell("begun", {})
        try:
            await self._lay_ground()
            self._replay()
            outcome = await self._finish(await self._search())
        except (AnswerPending, Outstanding):
            paused = Paused(await self._answers_outstanding(), self._pool.outstanding)
            self._store.tell("paused", reason=str(paused))
            raise paused from None
        except BadInput as error:
            await self._come_to_rest()  # what is under way was paid for, and is kept
            with suppress(BadInput):  # the store itself may be what failed
                self._store.tell("failed", reason=str(error))
            raise
        finally:
            for task in (*self._open.values(), *self._profiles.values()):
                task.cancel()
            self._store.save_wall_seconds(self._budget.wall_seconds)
        self._store.save_outcome(outcome)
        if explain and outcome.best is not None:
            with suppress(Outstanding):  # a result that is days away is not waited for
                await self._profiled(
                    outcome.best
                )  # what would be next: nobody will be asked to improve it, but somebody will ask
        if self._knowledge.enabled:
            self._knowledge.add(learning.observations(self._steps.values(), self._config, self._store.id))
        return outcome

    # --- 1: ground -------------------------------------------------------------------------------------

    async def _lay_ground(self) -> None:
        found = await task_facts.measure_task(self._store, self._config, self._ask)
        self._tree = Tree(found["baseline_ms"], found["floor_ms"], given=len(found.get("seeds", ())))
        self._trial = Evaluator(self._config, self._store, self._ask, self._tell, found["baselines"])
        self.task_facts = found
        self._tell("ground", {"baselines": self.task_facts["baselines"], "floor_ms": self.task_facts["floor_ms"]})
        self._given: list[dict[str, Any]] = self.task_facts.get("seeds", [])
        self._combines = getattr(self._author, "combines", False)
        self._in_turn = getattr(self._author, "in_turn", False)
        if getattr(self._author, "own_only", False):
            self._barren |= set(range(1, len(self._given) + 1))
        if designs := getattr(self._author, "designs", None):
            self._designs = designs(self._scene().assignment(Step(1, 0, "seed")))
        self._author = SeededAuthor(self._author, self._given)
        if reason := self.task_facts.get("no_seeds"):
            self._tell("note", {"line": f"no seed of {reason}"})

    def _replay(self) -> None:
        """The tree as it was: steps in order, each seeing the results that its choice saw."""
        known = self._store.steps()
        waiting = [step for step in known if step.stage == "settled"]
        for step in known:
            self._remember(step)
            seen = max(
                step.number - self._config.concurrency, step.parent, step.second
            )  # a resumed run may have seen more
            while waiting and waiting[0].number <= seen:
                self._count(waiting.pop(0))
            self._tree.add(step.parent, step.action, step.second or None)
            self._budget.begin()
        for step in waiting:
            self._count(step)
        self._unanswered = self._unheard = 0  # who calls again wants to ask again
        for step in known:
            if step.stage != "settled":
                self._start(step)
        for line in self._store.damage:
            self._tell("damage", {"line": line})

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        """What happens is kept with the run and shown to whoever watches."""
        self._store.tell(kind, **data)
        self._report(kind, data)

    # --- 2: choosing -----------------------------------------------------------------------------------

    async def _search(self) -> str:
        spent = ""
        while True:
            reason = spent  # any other may be gone when open steps are settled: one without an answer uses up no candidate
            while not reason and len(self._open) < self._config.concurrency:
                reason = self._stop()
                if not reason:
                    self._choose()
            if not self._open:
                return reason
            oldest = min(self._open)
            try:
                step = await self._open[oldest]
            except BudgetExhausted as error:
                spent = str(error)
                del self._open[oldest]
                continue
            del self._open[oldest]
            self._settle(step)

    async def _answers_outstanding(self) -> int:
        """How many answers are still waited for when all else is done."""
        return sum(isinstance(result, AnswerPending) for result in await self._come_to_rest())

    async def _come_to_rest(self) -> list[Any]:
        """Let every open step come as far as it can, on disk; how each ended."""
        return await asyncio.gather(*self._open.values(), return_exceptions=True)

    def _stop(self) -> str:
        closed = self._closed()
        if self._without_idea >= _IDLE_AUTHOR or (closed and self._elsewhere(closed) is None):
            excuse = self._last_excuse or f"all {self._designs} designs that it begins with have been written"
            return f"the author has no further idea ({excuse})"
        if self._unanswered >= _IDLE_AUTHOR:
            return self._want_of_answers()
        best = self._tree.best()
        ms = best.ms if best.id and self._config.objective == "speed" else None
        return self._budget.exhausted() or self._budget.at_the_floor(ms, self.task_facts["floor_ms"])

    def _want_of_answers(self) -> str:
        return (
            f"no usable answer came for {self._unanswered} steps in a row; the last time: {self._last_excuse}"
        )

    def _choose(self) -> None:
        number = len(self._tree)
        given = number <= len(self._given)
        choice = (
            SEED if given else self._policy.choose(self._tree, random.Random(f"{self._config.seed}:{number}"))
        )
        if choice.action == "combine" and not self._combines:
            choice = grow(self._tree.nodes[choice.parent])
        closed = self._closed()
        if choice.parent in closed | self._stuck and not given:
            choice = self._elsewhere(closed | self._stuck) or self._elsewhere(closed) or choice
        self._tree.add(choice.parent, choice.action, choice.second)
        self._budget.begin()
        step = Step(number, choice.parent, choice.action, second=choice.second or 0)  # type: ignore[arg-type]
        self._store.save_step(step)
        self._steps[number] = step
        self._tell("chosen", {"step": number, "parent": choice.parent, "action": choice.action})
        self._start(step)

    def _closed(self) -> set[int]:
        """Nodes at which the author is not asked: the root too, once it was asked for all its fresh designs."""
        asked = len(self._tree.nodes[0].children) - len(self._given)
        return self._barren | ({0} if self._designs is not None and asked >= self._designs else set())

    def _elsewhere(self, closed: set[int]) -> Choice | None:
        """Where the author may still have an idea: at the best node that is not closed, at the root, or at the last failure."""
        node = next((node for node in self._tree.ranked() if node.id not in closed), None)
        if node is None and 0 in closed:
            failed = (
                node for node in reversed(self._tree.nodes) if node.state == "failed" and not node.children
            )
            node = next((node for node in failed if node.id not in closed), None)
            return grow(node) if node else None
        return grow(node) if node else SEED

    def _start(self, step: Step) -> None:
        self._drafted[step.number] = asyncio.Event()
        if step.stage != "chosen":
            self._drafted[step.number].set()
        self._open[step.number] = asyncio.create_task(self._go(step))

    # --- 3: a step's way -------------------------------------------------------------------------------

    async def _go(self, step: Step) -> Step:
        if step.stage == "chosen":
            try:
                step = self._advance(await self._write(step))
            finally:  # those behind do not wait for one that waits itself
                self._drafted[step.number].set()
        if step.stage == "drafted":
            await self._turn(step)  # of two equal drafts the earlier one is judged, whoever wrote faster
            step = self._advance(await self._judge(step))
            self._tell("judged", {"step": step.number})
        return step

    async def _turn(self, step: Step) -> None:
        """Until all steps before this one are written, or wait themselves."""
        for event in [event for number, event in self._drafted.items() if number < step.number]:
            await event.wait()

    def _advance(self, step: Step) -> Step:
        self._store.save_step(step)
        self._remember(step)
        return step

    def _remember(self, step: Step) -> None:
        self._steps[step.number] = step
        if code := step.details.get("code"):
            self._first[code] = min(step.number, self._first.get(code, step.number))

    async def _write(self, step: Step) -> Step:
        self._tell("writing", {"step": step.number})
        try:
            draft: Draft = await self._author.write(await self._assignment(step))
        except NoProposal as reason:
            kinds = {"out_of_ideas": isinstance(reason, NoMoreProposals), "unheard": isinstance(reason, ModelUnreachable)}
            details = step.details | {name: True for name, so in kinds.items() if so}
            word = _NO_ANSWER if isinstance(reason, NoUsableAnswer) else _NO_IDEA
            return replace(step, stage="drafted", note=f"{word}{reason}", cost=reason.cost, details=details)
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
            details=step.details | {"code": source_fingerprint(draft.source)} | _told(draft),
        )

    async def _judge(self, step: Step) -> Step:
        done = replace(step, stage="judged")
        if not step.source:
            return done
        twin = self._first[step.details["code"]]
        if twin != step.number:
            return replace(done, note=f"a duplicate of step {twin}")
        metered = objective.metered_ms(self._config, self.task_facts["baseline_ms"], self._steps.get(step.parent))
        return await self._trial.evaluate(done, self._machine_code_before(step), metered)

    def _machine_code_before(self, step: Step) -> dict[str, int]:
        """Steps by what they execute: those that were settled when this one was chosen, so that a resumed run sees the same."""
        settled = (self._steps[n] for n in range(1, step.number - self._config.concurrency + 1))
        verdicts = {earlier.number: earlier.verdict for earlier in settled if earlier.verdict}
        codes = {
            verdict.measurement.get("machine_code", ""): number
            for number, verdict in reversed(verdicts.items())
        }
        return {code: number for code, number in codes.items() if code}

    async def _ask(self, job: Job) -> Result:
        def progress(stage: Progress) -> None:
            self._report("progress", {"job": job.id, "stage": stage.stage})

        if job.kind == "judge" and self._config.target == "cuda":
            job = replace(job, sanitize=True)  # a debugger will ask where
        result = await asyncio.wrap_future(self._pool.submit(job, progress))
        use = "finals" if job.options.effort == "full" else {"judge": "candidates"}.get(job.kind, job.kind)
        self._store.add_device_seconds(use, result.device_seconds)
        self._budget.device_seconds += result.device_seconds
        return result

    # --- what an author may know -----------------------------------------------------------------------

    async def _assignment(self, step: Step) -> Assignment:
        if step.action in ("improve", "combine") and step.parent:
            await self._profiled(step.parent)
        if self._in_turn:
            await self._turn(step)
        parent = self._steps.get(step.parent)
        bound = parent.diagnosis.bound.value if parent and parent.diagnosis else ""
        place = parent.verdict.environment if parent and parent.verdict else {}
        hardware = str(place.get("gpu") or place.get("cpu") or self._config.target)
        language = parent.verdict.language if parent and parent.verdict else ""
        known = learning.advice(self._knowledge, self._config, bound, hardware, language)
        made = self._scene().assignment(step)
        told = {leader.number for leader in made.leaders}
        return replace(made, memory=self._memory.digest(step.parent, _MEMORY_TOKENS, told), knowledge=known)

    def _scene(self) -> PromptContext:
        return PromptContext(self._config, self.task_facts, self._tree, self._steps, self._store)

    async def _profiled(self, number: int) -> None:
        """Diagnose a step before it is improved; once, however many ask."""
        if self._steps[number].diagnosis is not None or "not_profiled" in self._steps[number].details:
            return
        if number not in self._profiles:
            self._profiles[number] = asyncio.create_task(self._profile(number))
        await self._profiles[number]

    async def _profile(self, number: int) -> None:
        step = self._steps[number]
        self._tell("profiling", {"step": number})
        candidate = Candidate(self._store.source(step.final_source), f"step {number}")
        config = self._config
        if config.target == "cuda":
            step = self._advance(baseline_profile.mark(step, self._steps.values(), self.task_facts["baselines"]))
        request = profiling.ProfileSpec(
            config.task,
            candidate,
            config.target,
            config.options,
            baseline_profile.asked(step),
            at_once=config.target == "cuda" and not config.wait and config.pool.startswith("spool:"),
            energy=config.objective != "speed",
        )
        try:
            profile, diagnosis = await profiling.profile(self._ask, request, registry(), self._record())
        except BadInput as error:
            self._advance(
                replace(step, details=baseline_profile.unmarked(step.details) | {"not_profiled": str(error)})
            )
            return
        finally:
            self._tell("profiled", {"step": number})
        said = (objective.measured(step), guidance.write(diagnosis))
        page = evidence.write(baseline_profile.beside(profile, self._steps.values()))
        texts = {"guidance": "\n".join(filter(None, said)), "evidence": page}
        details = baseline_profile.kept(profile, diagnosis.bound, step.details) | texts
        self._advance(replace(self._steps[number], diagnosis=diagnosis, details=details))

    # --- 4: settling -----------------------------------------------------------------------------------

    def _settle(self, step: Step) -> None:
        step = replace(self._steps[step.number], stage="settled")
        twin = self._first.get(step.details.get("code", ""), step.number)
        if step.verdict and twin != step.number:  # judged while the earlier one was not written yet
            step = replace(step, verdict=None, final_source=step.source, note=f"a duplicate of step {twin}")
        self._advance(step)
        self._count(step)
        self._learn(step)
        self._store.save_wall_seconds(self._budget.wall_seconds)
        self._tell("settled", {"step": step.number})

    def _count(self, step: Step) -> None:
        """A result enters the tree and the budget."""
        self._tree.settle(step.number, objective.cost_ms(self._config, step), void=step.verdict is None)
        self._budget.settle(step)
        if step.note.startswith(_NO_IDEA):
            self._last_excuse = step.note.removeprefix(_NO_IDEA)
            self._without_idea += (
                _IDLE_AUTHOR if step.details.get("out_of_ideas") else step.parent not in self._barren
            )
            self._barren.add(step.parent)
        elif step.note.startswith(_NO_ANSWER):
            self._last_excuse = step.note.removeprefix(_NO_ANSWER)
            self._unanswered += 1
            self._unheard += step.details.get("unheard", False)
            self._stuck |= {step.parent} - {0}  # every fresh design is another question
        else:
            self._without_idea = self._unanswered = self._unheard = 0
            self._stuck.clear()
        if step.number > len(self._given):  # what compilers wrote teaches nobody
            for event in learning.events(step, self._steps.get(step.parent)):
                self._memory.add(event)

    def _learn(self, step: Step) -> None:
        """What followed the advice that a step took."""
        parent = self._steps.get(step.parent)
        advice = step.details.get("advice")
        for finding in parent.diagnosis.findings if advice and parent and parent.diagnosis else ():
            if finding.diagnostic == advice and parent:
                if gain := objective.followed(finding, parent, step):
                    self._record().add(finding.diagnostic, finding.gain.factor, gain)
                return

    def _record(self) -> TrackRecord:
        """What advice has been worth; empty, and kept nowhere, for a run that neither reads nor adds to what others learnt."""
        return TrackRecord.load() if self._config.knowledge else TrackRecord()

    # --- 5: the final word -----------------------------------------------------------------------------

    async def _finish(self, reason: str) -> Outcome:
        leaders = objective.finalists(self._config, (self._steps[node.id] for node in self._tree.ranked()))
        given = [self._steps[node.id] for node in self._tree.ranked() if node.id <= len(self._given)]
        finals = FinalJudging(reason, self._at_full_length, self._config)
        outcome = await finals.decide(leaders, given)
        searched = {step.number: step.verdict for step in self._steps.values()}
        unanswered = (
            reason == self._want_of_answers()
            and self._unheard == self._unanswered
            and not self._budget.exhausted()
        )
        return replace(outcome, front=objective.front(searched | finals.verdicts), unanswered=unanswered)

    async def _at_full_length(self, step: Step) -> Verdict:
        if not self._config.finalists and step.verdict:
            return step.verdict
        self._tell("final", {"step": step.number})
        return await self._trial.judge_fully(step)

    @property
    def tree(self) -> Tree:
        return self._tree

    @property
    def steps(self) -> dict[int, Step]:
        return self._steps

    @property
    def budget(self) -> Budget:
        return self._budget


def _told(draft: Draft) -> dict[str, Any]:
    """What an author said beside the source."""
    told = {"advice": draft.diagnostic, "promised": draft.expected_speedup, "facts": list(draft.facts)}
    return {name: value for name, value in told.items() if value}
