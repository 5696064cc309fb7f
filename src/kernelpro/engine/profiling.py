"""Profiles a candidate in two stages: cheap measurements and the class of the bottleneck, then only the
hardware counters that this class needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace

from kernelpro.diagnose import roofline, runner
from kernelpro.diagnose.diagnostic import Diagnostic
from kernelpro.diagnose.track_record import TrackRecord
from kernelpro.records import (
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
"""Sends a job to a worker and waits for its result."""


@dataclass(frozen=True)
class ProfileSpec:
    """What to profile, and how."""

    task: Task
    candidate: Candidate
    target: Target | None = None
    options: Options = field(default_factory=Options)
    references: tuple[str, ...] = ()
    """Baselines to profile as well, for comparison."""
    tracer: str = "auto"
    """See `ProfileRequest.tracer`."""
    all_counters: bool = False
    """Whether to collect the counters of all diagnostics and run all of them, whatever the class."""
    single_job: bool = False
    """Whether to collect all GPU counters in the first job. In a spool, a second job takes longer than
    collecting them."""
    energy: bool = False
    """Whether energy is an objective, so that the diagnostics for energy run too."""


async def profile(
    submit: SubmitJob,
    spec: ProfileSpec,
    diagnostics: Iterable[Diagnostic],
    record: TrackRecord | None = None,
) -> tuple[Profile, Diagnosis]:
    """The profile of a candidate, and its diagnosis."""
    selected = list(diagnostics)
    everything = runner.request_all(selected, "cuda", spec.references)
    result = _profile(await submit(_job(spec, everything if spec.single_job else ProfileRequest())))
    if result.target == "cuda" and not spec.single_job:
        bound = roofline.counted_class(result)
        needed = runner.request_for(selected, result, bound, spec.references, spec.energy)
        request = everything if spec.all_counters else needed
        if request.metrics:
            result = _profile(await submit(_job(spec, request)))
        elif spec.references:
            result = _without_comparison(result, f"the class {bound} needs no counters", "--all-counters")
    elif result.target == "cpu" and spec.references:
        result = _without_comparison(result, "comparing baselines needs the counters of a GPU")
    return result, runner.diagnose(result, selected, record, spec.energy, run_all=spec.all_counters)


def _without_comparison(profile: Profile, reason: str, enable: str = "") -> Profile:
    return replace(profile, skipped=(*profile.skipped, Skipped("compare", reason, enable)))


def _job(spec: ProfileSpec, request: ProfileRequest) -> Job:
    """A profile job. Every request names the tracer, because a worker that has dropped the candidate traces
    it again."""
    request = replace(request, tracer=spec.tracer)  # type: ignore[arg-type]
    return Job("profile", "profile", spec.task, spec.candidate, spec.target, spec.options, request)


def _profile(result: Result) -> Profile:
    if result.profile is None:
        raise result.exception("profile")
    return result.profile
