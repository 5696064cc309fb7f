"""Profiles and diagnoses a step before it is improved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kernelpro.diagnose import evidence, guidance
from kernelpro.diagnose.diagnostics import registry
from kernelpro.diagnose.track_record import TrackRecord
from kernelpro.engine import baseline_profile, objective, profiling
from kernelpro.engine.profiling import SubmitJob
from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput, Candidate, RunConfig, Step
from kernelpro.records.events import RunEvent, StepProgress


@dataclass
class StepProfiler:
    """Diagnoses each step at most once, however many other steps wait for the diagnosis."""

    config: RunConfig
    store: RunStore
    submit: SubmitJob
    emit: Callable[[RunEvent], None]
    steps: dict[int, Step]
    save: Callable[[Step], Step]
    """Stores a step and updates `steps`."""
    baselines: dict[str, float]
    """Time of a call in ms, by baseline."""
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    async def ensure_profiled(self, number: int) -> None:
        """Profile a step, unless it has a diagnosis or the reason why it has none."""
        step = self.steps[number]
        if step.diagnosis is not None or step.details.profile_error:
            return
        if number not in self._tasks:
            self._tasks[number] = asyncio.create_task(self._profile(number))
        await self._tasks[number]

    def cancel(self) -> None:
        """Cancel all profiles in progress."""
        for task in self._tasks.values():
            task.cancel()

    async def _profile(self, number: int) -> None:
        step, config = self.steps[number], self.config
        self.emit(StepProgress(number, "profiling"))
        if config.target == "cuda":
            step = self.save(baseline_profile.mark(step, self.steps.values(), self.baselines))
        request = profiling.ProfileSpec(
            config.task,
            Candidate(self.store.source(step.final_source), f"step {number}"),
            config.target,
            config.options,
            baseline_profile.baselines_to_profile(step),
            single_job=config.target == "cuda" and not config.wait and config.pool.startswith("spool:"),
            energy=config.objective != "speed",
        )
        try:
            profile, diagnosis = await profiling.profile(
                self.submit, request, registry().values(), load_track_record(config)
            )
        except BadInput as error:
            details = replace(baseline_profile.unmark(step.details), profile_error=str(error))
            self.save(replace(step, details=details))
            return
        finally:
            self.emit(StepProgress(number, "profiled"))
        parts = (objective.describe_energy(step), guidance.write(diagnosis))
        details = replace(
            baseline_profile.with_baseline_kernels(profile, diagnosis.bound, step.details),
            guidance="\n".join(filter(None, parts)),
            evidence=evidence.write(baseline_profile.with_columns(profile, self.steps.values())),
        )
        self.save(replace(self.steps[number], diagnosis=diagnosis, details=details))


def load_track_record(config: RunConfig) -> TrackRecord:
    """The measured gains of each diagnostic's advice; empty if the run does not use knowledge."""
    return TrackRecord.load() if config.knowledge else TrackRecord()
