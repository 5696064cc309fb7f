"""A candidate's trial: the judge's verdict, its tunables, if it declares any and works, its energy, if that may matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kernelpro.engine.profiling import Ask
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

    async def of(self, step: Step, baseline_ms: float, known: dict[str, int], metered_ms: float) -> Step:
        """The step with its verdict, and with its tunables at their best. `known`: earlier steps by their machine code.

        Energy is measured where it takes at most `metered_ms`.
        """
        self.tell("judging", {"step": step.number})
        source = self.store.source(step.source)
        hopeless = replace(self.config.options, give_up_ms=_HOPELESS * baseline_ms)
        job = self._job(step.number, source, hopeless)
        result = await self.ask(replace(job, known=tuple(known), tune=self.config.tune_points))
        told = result.data or {}
        if same := told.get("same_as"):
            return replace(step, note=f"a duplicate of step {known[same]}: it compiles to the same instructions")
        verdict = _verdict(result)
        done = replace(step, verdict=verdict, details=step.details | {"device_seconds": told.get("seconds", verdict.seconds)})
        if "untuned" in told:
            done = replace(done, note=f"its tunables were not searched: {told['untuned']}")
        if "tuned" in told:
            done = replace(done, details=done.details | {"tuned": told["tuned"]})
        if tuned := told.get("source"):
            done = replace(done, final_source=self.store.put_source(tuned))
        return await self._metered(done) if done.ms and done.ms <= metered_ms else done

    async def _metered(self, step: Step) -> Step:
        """Its verdict with energy; what goes wrong there decides the verdict."""
        self.tell("metering", {"step": step.number})
        options = replace(self.config.options, effort="quick", energy=True)
        verdict = await self.verdict(step.number, self.store.source(step.final_source), options)
        details = step.details | {"device_seconds": step.details["device_seconds"] + verdict.seconds}
        if verdict.status is Status.PASSED and step.verdict:
            verdict = replace(step.verdict, energy=verdict.energy)
        return replace(step, verdict=verdict, details=details)

    async def verdict(self, number: int, source: str, options: Options) -> Verdict:
        return _verdict(await self.ask(self._job(number, source, options)))

    def _job(self, number: int, source: str, options: Options) -> Job:
        candidate = Candidate(source, f"step {number}")
        return Job(f"step {number}", "judge", self.config.task, candidate, self.config.target, options)


def _verdict(result: Result) -> Verdict:
    if result.verdict is None:
        raise BadInput(result.error or "the worker gave no verdict")
    return result.verdict
