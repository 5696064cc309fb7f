"""Runs jobs: keeps one task prepared, builds in the background, returns one result for each job."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, get_args

import torch

from kernelpro.lab import vector_math
from kernelpro.lab.compile_ahead import AheadCompilers
from kernelpro.lab.describe import describe_environment, probe_data
from kernelpro.lab.energy.calibrate import calibrate
from kernelpro.lab.exclusive import exclusive, lock_name
from kernelpro.lab.judge.judge import DuplicateMachineCode, Judge
from kernelpro.lab.judge.shapes import combine_probes, judge_shapes
from kernelpro.lab.measure.bench import COMPILER_MODULES, Bench
from kernelpro.lab.measure.memory_plan import CandidateNeedsMemory, Shortage
from kernelpro.lab.profile.collect import Collector
from kernelpro.lab.profile.sanitizer import is_memory_fault, locate_error
from kernelpro.lab.sandbox import health
from kernelpro.lab.sandbox.builds import Builds, has_artifacts, when_all_end
from kernelpro.lab.sandbox.launcher import SandboxLauncher
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.sandbox.process import CannotStart
from kernelpro.lab.study import study_task
from kernelpro.lab.tasks.graph import TRACER_MODULE
from kernelpro.lab.tuning import tunables
from kernelpro.lab.tuning.design_race import DesignRace
from kernelpro.lab.tuning.race import Race, RacedTime
from kernelpro.lab.tuning.tuner import tune
from kernelpro.records import (
    BadInput,
    BuildData,
    Candidate,
    Job,
    JudgeData,
    Profile,
    Progress,
    RaceData,
    RacedDesign,
    Record,
    Result,
    Status,
    Target,
    Tuning,
    TuningPoint,
    Verdict,
)
from kernelpro.records.jobs import JobKind
from kernelpro.records.shapes import shares

_REPEAT_SECONDS = 5.0
_MAX_PLAN_FAILURES = 2
"""How often a job that ran out of memory is repeated, each time with a smaller memory plan."""
_RACE_SHARE = 0.5
"""Time limit for all races of a candidate, as a share of the time that its judgement took."""
_MAX_RACE_BUILD_SECONDS = 20.0
"""On a GPU, a race excludes designs that take longer to build, because it starts after the last build."""
_LOOKAHEAD = 4
"""Number of tuning points to build ahead: nvcc takes about as long as two or three quick judgements."""


@dataclass
class _WarmShape:
    """One shape of the prepared task."""

    bench: Bench
    judge: Judge | None = None

    def close(self) -> None:
        (self.judge or self.bench).close()


class JobRunner:
    """Runs jobs and keeps one task warm, so that consecutive jobs of a task prepare it once."""

    def __init__(self, launcher: SandboxLauncher, write: Callable[[Record], None]):
        vector_math.initialize()  # the oracle computes in this process
        self._launcher, self._write = launcher, write
        self._builds = Builds(self._launcher)
        self._references = AheadCompilers(background=self._builds.background)
        self._imports: threading.Thread | None = None
        self._warm: list[_WarmShape] = []
        """The prepared task, one entry for each of its shapes."""
        self._warm_key: Any = None
        self._last_profile: tuple[str, Profile] | None = None
        """The id and profile of the last profiled candidate; a second job may add counters to the profile."""
        self._device_seconds = 0.0
        """Seconds for which the current job has held the device."""
        self._shortage = Shortage()
        """What the memory plans of the current job have shown so far."""

    def prebuild(self, job: Job) -> None:
        """Start to build the candidates of a queued job, or to compile the reference of a `compile` job. A
        `compile` job gets a result when this has ended."""
        builds = [build for candidate in _candidates(job) for build in self._start_builds(job, candidate)]
        if job.kind == "compile" and job.candidates:
            when_all_end(builds, lambda: self._write(Result(job.id)))
        if job.kind == "compile" and job.task and not job.candidates and self._target(job) == "cuda":
            self._import_compilers()
            self._references.begin(
                job.task.for_target("cuda"), "cuda", lambda study: self._write(Result(job.id, data=study))
            )

    def _import_compilers(self) -> None:
        """Import in the background what the first task of a suite needs: torch's compilers in the process
        that starts sandboxes, and the tracer of operator graphs here."""
        if self._imports is None:
            self._launcher.preload(COMPILER_MODULES)
            self._imports = threading.Thread(target=import_module, args=(TRACER_MODULE,), daemon=True)
            self._imports.start()

    def _start_builds(self, job: Job, candidate: Candidate) -> list[Future[bytes]]:
        """Start one build for each shape of the task; in most languages all shapes share one."""
        target = self._target(job)
        task = job.task.for_target(target) if job.task else None
        tasks = [task.at(number) for number in range(len(task.shapes))] if task else [None]
        is_ahead = job.kind == "compile"
        return [self._builds.begin(candidate, target, job.options, each, is_ahead) for each in tasks]

    def run(self, job: Job) -> Result:
        """Run one job. Bad input becomes an error result."""
        if self._imports:
            self._imports.join()  # it would disturb measurements
        self._device_seconds, self._shortage = 0.0, Shortage()
        return replace(self._run(job), device_seconds=round(self._device_seconds, 4))

    @contextmanager
    def _device_held(self, job: Job) -> Iterator[None]:
        """Hold the device exclusively and count the seconds."""
        target = self._target(job)
        with exclusive(lock_name(target), self.reporter(job)):
            start = time.monotonic()
            try:
                yield
            finally:
                self._device_seconds += time.monotonic() - start

    def _run(self, job: Job) -> Result:
        try:
            if job.kind not in get_args(JobKind):
                raise BadInput(f"job {job.id}: unknown kind {job.kind!r}")
            if job.kind == "environment":
                if self._target(job) == "cuda":
                    self._launcher.preload(COMPILER_MODULES)  # until the first task comes
                return Result(job.id, data=describe_environment(self._target(job), self._launcher.level))
            if job.kind == "energy":
                with self._device_held(job):
                    return Result(job.id, data=calibrate(self._target(job), self.reporter(job)))
            if job.kind == "build":
                return self._run_build(job)
            if job.task is None:
                raise BadInput(f"job {job.id}: a {job.kind} job needs a task")
            job = replace(job, task=job.task.for_target(self._target(job)))
            if job.kind in ("judge", "profile", "race"):
                self._prepare_candidates(job)
            with self._device_held(job):
                return self._run_on_device(job)
        except DuplicateMachineCode as duplicate:
            return Result(job.id, data=JudgeData(same_as=str(duplicate)))
        except (BadInput, CannotStart) as error:
            return Result(job.id, error=str(error))
        except torch.OutOfMemoryError as error:
            reason = str(error).partition(". ")[0] or "out of memory"
            self._shortage = replace(self._shortage, failures=self._shortage.failures + 1)
        except CandidateNeedsMemory as error:
            reason = str(error)
            # the second time, the plan that leaves most is used
            needed = sys.maxsize if self._shortage.candidate_bytes else error.nbytes
            self._shortage = replace(self._shortage, candidate_bytes=needed)
        self.release_task()  # outside the handler, whose frames hold memory
        if self._shortage.failures <= _MAX_PLAN_FAILURES:
            return self._run(job)
        name = f"task {job.task.name}: " if job.task else ""
        return Result(
            job.id,
            error=f"{name}the device has too little memory to judge it; no candidate is to blame ({reason})",
        )

    def _prepare_candidates(self, job: Job) -> None:
        """Build the candidates.

        A GPU worker prepares their task meanwhile. A CPU worker does not: compilers would disturb what the
        preparation measures.
        """
        if not (candidates := _candidates(job)):
            raise BadInput(f"job {job.id}: a {job.kind} job needs a candidate")
        self.prebuild(job)
        if self._target(job) == "cuda" and self._warm_key != self._key_for(job):
            with self._device_held(job):
                self._prepare_task(job)
        self.reporter(job)("building")
        builds = [build for candidate in candidates for build in self._start_builds(job, candidate)]
        # a CPU race waits for all builds: compilers would disturb it
        is_limited = job.kind == "race" and self._target(job) == "cuda"
        wait(builds, _MAX_RACE_BUILD_SECONDS if is_limited else None)

    def _is_built(self, job: Job, candidate: Candidate) -> bool:
        return all(build.done() for build in self._start_builds(job, candidate))

    def _await_build(self, job: Job, candidate: Candidate) -> None:
        """Wait for a build without holding the device. A build error is raised later, where it is used."""
        self.reporter(job)("building")
        wait(self._start_builds(job, candidate))

    def _prepare_task(self, job: Job) -> list[Bench]:
        """Prepare all shapes of a job's task; release the task if one of them raises BadInput."""
        try:
            benches = self._benches_for(job)
            if job.kind in ("judge", "probe", "race"):
                self._warm_judges(job)
            return benches
        except BadInput:
            self.release_task()
            raise

    def _run_on_device(self, job: Job) -> Result:
        assert job.task
        benches = self._prepare_task(job)
        if job.kind == "probe":
            probes = [probe_data(judge, _is_timed(job)) for judge in self._warm_judges(job)]
            return Result(job.id, data=combine_probes(probes, shares(job.task.shapes)))
        if job.kind == "judge" and job.candidate:
            return self._run_judge(job, job.candidate, benches)
        if job.kind == "race":
            return Result(job.id, data=self._run_race(job, benches))
        if job.kind == "study":
            judge = self._warm[0].judge
            seeds = judge.seeds if judge else {}
            return Result(job.id, data=study_task(benches, job.seed_baselines, self.reporter(job), seeds))
        assert job.candidate
        return Result(job.id, profile=self._run_profile(job, self._dominant(job, benches), job.candidate))

    def _dominant(self, job: Job, benches: list[Bench]) -> Bench:
        """The shape that takes most of the time, estimated as its share of the calls times its floor."""
        assert job.task
        times = [
            share * bench.floor_ms for share, bench in zip(shares(job.task.shapes), benches, strict=True)
        ]
        return benches[times.index(max(times))]

    def _run_judge(self, job: Job, candidate: Candidate, benches: list[Bench]) -> Result:
        try:
            begin = time.monotonic()
            verdict = self._judge_shapes(job, candidate)
            if job.tune_points and verdict.status is Status.PASSED:
                return self._run_tuning(job, candidate, verdict, _RACE_SHARE * (time.monotonic() - begin))
            return self._with_access_location(job, self._dominant(job, benches), verdict)
        except BadInput:
            self.release_task()
            raise

    def _run_race(self, job: Job, benches: list[Bench]) -> RaceData:
        """Race designs at the shape that takes most of the time."""
        bench = self._dominant(job, benches)
        judge = self._warm_judges(job)[benches.index(bench)]
        if judge.not_scorable:
            raise BadInput(f"this task cannot be scored: {judge.not_scorable}")
        built = [candidate for candidate in job.candidates if self._is_built(job, candidate)]
        teardown = judge.wait_for_teardown, judge.close_in_background
        race = DesignRace(bench, judge.as_given_seed, judge.check_as_given, *teardown)
        try:
            results = dict(
                zip([design.id for design in built], race.run(built, self.reporter(job)), strict=True)
            )
            slow = RacedDesign(Status.TIMED_OUT, f"its build took more than {_MAX_RACE_BUILD_SECONDS:g} s")
            return RaceData(tuple(results.get(design.id, slow) for design in job.candidates))
        finally:
            race.close()
            health.check_device(bench.target)

    def _judge_shapes(self, job: Job, candidate: Candidate) -> Verdict:
        """The verdict on all shapes. Raises DuplicateMachineCode."""
        assert job.task
        judges = self._warm_judges(job)
        if job.options.energy and len(judges) > 1:
            raise BadInput("energy is measured for one shape only: judge without energy, or a single shape")

        def judge(number: int) -> Verdict:
            return judges[number].judge(candidate, job.judged_code if number == 0 else ())

        return judge_shapes(judge, shares(job.task.shapes))

    def _with_access_location(self, job: Job, bench: Bench, verdict: Verdict) -> Result:
        """The verdict; if the job asks for it, with the source line of an illegal memory access."""
        if not (job.sanitize and job.candidate and bench.target == "cuda" and is_memory_fault(verdict)):
            return Result(job.id, verdict=verdict)
        line = locate_error(bench, job.candidate, self.reporter(job))
        return Result(
            job.id, verdict=replace(verdict, reason=f"{verdict.reason}\n{line}") if line else verdict
        )

    def _run_tuning(self, job: Job, candidate: Candidate, verdict: Verdict, seconds: float) -> Result:
        """Tune a candidate; the races take no more than `seconds`."""
        try:
            if not tunables.parse(candidate.source).names:
                return Result(job.id, verdict=verdict)
        except BadInput as error:
            return Result(job.id, verdict=verdict, data=JudgeData(tuning_error=str(error)))
        speedup, limit = min(ratio.value for ratio in verdict.speedup.values()), job.tune_above_speedup
        if speedup < limit:
            compared = f"it is {speedup:.2f}x as fast as the fastest baseline"
            reason = f"{compared}, and only kernels above {limit:.2f}x are tuned"
            return Result(job.id, verdict=verdict, data=JudgeData(tuning_error=reason))
        judge = _VariantJudge(self, job, candidate, seconds)
        rng = random.Random(candidate.id)
        try:
            tuning_result = tune(candidate.source, verdict, judge, job.tune_points, rng, lookahead=_LOOKAHEAD)
        except BadInput as error:  # a throttled device or a failed baseline: keep the first verdict
            judge.close()
            self.release_task()
            return Result(job.id, verdict=verdict, data=JudgeData(tuning_error=str(error)))
        finally:
            judge.close()
        points = tuple(TuningPoint(t.point, t.status, t.ms, t.effort) for t in tuning_result.history)
        tuning = Tuning(tuning_result.winner.point, tuning_result.reason, points)
        data = JudgeData(tuning=tuning, tuned_source=tuning_result.source if tuning_result.improved else "")
        return Result(job.id, verdict=tuning_result.winner.verdict or verdict, data=data)

    def start_race(self, job: Job, default: Candidate) -> Race:
        """A race between the points of a candidate, at the shape that takes most of the time."""
        benches = self._benches_for(job)
        bench = self._dominant(job, benches)
        judge = self._warm_judges(job)[benches.index(bench)]
        return Race(bench, default, judge.wait_for_teardown)

    def await_build(self, job: Job) -> Candidate:
        """Wait for the build of a variant."""
        assert job.candidate
        self._await_build(job, job.candidate)
        return job.candidate

    def judge_point(self, job: Job) -> Verdict:
        """Judge one point of the tunables."""
        assert job.candidate
        self._await_build(job, job.candidate)
        self._benches_for(job)
        return self._judge_shapes(replace(job, judged_code=()), job.candidate)

    def _run_build(self, job: Job) -> Result:
        if job.candidate is None:
            raise BadInput(f"job {job.id}: a build job needs a candidate")
        try:
            artifacts = b"".join(build.result() for build in self._start_builds(job, job.candidate))
        except CandidateRejected as error:
            return Result(job.id, data=BuildData(error.status, error.reason))
        if (note := self._builds.notes.get(job.candidate.id)) and not has_artifacts(artifacts):
            return Result(job.id, data=BuildData(Status.CRASHED, note))
        return Result(job.id, data=BuildData(artifact_bytes=len(artifacts)))

    def _target(self, job: Job) -> Target:
        return job.target or ("cuda" if torch.cuda.is_available() else "cpu")

    def reporter(self, job: Job, preparing: bool = False) -> Callable[[str], None]:
        """A callback that reports each new stage, and repeats it every few seconds as a heartbeat.

        `preparing`: see Progress.
        """
        last, last_time = "", 0.0

        def report(stage: str) -> None:
            nonlocal last, last_time
            if stage != last or time.monotonic() - last_time > _REPEAT_SECONDS:
                last, last_time = stage, time.monotonic()
                self._write(Progress(job.id, stage, preparing))

        return report

    def _benches_for(self, job: Job) -> list[Bench]:
        """The benches of the job's task, one for each shape: the warm ones, or new ones."""
        assert job.task
        key = self._key_for(job)
        if self._warm_key != key or not self._warm:
            self.release_task()
            self._warm_key = key
            for number in range(len(job.task.shapes)):
                bench = Bench(
                    job.task.at(number),
                    self._target(job),
                    job.options,
                    self._launcher,
                    self._builds,
                    self._shortage,
                )
                self._warm.append(_WarmShape(bench))
                bench.open(self.reporter(job, preparing=True))
        for warm in self._warm:
            warm.bench.options = job.options
        return [warm.bench for warm in self._warm]

    def _key_for(self, job: Job) -> Any:
        """Identifies the benches that a job needs."""
        assert job.task
        return job.task.id, self._target(job), job.options.for_preparation(), _is_timed(job)

    def _warm_judges(self, job: Job) -> list[Judge]:
        judges = []
        for warm in self._warm:
            if warm.judge is None:
                warm.judge = Judge(warm.bench, self.reporter(job, preparing=True))
                warm.judge.prepare(_is_timed(job))
            warm.judge.report_to(self.reporter(job))
            # with one shape, wait for the baselines as late as possible; with several, wait before the next
            # shape starts its compilers
            late = job.kind == "judge" and len(self._warm) == 1
            if _is_timed(job) and not late and not warm.judge.not_scorable:
                warm.judge.calibrate()
            judges.append(warm.judge)
        return judges

    def _run_profile(self, job: Job, bench: Bench, candidate: Candidate) -> Profile:
        try:
            earlier = (
                self._last_profile[1]
                if self._last_profile
                and self._last_profile[0] == candidate.id
                and job.profile_request.metrics
                else None
            )
            profile = Collector(bench, candidate, self.reporter(job)).collect(job.profile_request, earlier)
        except CandidateRejected as error:
            health.check_device(bench.target)
            raise BadInput(f"{candidate.name} cannot be profiled ({error.status}): {error.reason}") from None
        self._last_profile = (candidate.id, profile) if earlier is None else self._last_profile
        return profile

    def release_task(self) -> None:
        """Release the warm task."""
        for warm in self._warm:
            warm.close()
        self._warm, self._warm_key, self._last_profile = [], None, None
        gc.collect()  # reference cycles within a judge hold large tensors
        torch.cuda.empty_cache()  # the processes of the next task need the memory

    def close(self) -> None:
        """End the prepared task and its processes."""
        self._references.close()
        self.release_task()
        self._builds.close()


class _VariantJudge:
    """Races and judges tuning variants of a job's candidate."""

    def __init__(self, worker: JobRunner, job: Job, default: Candidate, seconds: float):
        """`seconds`: the time limit for all races together."""
        self._worker, self._job, self._seconds = worker, job, seconds
        self._report = worker.reporter(job)
        self._race = worker.start_race(job, default)
        self._raced = 0

    def announce(self, source: str) -> None:
        self._worker.prebuild(self._variant(source))

    def race(self, source: str, give_up_ratio: float) -> RacedTime:
        self._raced += 1
        self._report(f"tuning, point {self._raced}")
        return self._race.time(self._worker.await_build(self._variant(source)), give_up_ratio)

    def has_time(self) -> bool:
        return self._race.seconds < self._seconds

    def judge(self, source: str) -> Verdict:
        self._report("tuning, the best point")
        self.close()
        return self._worker.judge_point(self._variant(source))

    def close(self) -> None:
        """End the race."""
        self._race.close()

    def _variant(self, source: str) -> Job:
        assert self._job.candidate
        options = replace(self._job.options, give_up_ratio=0.0)
        return replace(self._job, candidate=replace(self._job.candidate, source=source), options=options)


def _candidates(job: Job) -> tuple[Candidate, ...]:
    """The candidates that a job needs built."""
    if job.kind in ("race", "compile"):
        return job.candidates
    return (job.candidate,) if job.kind in ("judge", "profile") and job.candidate else ()


def _is_timed(job: Job) -> bool:
    """Whether a job measures baselines. A probe without them only checks whether the task can be scored."""
    return job.kind != "probe" or bool(job.options.baselines)
