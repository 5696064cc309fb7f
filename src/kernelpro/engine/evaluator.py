"""Evaluates one candidate: its verdict, the best values of its tunables, and its energy if energy is an
objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kernelpro.engine.profiling import SubmitJob
from kernelpro.engine.store import RunStore
from kernelpro.records import (
    Candidate,
    ComparableTimes,
    Effort,
    Energy,
    Job,
    JudgeData,
    NoVerdict,
    Options,
    Result,
    RunConfig,
    Status,
    Step,
    Verdict,
)
from kernelpro.records.events import RunEvent, StepProgress

_GIVE_UP_RATIO = 3.0
"""A kernel slower than the fastest baseline by this factor is timed for a few rounds only."""

_TUNE_RATIO = 1.5
"""Candidates slower than the best one by more than this factor are not tuned: tuning seldom gains more, and
it costs as much device time as several candidates."""


@dataclass(frozen=True)
class Evaluator:
    """Sends the jobs of a step to the pool and adds their results to the step."""

    config: RunConfig
    store: RunStore
    submit: SubmitJob
    emit: Callable[[RunEvent], None]
    times: ComparableTimes

    async def evaluate(
        self, step: Step, judged_code: dict[str, int], max_energy_ms: float, best_speedup: float
    ) -> Step:
        """Judge and tune a step. Returns it with its verdict and the best values of its tunables.

        `judged_code`: earlier steps by the hash of their machine code. `max_energy_ms`: energy is measured if
        the candidate takes at most this time. `best_speedup`: speed-up of the best candidate so far over the
        fastest baseline; 0: there is none.
        """
        self.emit(StepProgress(step.number, "judging"))
        options = replace(self.config.options, give_up_ratio=_GIVE_UP_RATIO)
        job = self._job(step.number, self.store.source(step.source), options)
        result = await self.submit(
            replace(
                job,
                judged_code=tuple(judged_code),
                tune_points=self.config.tune_points,
                tune_above_speedup=best_speedup / _TUNE_RATIO,
            )
        )
        data = result.data if isinstance(result.data, JudgeData) else JudgeData()
        if data.same_as:
            note = f"step {judged_code[data.same_as]} compiles to the same instructions"
            return replace(step, no_verdict=NoVerdict.DUPLICATE, note=note)
        if result.internal_error and result.verdict:
            return replace(step, no_verdict=NoVerdict.INTERNAL_ERROR, note=result.verdict.reason)
        judged = replace(
            step,
            verdict=_verdict(result),
            details=replace(step.details, device_seconds=result.device_seconds, tuning=data.tuning),
        )
        if data.tuning_error:
            judged = replace(judged, note=f"its tunables were not searched: {data.tuning_error}")
        if data.tuned_source:
            judged = replace(judged, final_source=self.store.save_source(data.tuned_source))
        ms = self.times.ms(judged)
        return await self._with_energy(judged) if ms and ms <= max_energy_ms else judged

    async def _with_energy(self, step: Step) -> Step:
        """Judge a step again with energy. Returns it with the energy added to its verdict.

        If the candidate fails this second judgement, the second verdict counts. If the worker cannot measure
        energy, the first verdict stands.
        """
        self.emit(StepProgress(step.number, "measuring_energy"))
        assert step.verdict
        job = self._job(step.number, self.store.source(step.final_source), self.energy_options("quick"))
        result = await self.submit(job)
        if result.verdict is None or result.internal_error:
            error = result.verdict.reason if result.verdict else result.error
            unknown = Energy(unavailable=error or "the worker returned no verdict")
            return replace(step, verdict=replace(step.verdict, energy=unknown))
        verdict = result.verdict
        if verdict.status is Status.PASSED:
            verdict = replace(step.verdict, energy=verdict.energy)
        seconds = step.details.device_seconds + result.device_seconds
        return replace(step, verdict=verdict, details=replace(step.details, device_seconds=seconds))

    async def judge_fully(self, step: Step) -> Verdict:
        """The verdict of a judgement at full length, against all baselines; without final judging
        (`RunConfig.finalists` is 0), of a judgement of the usual length."""
        source = self.store.source(step.final_source)
        options = self.energy_options("full" if self.config.finalists else self.config.options.effort)
        return _verdict(await self.submit(self._job(step.number, source, options)))

    def energy_options(self, effort: Effort) -> Options:
        """Options that measure energy if it is an objective. One baseline serves the whole run, so that the
        energy ratios of its candidates can be compared."""
        energy = self.config.objective != "speed"
        baselines = self.times.baselines
        fastest = min(baselines, key=lambda name: baselines[name])
        return replace(
            self.config.options, effort=effort, energy=energy, energy_baseline=fastest if energy else ""
        )

    def _job(self, number: int, source: str, options: Options) -> Job:
        candidate = Candidate(source, f"step {number}")
        return Job(f"step {number}", "judge", self.config.task, candidate, self.config.target, options)


def _verdict(result: Result) -> Verdict:
    if result.verdict is None:
        raise result.exception("verdict")
    return result.verdict
