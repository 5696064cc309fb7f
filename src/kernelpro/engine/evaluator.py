"""A candidate's trial: the judge's verdict, its tunables, if it declares any and works, its energy, if that may matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kernelpro.engine.profiling import SubmitJob
from kernelpro.engine.store import RunStore
from kernelpro.records import (
    BadInput,
    Candidate,
    Effort,
    Energy,
    Job,
    Options,
    Result,
    RunConfig,
    Status,
    Step,
    Verdict,
)

_HOPELESS = 3.0
"""Times the best baseline: a kernel beyond is timed for a few rounds only."""


@dataclass(frozen=True)
class Evaluator:
    config: RunConfig
    store: RunStore
    ask: SubmitJob
    tell: Callable[[str, dict[str, Any]], None]
    baselines: dict[str, float]
    """Milliseconds."""

    async def evaluate(self, step: Step, known: dict[str, int], metered_ms: float) -> Step:
        """The step with its verdict, and with its tunables at their best. `known`: earlier steps by their machine code.

        Energy is measured where it takes at most `metered_ms`.
        """
        self.tell("judging", {"step": step.number})
        source = self.store.source(step.source)
        hopeless = replace(self.config.options, give_up_ms=_HOPELESS * min(self.baselines.values()))
        job = self._job(step.number, source, hopeless)
        result = await self.ask(replace(job, known=tuple(known), tune=self.config.tune_points))
        told = result.data or {}
        if same := told.get("same_as"):
            return replace(
                step, note=f"a duplicate of step {known[same]}: it compiles to the same instructions"
            )
        verdict = _verdict(result)
        done = replace(
            step, verdict=verdict, details=step.details | {"device_seconds": result.device_seconds}
        )
        if "untuned" in told:
            done = replace(done, note=f"its tunables were not searched: {told['untuned']}")
        if "tuned" in told:
            done = replace(done, details=done.details | {"tuned": told["tuned"]})
        if tuned := told.get("source"):
            done = replace(done, final_source=self.store.save_source(tuned))
        return await self._metered(done) if done.ms and done.ms <= metered_ms else done

    async def _metered(self, step: Step) -> Step:
        """Its verdict with energy. What the candidate does wrong there decides the verdict; what the machine does does not."""
        self.tell("metering", {"step": step.number})
        assert step.verdict
        job = self._job(step.number, self.store.source(step.final_source), self.metering("quick"))
        result = await self.ask(job)
        if result.verdict is None:
            refused = Energy(refused=result.error or "the worker gave no verdict")
            return replace(step, verdict=replace(step.verdict, energy=refused))
        verdict = result.verdict
        details = step.details | {"device_seconds": step.details["device_seconds"] + result.device_seconds}
        if verdict.status is Status.PASSED:
            verdict = replace(step.verdict, energy=verdict.energy)
        return replace(step, verdict=verdict, details=details)

    async def judge_fully(self, step: Step) -> Verdict:
        return _verdict(
            await self.ask(
                self._job(step.number, self.store.source(step.final_source), self.metering("full"))
            )
        )

    def metering(self, effort: Effort) -> Options:
        """With energy, if it is an objective: beside the same baseline for a whole run, so that its ratios can be compared."""
        against = min(self.baselines, key=lambda name: self.baselines[name])
        energy = self.config.objective != "speed"
        return replace(
            self.config.options, effort=effort, energy=energy, energy_against=against if energy else ""
        )

    def _job(self, number: int, source: str, options: Options) -> Job:
        candidate = Candidate(source, f"step {number}")
        return Job(f"step {number}", "judge", self.config.task, candidate, self.config.target, options)


def _verdict(result: Result) -> Verdict:
    if result.verdict is None:
        raise BadInput(result.error or "the worker gave no verdict")
    return result.verdict
