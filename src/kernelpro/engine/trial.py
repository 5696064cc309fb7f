"""A candidate's trial: the judge's verdict, then its tunables, if it declares any and works."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kernelpro.authors.tunables import parse
from kernelpro.authors.tuner import TuneOptions, tune
from kernelpro.engine.profiling import Ask
from kernelpro.engine.scene import normalised
from kernelpro.engine.store import Store
from kernelpro.records import BadInput, Candidate, Job, Options, Result, RunConfig, Status, Step, Verdict

_HOPELESS = 3.0
"""Times the best baseline: a kernel beyond is timed for a few rounds only."""


@dataclass(frozen=True)
class Trial:
    config: RunConfig
    store: Store
    ask: Ask
    tell: Callable[[str, dict[str, Any]], None]

    async def of(self, step: Step, baseline_ms: float, known: dict[str, int]) -> Step:
        """The step with its verdict, and with its tunables at their best. `known`: earlier steps by their machine code."""
        self.tell("judging", {"step": step.number})
        source = self.store.source(step.source)
        hopeless = replace(self.config.options, give_up_ms=_HOPELESS * baseline_ms)
        result = await self.ask(self._job(step.number, source, hopeless, tuple(known)))
        if same := (result.data or {}).get("same_as"):
            return replace(step, note=f"a duplicate of step {known[same]}: it compiles to the same instructions")
        verdict = _verdict(result)
        done = replace(step, verdict=verdict, details=step.details | {"device_seconds": _seconds(verdict)})
        if verdict.status is Status.PASSED and self.config.tune_points:
            done = await self._tuned(done, source)
        return done

    async def verdict(self, number: int, source: str, options: Options) -> Verdict:
        return _verdict(await self.ask(self._job(number, source, options)))

    def _job(self, number: int, source: str, options: Options, known: tuple[str, ...] = ()) -> Job:
        candidate = Candidate(source, f"step {number}")
        return Job(f"step {number}", "judge", self.config.task, candidate, self.config.target, options, known=known)

    async def _tuned(self, step: Step, source: str) -> Step:
        """The same step where it declares nothing to tune."""
        try:
            declared = parse(source)
        except BadInput as error:
            return replace(step, note=f"its tunables cannot be read: {error}")
        if not declared.names:
            return step
        self.tell("tuning", {"step": step.number})
        spent, verdicts = 0.0, {}

        async def judge(text: str, options: TuneOptions) -> Verdict:
            nonlocal spent
            chosen = replace(self.config.options, effort=options.effort, give_up_ms=options.give_up_ms)
            verdicts[normalised(text)] = verdict = await self.verdict(step.number, text, chosen)
            spent += _seconds(verdict)
            return verdict

        dice = random.Random(f"{self.config.seed}:{step.number}:tune")
        tuned = await tune(source, judge, self.config.tune_points, self.config.in_flight, dice)
        tried = [{"point": t.point, "status": t.status, "ms": t.ms, "effort": t.effort} for t in tuned.log]
        details = step.details | {"tuned": {"point": tuned.point, "why": tuned.why, "tried": tried}}
        details["device_seconds"] += spent
        if not tuned.improved:
            return replace(step, details=details)
        verdict = verdicts[normalised(tuned.source)]
        return replace(step, final_source=self.store.put_source(tuned.source), verdict=verdict, details=details)


def _verdict(result: Result) -> Verdict:
    if result.verdict is None:
        raise BadInput(result.error or "the worker gave no verdict")
    return result.verdict


def _seconds(verdict: Verdict) -> float:
    return float(verdict.measurement.get("seconds", {}).get("total", 0.0))
