"""Doing jobs: one warm judge, builds in the background, one result for each job."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

import torch

from kernelpro.lab.energy.calibrate import calibrate
from kernelpro.lab.energy.counter import NoEnergyCounter, find_counter
from kernelpro.lab.exclusive import exclusive
from kernelpro.lab.judge.judge import DuplicateMachineCode, Judge
from kernelpro.lab.measure import environment
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.profile import facts
from kernelpro.lab.profile.collect import Collector
from kernelpro.lab.profile.sanitizer import Sanitizer, helps
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.sandbox.builds import Builds, has_artifacts
from kernelpro.lab.sandbox.launcher import SandboxLauncher
from kernelpro.lab.sandbox.process import CannotStart
from kernelpro.lab.study import study
from kernelpro.lab.tuning import tunables
from kernelpro.lab.tuning.tuner import TuneOptions, tune
from kernelpro.records import (
    BadInput,
    BuildData,
    Candidate,
    EnvironmentData,
    Hardware,
    Job,
    JudgeData,
    ProbeData,
    Profile,
    Progress,
    Record,
    Result,
    Status,
    Target,
    Tuning,
    TuningPoint,
    Verdict,
)
from kernelpro.records.jobs import JobKind

_REPEAT_SECONDS = 5.0
_BUILT_AHEAD = 4
"""Points of a tuning that are built while one is judged: nvcc takes about as long as two or three quick judgements."""


class Worker:
    """Keeps one task warm: jobs that follow each other on it pay for it once."""

    def __init__(self, nursery: SandboxLauncher, tell: Callable[[Record], None]):
        self._nursery, self._tell = nursery, tell
        self._builds = Builds(self._nursery)
        self._at_hand: Bench | None = None
        self._judge: Judge | None = None
        self._key: Any = None
        self._profiled: tuple[str, Profile] | None = None
        """The last candidate and its profile: a second job adds counters to it."""
        self._held = 0.0
        """Seconds for which the job at hand has held the device."""

    def announce(self, job: Job) -> None:
        """A job has arrived and waits: start its build."""
        if job.kind in ("judge", "profile") and job.candidate:
            self._begin_build(job, job.candidate)

    def _begin_build(self, job: Job, candidate: Candidate) -> Future[bytes]:
        target = self._target(job)
        return self._builds.begin(
            candidate, target, job.options, job.task.for_target(target) if job.task else None
        )

    def run(self, job: Job) -> Result:
        """Do one job. Bad input is an answer, not an exception."""
        self._held = 0.0
        return replace(self._run(job), device_seconds=round(self._held, 4))

    @contextmanager
    def _alone(self, job: Job) -> Iterator[None]:
        """With the device, which is nobody else's meanwhile."""
        target = self._target(job)
        with exclusive(_device(target), self._reporter(job)):
            begun = time.monotonic()
            try:
                yield
            finally:
                self._held += time.monotonic() - begun

    def _run(self, job: Job) -> Result:
        try:
            if job.kind not in get_args(JobKind):
                raise BadInput(f"job {job.id}: unknown kind of job {job.kind!r}")
            if job.kind == "environment":
                return Result(job.id, data=_environment(self._target(job), self._nursery.level))
            if job.kind == "energy":
                with self._alone(job):
                    return Result(job.id, data=calibrate(self._target(job), self._reporter(job)))
            if job.kind == "build":
                return self._build(job)
            if job.task is None:
                raise BadInput(f"job {job.id}: a {job.kind} job needs a task")
            job = replace(job, task=job.task.for_target(self._target(job)))
            if job.kind in ("judge", "profile"):
                self._get_ready(job)
            with self._alone(job):
                return self._measure(job)
        except DuplicateMachineCode as twin:
            return Result(job.id, data=JudgeData(same_as=str(twin)))
        except (BadInput, CannotStart) as error:
            return Result(job.id, error=str(error))
        except torch.OutOfMemoryError:
            pass  # what its frames hold goes with them
        self.forget()
        name = f"task {job.task.name}: " if job.task else ""
        return Result(
            job.id,
            error=f"{name}the device's memory is too small for it, its float64 oracle and several inputs",
        )

    def _get_ready(self, job: Job) -> None:
        """Build the candidate and, on a GPU, prepare its task meanwhile; a CPU's own measure would be taken beside compilers."""
        if job.candidate is None:
            raise BadInput(f"job {job.id}: a {job.kind} job needs a candidate")
        self._begin_build(job, job.candidate)
        if self._target(job) == "cuda" and self._key != self._key_of(job):
            with self._alone(job):
                self._prepared(job)
        self._await_build(job, job.candidate)

    def _await_build(self, job: Job, candidate: Candidate) -> None:
        """While the device is anybody's. What the build says is heard by whoever uses it."""
        self._reporter(job)("building")
        wait([self._begin_build(job, candidate)])

    def _prepared(self, job: Job) -> Bench:
        """All that a job needs of its task. What is half open, or has a baseline that failed, is let go."""
        try:
            bench = self._bench(job)
            if job.kind in ("judge", "probe"):
                self._warm(job, bench)
            return bench
        except BadInput:
            self.forget()
            raise

    def _measure(self, job: Job) -> Result:
        bench = self._prepared(job)
        if job.kind == "probe":
            return Result(job.id, data=_probe_data(self._warm(job, bench), _is_timed(job)))
        if job.kind == "judge" and job.candidate:
            return self._judged(job, job.candidate, bench)
        if job.kind == "study":
            return Result(
                job.id,
                data=study(bench, job.seed_baselines, self._reporter(job), self._judge.seeds if self._judge else {}),
            )
        assert job.candidate
        return Result(job.id, profile=self._profile(job, bench, job.candidate))

    def _judged(self, job: Job, candidate: Candidate, bench: Bench) -> Result:
        try:
            verdict = self._warm(job, bench).judge(candidate, job.judged_code)
            if job.tune_points and verdict.status is Status.PASSED:
                return self._tuned(job, candidate, verdict)
            return self._located(job, bench, verdict)
        except BadInput:
            self.forget()
            raise

    def _located(self, job: Job, bench: Bench, verdict: Verdict) -> Result:
        """With the place of the access for which a GPU stopped it, if that is asked for and can be found."""
        if not (job.sanitize and job.candidate and bench.target == "cuda" and helps(verdict)):
            return Result(job.id, verdict=verdict)
        place = Sanitizer(bench, job.candidate, self._reporter(job)).check()
        return Result(
            job.id, verdict=replace(verdict, reason=f"{verdict.reason}\n{place}") if place else verdict
        )

    def _tuned(self, job: Job, candidate: Candidate, verdict: Verdict) -> Result:
        try:
            if not tunables.parse(candidate.source).names:
                return Result(job.id, verdict=verdict)
        except BadInput as error:
            return Result(job.id, verdict=verdict, data=JudgeData(tuning_error=str(error)))
        judge = _Points(self, job, self._reporter(job))
        dice = random.Random(candidate.id)
        try:
            found = tune(candidate.source, verdict, judge, job.tune_points, dice, lookahead=_BUILT_AHEAD)
        except BadInput as error:  # a throttled device, a baseline that failed: what was judged before stands
            self.forget()
            return Result(job.id, verdict=verdict, data=JudgeData(tuning_error=str(error)))
        points = tuple(TuningPoint(t.point, t.verdict.status, t.ms, t.effort) for t in found.history)
        tuning = Tuning(found.winner.point, found.reason, points)
        data = JudgeData(tuning=tuning, tuned_source=found.source if found.improved else "")
        return Result(job.id, verdict=found.winner.verdict, data=data)

    def judge_point(self, job: Job) -> Verdict:
        assert job.candidate
        self._await_build(job, job.candidate)
        return self._warm(job, self._bench(job)).judge(job.candidate)

    def _build(self, job: Job) -> Result:
        if job.candidate is None:
            raise BadInput(f"job {job.id}: a build job needs a candidate")
        try:
            artifacts = self._begin_build(job, job.candidate).result()
        except CandidateRejected as error:
            return Result(job.id, data=BuildData(error.status, error.reason))
        if (note := self._builds.notes.get(job.candidate.id)) and not has_artifacts(artifacts):
            return Result(job.id, data=BuildData(Status.CRASHED, note))
        return Result(job.id, data=BuildData(artifact_bytes=len(artifacts)))

    def _target(self, job: Job) -> Target:
        return job.target or ("cuda" if torch.cuda.is_available() else "cpu")

    def _reporter(self, job: Job) -> Callable[[str], None]:
        """Tells each stage, and the same one again only after a while, as a sign of life."""
        last, told = "", 0.0

        def report(stage: str) -> None:
            nonlocal last, told
            if stage != last or time.monotonic() - told > _REPEAT_SECONDS:
                last, told = stage, time.monotonic()
                self._tell(Progress(job.id, stage))

        return report

    def _bench(self, job: Job) -> Bench:
        """The task's workbench: the one at hand, or a new one."""
        assert job.task
        key = self._key_of(job)
        if self._key != key or self._at_hand is None:
            self.forget()
            self._at_hand, self._key = (
                Bench(job.task, self._target(job), job.options, self._nursery, self._builds),
                key,
            )
            self._at_hand.open(self._reporter(job))
        self._at_hand.options = job.options
        return self._at_hand

    def _key_of(self, job: Job) -> Any:
        """Of the workbench that it needs."""
        assert job.task
        how = replace(
            job.options,
            disabled_tripwires=(),
            min_own_share=0.0,
            effort="normal",
            give_up_ms=0.0,
            energy=False,
            energy_against="",
        )
        return job.task.id, self._target(job), how.dumps(), _is_timed(job)

    def _warm(self, job: Job, bench: Bench) -> Judge:
        if self._judge is None:
            self._judge = Judge(bench, self._reporter(job))
            self._judge.prepare(_is_timed(job))
        self._judge.report_to(self._reporter(job))
        return self._judge

    def _profile(self, job: Job, bench: Bench, candidate: Candidate) -> Profile:
        try:
            known = (
                self._profiled[1]
                if self._profiled and self._profiled[0] == candidate.id and job.profile_request.metrics
                else None
            )
            made = Collector(bench, candidate, self._reporter(job)).collect(job.profile_request, known)
        except CandidateRejected as error:
            raise BadInput(f"{candidate.name} cannot be profiled ({error.status}): {error.reason}") from None
        self._profiled = (candidate.id, made) if known is None else self._profiled
        return made

    def forget(self) -> None:
        """Let the warm task go."""
        if self._judge:
            self._judge.close()
        elif self._at_hand:
            self._at_hand.close()
        self._judge, self._at_hand, self._key, self._profiled = None, None, None, None
        torch.cuda.empty_cache()  # for the children of the next task

    def close(self) -> None:
        self.forget()
        self._builds.close()


class _Points:
    """Judges variants of a job's candidate."""

    def __init__(self, worker: Worker, job: Job, report: Callable[[str], None]):
        self._worker, self._job, self._report = worker, job, report
        self._judged = 0

    def announce(self, source: str) -> None:
        self._worker.announce(self._variant(source, TuneOptions("quick", 0.0)))

    def judge(self, source: str, options: TuneOptions) -> Verdict:
        self._judged += 1
        self._report(f"tuning, point {self._judged}")
        return self._worker.judge_point(self._variant(source, options))

    def _variant(self, source: str, options: TuneOptions) -> Job:
        assert self._job.candidate
        chosen = replace(self._job.options, effort=options.effort, give_up_ms=options.give_up_ms)
        return replace(self._job, candidate=replace(self._job.candidate, source=source), options=chosen)


def _environment(target: Target, sandbox: str) -> EnvironmentData:
    if target == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "no CUDA device is visible to torch here: use --target cpu, or run where there is a GPU"
        )
    snapshot = environment.snapshot(target)
    try:
        return EnvironmentData(snapshot, sandbox, energy_counter=find_counter(target).name)
    except NoEnergyCounter as reason:
        return EnvironmentData(snapshot, sandbox, energy_error=str(reason))


def _device(target: Target) -> str:
    """What is used by one at a time."""
    if target == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def _is_timed(job: Job) -> bool:
    """A probe without baselines only says whether a task can be scored."""
    return job.kind != "probe" or bool(job.options.baselines)


def _probe_data(judge: Judge, timed: bool) -> ProbeData:
    scorable, bench = judge.not_scorable is None, judge.bench
    return ProbeData(
        scorable=scorable,
        reason=judge.not_scorable or "",
        precision=bench.precision,
        unit=bench.unit,
        hardware=_hardware(bench),
        work=bench.work,
        tolerance={name: limit.norm for name, limit in judge.tolerance.limits.items()},
        dropped=judge.tolerance.skipped,
        baselines={
            name: judge.baselines.time_ms(name) for name in (judge.baselines.variants if timed and scorable else ())
        },
        floor_ms=bench.floor_ms if scorable else None,
        stage_seconds=judge.preparation_seconds,
    )


def _hardware(bench: Bench) -> Hardware:
    """What an author should know of the device, as measured."""
    device, ceilings = facts.device(bench.target, bench.ceilings), bench.ceilings
    versions = environment.snapshot(bench.target)
    words = {
        name.replace("_", " "): str(value)
        for name, value in device.to_json().items()
        if value is not None and name not in ("name", "dram_bandwidth")
    }
    words |= {name: str(versions[name]) for name in ("torch", "nvcc", "triton") if name in versions}
    return Hardware(device.name, ceilings.bandwidth, ceilings.cached_bandwidth, ceilings.rates, words)
