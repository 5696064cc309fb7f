"""The loop of a run, asynchronous and repeatable.

1. Ground: probe the task, measure baselines and floor; once.
2. While the budget lasts and fewer than `in_flight` steps are open: the policy chooses a node and an action, from
   the tree and a random generator that is a function of (seed, step) alone. The step is on disk before anything is done.
3. Each open step goes its way: its author writes (several at once), duplicates are recognised, the pool judges, declared
   tunables are searched. Every stage is on disk when it is done.
4. Results are settled in the order in which steps were chosen. So the tree that a choice sees depends on results alone,
   never on who was faster; and a run that was killed goes on as if nothing had happened.
5. At the end the best few are judged again, at full length and against all baselines. The fastest that holds up wins.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernelpro.authors.author import Assignment, Author, Draft, Exhausted, NoIdea, Waiting
from kernelpro.authors.tunables import parse
from kernelpro.authors.tuner import TuneOptions, tune
from kernelpro.diagnose import evidence, guidance
from kernelpro.diagnose.record import TrackRecord
from kernelpro.diagnose.tools import registry
from kernelpro.engine import learning, profiling
from kernelpro.engine.budget import Budget
from kernelpro.engine.scene import Scene, normalised
from kernelpro.engine.store import Store
from kernelpro.memory.knowledge import Knowledge
from kernelpro.memory.run_memory import RunMemory
from kernelpro.pools.local import Pool
from kernelpro.records import (
    BadInput,
    Candidate,
    Job,
    Options,
    Outcome,
    Progress,
    Result,
    RunConfig,
    Status,
    Step,
    Verdict,
)
from kernelpro.search.policy import make
from kernelpro.search.tree import Tree

Report = Callable[[str, dict[str, Any]], None]
_MEMORY_TOKENS = 800
_HOPELESS = 3.0
"""Times the best baseline: a kernel beyond is timed for a few rounds only."""
_IDLE_AUTHOR = 3
"""Assignments in a row to which an author has no idea: then it has none."""


class Paused(Exception):
    """The run waits for answers from outside; it goes on when called again."""

    def __init__(self, answers: int):
        super().__init__(f"{answers} answers are outstanding")
        self.answers = answers


class Engine:
    def __init__(
        self,
        store: Store,
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
        self._budget = Budget(self._config.limits, store.wall_seconds)
        self._steps: dict[int, Step] = {}
        self._first: dict[str, int] = {}
        """The first step with some code, comments and layout aside."""
        self._open: dict[int, asyncio.Task[Step]] = {}
        self._drafted: dict[int, asyncio.Event] = {}
        self._profiles: dict[int, asyncio.Task[None]] = {}
        self._without_idea = 0

    async def run(self) -> Outcome:
        """Until the budget is spent or the floor is reached. A finished run with budget left goes on."""
        self._tell("begun", {})
        self._ground = await self._lay_ground()
        self._tree = Tree(self._ground["baseline_ms"], self._ground["floor_ms"])
        self._replay()
        try:
            reason = await self._search()
        finally:
            for task in (*self._open.values(), *self._profiles.values()):
                task.cancel()
            self._store.keep_wall(self._budget.wall_seconds)
        outcome = await self._finish(reason)
        self._store.finish(outcome)
        if outcome.best is not None:
            await self._profiled(outcome.best)  # what would be next: nobody will be asked to improve it, but somebody will ask
        if self._knowledge.enabled:
            self._knowledge.add(learning.observations(self._steps.values(), self._config, self._store.id))
        return outcome

    # --- 1: ground -------------------------------------------------------------------------------------

    async def _lay_ground(self) -> dict[str, Any]:
        if known := self._store.ground():
            return known
        config = self._config
        result = await self._ask(Job("ground", "probe", config.task, target=config.target, options=config.options))
        if result.data is None:
            raise BadInput(result.error or "the task could not be probed")
        if not result.data["scorable"]:
            raise BadInput(f"this task cannot be scored: {result.data['reason']}")
        times = {name: interval["value"] for name, interval in result.data["baselines"].items()}
        ground = {"baselines": times, "baseline_ms": min(times.values()), "floor_ms": result.data["floor_ms"]}
        ground |= {name: result.data[name] for name in ("precision", "hardware", "work")}
        self._store.keep_ground(ground)
        return ground

    def _replay(self) -> None:
        """The tree as it was: steps in order, each seeing the results that its choice saw."""
        known = self._store.steps()
        waiting = [step for step in known if step.stage == "settled"]
        for step in known:
            self._remember(step)
            while waiting and waiting[0].number <= step.number - self._config.in_flight:
                self._count(waiting.pop(0))
            self._tree.add(step.parent, step.action)
            self._budget.begin()
        for step in waiting:
            self._count(step)
        for step in known:
            if step.stage != "settled":
                self._start(step)
        for line in self._store.damaged:
            self._tell("damage", {"line": line})

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        """What happens is kept with the run and shown to whoever watches."""
        self._store.tell(kind, **data)
        self._report(kind, data)

    # --- 2: choosing -----------------------------------------------------------------------------------

    async def _search(self) -> str:
        reason = ""
        while True:
            while not reason and len(self._open) < self._config.in_flight:
                reason = self._stop()
                if not reason:
                    self._choose()
            if not self._open:
                return reason
            oldest = min(self._open)
            try:
                step = await self._open[oldest]
            except Waiting:
                raise Paused(await self._outstanding()) from None
            except Exhausted as error:
                reason = str(error)
                del self._open[oldest]
                continue
            del self._open[oldest]
            self._settle(step)

    async def _outstanding(self) -> int:
        """Let everything else come to its end; how many answers are then still waited for."""
        ended = await asyncio.gather(*self._open.values(), return_exceptions=True)
        return sum(isinstance(result, Waiting) for result in ended)

    def _stop(self) -> str:
        if self._without_idea >= _IDLE_AUTHOR:
            return "the author has no further idea"
        best = self._tree.best()
        ms = best.ms if best.id else None
        return self._budget.exhausted() or self._budget.at_the_floor(ms, self._ground["floor_ms"])

    def _choose(self) -> None:
        number = len(self._tree)
        choice = self._policy.choose(self._tree, random.Random(f"{self._config.seed}:{number}"))
        self._tree.add(choice.parent, choice.action)
        self._budget.begin()
        step = Step(number, choice.parent, choice.action)  # type: ignore[arg-type]
        self._store.keep(step)
        self._steps[number] = step
        self._tell("chosen", {"step": number, "parent": choice.parent, "action": choice.action})
        self._start(step)

    def _start(self, step: Step) -> None:
        self._drafted[step.number] = asyncio.Event()
        if step.stage != "chosen":
            self._drafted[step.number].set()
        self._open[step.number] = asyncio.create_task(self._go(step))

    # --- 3: a step's way -------------------------------------------------------------------------------

    async def _go(self, step: Step) -> Step:
        if step.stage == "chosen":
            step = self._advance(await self._write(step))
            self._drafted[step.number].set()
        if step.stage == "drafted":
            for number, event in self._drafted.items():
                if number < step.number:
                    await event.wait()  # of two equal drafts the earlier one is judged, whoever wrote faster
            step = self._advance(await self._judge(step))
        return step

    def _advance(self, step: Step) -> Step:
        self._store.keep(step)
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
        except NoIdea as reason:
            return replace(step, stage="drafted", note=f"no idea: {reason}")
        key = self._store.put_source(draft.source)
        return replace(
            step,
            stage="drafted",
            source=key,
            final_source=key,
            plan=draft.plan,
            hypothesis=draft.hypothesis,
            author=draft.author or self._author.name,
            cost=draft.cost,
            details=step.details | {"code": normalised(draft.source)} | _told(draft),
        )

    async def _judge(self, step: Step) -> Step:
        done = replace(step, stage="judged")
        if not step.source:
            return done
        source = self._store.source(step.source)
        twin = self._first[step.details["code"]]
        if twin != step.number:
            return replace(done, note=f"a duplicate of step {twin}")
        self._tell("judging", {"step": step.number})
        hopeless = replace(self._config.options, give_up_ms=_HOPELESS * self._ground["baseline_ms"])
        known = self._machine_code_before(step)
        result = await self._ask(self._judging(step.number, source, hopeless, tuple(known)))
        if same := (result.data or {}).get("same_as"):
            return replace(done, note=f"a duplicate of step {known[same]}: it compiles to the same instructions")
        verdict = _verdict(result)
        done = replace(done, verdict=verdict, details=done.details | {"device_seconds": _seconds(verdict)})
        if verdict.status is Status.PASSED and self._config.tune_points:
            done = await self._tuned(done, source)
        return done

    def _machine_code_before(self, step: Step) -> dict[str, int]:
        """Steps by what they execute: those that were settled when this one was chosen, so that a resumed run sees the same."""
        settled = (self._steps[n] for n in range(1, step.number - self._config.in_flight + 1))
        verdicts = {earlier.number: earlier.verdict for earlier in settled if earlier.verdict}
        codes = {verdict.measurement.get("machine_code", ""): number for number, verdict in reversed(verdicts.items())}
        return {code: number for code, number in codes.items() if code}

    def _judging(self, number: int, source: str, options: Options, known: tuple[str, ...] = ()) -> Job:
        candidate = Candidate(source, f"step {number}")
        return Job(f"step {number}", "judge", self._config.task, candidate, self._config.target, options, known=known)

    async def _verdict(self, number: int, source: str, options: Options) -> Verdict:
        return _verdict(await self._ask(self._judging(number, source, options)))

    async def _tuned(self, step: Step, source: str) -> Step:
        """The step with its declared tunables at their best; the same step where it declares none."""
        try:
            declared = parse(source)
        except BadInput as error:
            return replace(step, note=f"its tunables cannot be read: {error}")
        if not declared.names:
            return step
        self._tell("tuning", {"step": step.number})
        spent, verdicts = 0.0, {}

        async def judge(text: str, options: TuneOptions) -> Verdict:
            nonlocal spent
            chosen = replace(self._config.options, effort=options.effort, give_up_ms=options.give_up_ms)
            verdicts[normalised(text)] = verdict = await self._verdict(step.number, text, chosen)
            spent += _seconds(verdict)
            return verdict

        dice = random.Random(f"{self._config.seed}:{step.number}:tune")
        tuned = await tune(source, judge, self._config.tune_points, self._config.in_flight, dice)
        tried = [{"point": t.point, "status": t.status, "ms": t.ms, "effort": t.effort} for t in tuned.log]
        details = step.details | {"tuned": {"point": tuned.point, "why": tuned.why, "tried": tried}}
        details["device_seconds"] += spent
        if not tuned.improved:
            return replace(step, details=details)
        verdict = verdicts[normalised(tuned.source)]
        return replace(step, final_source=self._store.put_source(tuned.source), verdict=verdict, details=details)

    async def _ask(self, job: Job) -> Result:
        def progress(stage: Progress) -> None:
            self._report("progress", {"job": job.id, "stage": stage.stage})

        return await asyncio.wrap_future(self._pool.submit(job, progress))

    # --- what an author may know -----------------------------------------------------------------------

    async def _assignment(self, step: Step) -> Assignment:
        if step.action == "improve" and step.parent:
            await self._profiled(step.parent)
        scene = Scene(self._config, self._ground, self._tree, self._steps, self._store)
        parent = self._steps.get(step.parent)
        bound = parent.diagnosis.bound.value if parent and parent.diagnosis else ""
        place = parent.verdict.environment if parent and parent.verdict else {}
        hardware = str(place.get("gpu") or place.get("cpu") or self._config.target)
        language = parent.verdict.language if parent and parent.verdict else ""
        known = learning.advice(self._knowledge, self._config, bound, hardware, language)
        return replace(scene.assignment(step), memory=self._memory.digest(step.parent, _MEMORY_TOKENS), knowledge=known)

    async def _profiled(self, number: int) -> None:
        """Diagnose a step before it is improved; once, however many ask."""
        if self._steps[number].diagnosis is not None:
            return
        if number not in self._profiles:
            self._profiles[number] = asyncio.create_task(self._profile(number))
        await self._profiles[number]

    async def _profile(self, number: int) -> None:
        step = self._steps[number]
        self._tell("profiling", {"step": number})
        candidate = Candidate(self._store.source(step.final_source), f"step {number}")
        request = profiling.Request(self._config.task, candidate, self._config.target, self._config.options)
        try:
            profile, diagnosis = await profiling.profile(self._ask, request, registry(), TrackRecord.load())
        except BadInput as error:
            self._advance(replace(step, details=step.details | {"not_profiled": str(error)}))
            return
        texts = {"guidance": guidance.write(diagnosis), "evidence": evidence.write(profile)}
        self._advance(replace(self._steps[number], diagnosis=diagnosis, details=step.details | texts))

    # --- 4: settling -----------------------------------------------------------------------------------

    def _settle(self, step: Step) -> None:
        step = self._advance(replace(self._steps[step.number], stage="settled"))
        self._count(step)
        self._learn(step)
        self._store.keep_wall(self._budget.wall_seconds)
        self._tell("settled", {"step": step.number})

    def _count(self, step: Step) -> None:
        """A result enters the tree and the budget."""
        self._tree.settle(step.number, step.ms)
        self._budget.settle(step)
        self._without_idea = self._without_idea + 1 if step.note.startswith("no idea") else 0
        for event in learning.events(step, self._steps.get(step.parent)):
            self._memory.add(event)

    def _learn(self, step: Step) -> None:
        """What followed the advice that a step took."""
        parent = self._steps.get(step.parent)
        advice = step.details.get("advice")
        if advice and parent and parent.diagnosis and parent.ms and step.ms:
            for finding in parent.diagnosis.findings:
                if finding.tool == advice:
                    TrackRecord.load().add(advice, finding.gain.factor, parent.ms / step.ms)
                    return

    # --- 5: the final word -----------------------------------------------------------------------------

    async def _finish(self, reason: str) -> Outcome:
        leaders = [node.id for node in self._tree.leaders(self._config.finalists)]
        if not leaders:
            return Outcome(reason, notes=("no candidate passed",))
        full = replace(self._config.options, effort="full")
        verdicts: dict[int, Verdict] = {}
        for number in leaders:
            self._tell("final", {"step": number})
            verdicts[number] = await self._verdict(number, self._store.source(self._steps[number].final_source), full)
        notes = tuple(
            f"step {number} did not hold up: {verdict.status}: {verdict.reason}"
            for number, verdict in verdicts.items()
            if verdict.status is not Status.PASSED
        )
        held = {number: verdict for number, verdict in verdicts.items() if verdict.status is Status.PASSED}
        if not held:
            return Outcome(reason, finalists=tuple(leaders), notes=notes)
        best = min(held, key=lambda number: held[number].times["candidate"].value)
        return Outcome(reason, best, held[best], tuple(leaders), notes)

    @property
    def tree(self) -> Tree:
        return self._tree

    @property
    def steps(self) -> dict[int, Step]:
        return self._steps

    @property
    def budget(self) -> Budget:
        return self._budget


def _verdict(result: Result) -> Verdict:
    if result.verdict is None:
        raise BadInput(result.error or "the worker gave no verdict")
    return result.verdict


def _told(draft: Draft) -> dict[str, Any]:
    """What an author said beside the source."""
    told = {"advice": draft.advice, "promised": draft.promised, "facts": list(draft.facts)}
    return {name: value for name, value in told.items() if value}


def _seconds(verdict: Verdict) -> float:
    return float(verdict.measurement.get("seconds", {}).get("total", 0.0))
