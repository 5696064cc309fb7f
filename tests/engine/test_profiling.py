"""Profiling in two stages over recorded profiles: the jobs, missing comparisons, and one comparison per run."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from engine.known_lab import KnownLab
from engine.verdicts import verdict

from kernelpro.authors.author import Assignment, Author, Draft
from kernelpro.diagnose import roofline
from kernelpro.diagnose.diagnostics import registry
from kernelpro.engine import baseline_profile, profiling
from kernelpro.engine.loop import Engine
from kernelpro.engine.store import RunStore
from kernelpro.records import (
    Bound,
    Candidate,
    Job,
    Kernel,
    Limits,
    Profile,
    Result,
    RunConfig,
    Step,
    Target,
    Task,
    Verdict,
)

PROFILES = Path(__file__).parents[1] / "diagnose" / "profiles"
BASELINES = {"eager": 3.0, "compile": 1.0, "max_autotune": 0.5}


def load(name: str) -> Profile:
    return Profile.from_json(json.loads((PROFILES / f"{name}.json").read_text(encoding="utf-8")))


def profiled(found: Profile, target: Target = "cuda", **asked: object) -> tuple[Profile, list[Job]]:
    """The result of profiling with a worker that always returns this profile, and the jobs that it got."""
    jobs: list[Job] = []

    async def ask(job: Job) -> Result:
        jobs.append(job)
        return Result(job.id, profile=found)

    request = profiling.ProfileSpec(Task("", "t"), Candidate("", "c"), target, **asked)  # type: ignore[arg-type]
    return asyncio.run(profiling.profile(ask, request, registry().values()))[0], jobs


def compare_notes(profile: Profile) -> list[str]:
    return [note.why for note in profile.skipped if note.what == "compare"]


@pytest.mark.parametrize("asked", [{}, {"all_counters": True}, {"single_job": True}])
def test_every_job_has_the_tracer_that_was_asked_for(asked: dict[str, bool]) -> None:
    _, jobs = profiled(load("softmax_cuda"), tracer="nsys", **asked)
    assert [job.profile_request.tracer for job in jobs] == ["nsys"] * (1 if asked.get("single_job") else 2)


def test_a_comparison_that_is_not_made_is_said() -> None:
    idle, jobs = profiled(load("launch_overhead"), references=("compile",))
    assert len(jobs) == 1 and compare_notes(idle) == ["the class launch needs no counters"]
    here = replace(load("softmax_cuda"), target="cpu", kernels=(), timeline=None)
    assert compare_notes(profiled(here, "cpu", references=("compile",))[0]) == [
        "comparing baselines needs the counters of a GPU"
    ]
    busy, jobs = profiled(load("softmax_cuda"), references=("compile",))
    assert jobs[1].profile_request.references == ("compile",) and not compare_notes(busy)
    assert not compare_notes(profiled(load("launch_overhead"))[0])


def test_kernels_of_a_call_that_waits_for_the_host_are_counted_where_they_matter() -> None:
    """Half of the call is idle; its one kernel takes the other half."""
    softmax = load("softmax_cuda")
    assert softmax.timeline is not None
    call_us = 2 * softmax.timeline.busy_us + 30.0
    timeline = replace(softmax.timeline, call_us=call_us)
    waiting = replace(softmax, timeline=timeline, time_ms=call_us / 1e3)
    _, jobs = profiled(waiting)
    assert roofline.classify(waiting).bound is Bound.LAUNCH and jobs[1].profile_request.metrics
    many = replace(waiting, timeline=replace(timeline, launches=64.0))
    assert len(profiled(many)[1]) == 1, "ncu would replay each of 64 launches"


# --- once a run --------------------------------------------------------------------------------------------------------


def test_the_first_step_brings_the_baseline_and_the_others_have_it() -> None:
    first = baseline_profile.mark(Step(1, 0, "seed"), [], BASELINES)
    assert baseline_profile.baselines_to_profile(first) == ("compile",), (
        "the fastest that does not search for minutes"
    )
    again = baseline_profile.mark(Step.from_json(first.to_json()), [first], BASELINES)
    assert baseline_profile.baselines_to_profile(again) == ("compile",), "interrupted, it asks for the same"
    second = baseline_profile.mark(Step(2, 0, "seed"), [first], BASELINES)
    assert baseline_profile.baselines_to_profile(second) == ()
    softmax = load("softmax_cuda")
    column = replace(softmax, kernels=(Kernel("triton_red_0", 90.0, 1, 1.0, (8192,), (512,)),))
    details = baseline_profile.with_baseline_kernels(
        replace(softmax, references={"compile": column}), Bound.MEMORY, first.details
    )
    done = Step.from_json(json.loads(replace(first, details=details).dumps()))
    [(name, other)] = baseline_profile.with_columns(softmax, [done, second]).references.items()
    assert name == "compile" and other.kernels == column.kernels
    assert (
        baseline_profile.baselines_to_profile(baseline_profile.mark(Step(3, 0, "seed"), [done], BASELINES))
        == ()
    )


def test_a_step_that_nobody_counted_leaves_it_to_the_next() -> None:
    first = baseline_profile.mark(Step(1, 0, "seed"), [], BASELINES)
    idle = replace(
        first,
        details=baseline_profile.with_baseline_kernels(load("launch_overhead"), Bound.LAUNCH, first.details),
    )
    assert baseline_profile.baselines_to_profile(
        baseline_profile.mark(Step(2, 0, "seed"), [idle], BASELINES)
    ) == ("compile",)
    failed = replace(
        first,
        details=baseline_profile.with_baseline_kernels(load("softmax_cuda"), Bound.MEMORY, first.details),
    )
    assert (
        baseline_profile.baselines_to_profile(baseline_profile.mark(Step(2, 0, "seed"), [failed], BASELINES))
        == ()
    ), "one that fails is not tried again"


class Lab(KnownLab):
    """Every kernel is a softmax, each faster than the one before; a baseline is profiled where that is asked for."""

    def __init__(self) -> None:
        self.compared: list[tuple[str, ...]] = []

    def verdict(self, job: Job, source: str) -> Verdict:
        return verdict(1 / (1 + float(source.split("=")[1])))

    def _result(self, job: Job) -> Result:
        if job.kind != "profile":
            return super()._result(job)
        softmax = load("softmax_cuda")
        if job.profile_request.metrics:
            self.compared.append(job.profile_request.references)
        return Result(
            job.id,
            profile=replace(softmax, references=dict.fromkeys(job.profile_request.references, softmax)),
        )


class Chain(Author):
    name = "chain"

    async def write(self, assignment: Assignment) -> Draft:
        return Draft(f"x = {assignment.step}", author="chain")


def test_in_a_run_the_baseline_is_profiled_once_and_stands_beside_every_kernel(tmp_path: Path) -> None:
    config = RunConfig(Task("", "t"), "cuda", "chain", policy="greedy", limits=Limits(4), concurrency=1)
    store, lab = RunStore.create(tmp_path, config, "demo"), Lab()
    asyncio.run(Engine(store, lab, Chain()).run())  # type: ignore[arg-type]
    assert lab.compared[0] == ("compile",) and len(lab.compared) >= 3 and set(lab.compared[1:]) == {()}
    pages = [step.details.evidence for step in store.steps() if step.diagnosis]
    assert len(pages) == len(lab.compared) and all("| compile: softmax_kernel |" in page for page in pages)
