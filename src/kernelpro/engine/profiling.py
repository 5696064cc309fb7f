"""Profiling a candidate in two stages: cheap facts, classification, then only the counters that its class asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from kernelpro.diagnose import roofline, runner
from kernelpro.diagnose.diagnostic import Diagnostic
from kernelpro.diagnose.track_record import TrackRecord
from kernelpro.records import (
    BadInput,
    Candidate,
    Diagnosis,
    Job,
    Options,
    Profile,
    ProfileRequest,
    Result,
    Skipped,
    Target,
    Task,
)

SubmitJob = Callable[[Job], Awaitable[Result]]


@dataclass(frozen=True)
class ProfileSpec:
    """What is to be profiled, and how."""

    task: Task
    candidate: Candidate
    target: Target | None = None
    options: Options = field(default_factory=Options)
    references: tuple[str, ...] = ()
    tracer: str = "auto"
    all_counters: bool = False
    """Collect for every tool and ask it, whatever the class."""
    single_job: bool = False
    """All of a GPU's counters in the first job: where an answer is a journey away, a second one costs more than they do."""
    energy: bool = False
    """Whether energy is an objective, and tools that look for it speak."""


async def profile(
    ask: SubmitJob, request: ProfileSpec, tools: dict[str, Diagnostic], record: TrackRecord | None = None
) -> tuple[Profile, Diagnosis]:
    """Stage 1, stage 2, diagnosis. `ask` sends a job to a worker and waits for its result."""
    chosen = list(tools.values())
    everything = runner.request_all(chosen, "cuda", request.references)
    found = _profile(await ask(_job(request, everything if request.single_job else ProfileRequest())))
    if found.target == "cuda" and not request.single_job:
        bound = roofline.classify(found).bound
        wanted = runner.request_for(chosen, found, bound, request.references, request.energy)
        counters = everything if request.all_counters else wanted
        if counters.metrics:
            found = _profile(await ask(_job(request, counters)))
        elif request.references:
            found = _uncompared(found, f"no counters are read where the class is {bound}", "--all-counters")
    elif found.target == "cpu" and request.references:
        found = _uncompared(found, "baselines are compared by a GPU's counters")
    return found, runner.diagnose(found, chosen, record, request.energy, every=request.all_counters)


def _uncompared(found: Profile, why: str, enable: str = "") -> Profile:
    return replace(found, skipped=(*found.skipped, Skipped("compare", why, enable)))


def _job(request: ProfileSpec, counters: ProfileRequest) -> Job:
    """Whatever is counted: a worker that does not know the candidate any more traces it anew."""
    traced = replace(counters, tracer=request.tracer)  # type: ignore[arg-type]
    return Job("profile", "profile", request.task, request.candidate, request.target, request.options, traced)


def _profile(result: Result) -> Profile:
    if result.profile is None:
        raise BadInput(result.error or "the worker gave no profile")
    return result.profile
