"""Judges and profiles candidates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from kernelpro.api.messages import in_python, public
from kernelpro.records import (
    BASELINES,
    BadInput,
    Candidate,
    Job,
    Mode,
    Options,
    Precision,
    Result,
    Target,
    Verdict,
)
from kernelpro.tasks import Inputs, load_task

if TYPE_CHECKING:
    from kernelpro.records import Diagnosis, Profile

T = TypeVar("T")


@public
def judge(
    reference: Any,
    candidates: str | Path | Candidate | Sequence[str | Path | Candidate],
    inputs: Inputs = (),
    *,
    weights: Sequence[float] = (),
    init_inputs: Sequence[Any] | None = None,
    mode: Mode | None = None,
    precision: Precision | None = None,
    target: Target | None = None,
    quick: bool = False,
    full: bool = False,
    baselines: str | Sequence[str] = (),
    options: Options | None = None,
) -> list[Verdict]:
    """Judge candidates (paths or Candidates) on this machine. Returns a verdict for each.

    `reference`, `inputs`, `weights`, `init_inputs`, `mode` and `precision` describe the task, see
    `load_task`. `quick` and `full` measure for a shorter or longer time. `baselines` are added to the default
    ones. `options` sets everything else about judging.
    """
    from kernelpro.pools import local

    check_target(target)
    if quick and full:
        raise BadInput("quick and full exclude each other: give one")
    several = list(candidates) if isinstance(candidates, (list, tuple)) else [candidates]
    loaded = [_load_candidate(item) for item in several]
    task = load_task(reference, inputs, init_inputs, mode, precision, weights)
    judge_options = add_baselines(options or Options(), baselines)
    if quick or full:
        judge_options = replace(judge_options, effort="quick" if quick else "full")
    jobs = [Job(str(i), "judge", task, item, target, judge_options) for i, item in enumerate(loaded)]
    verdicts = []
    for result in local.run_locally(jobs, sandbox=judge_options.sandbox):
        if result.verdict is None:
            raise result.exception("verdict")
        verdicts.append(replace(result.verdict, reason=in_python(result.verdict.reason)))
    return verdicts


def _load_candidate(candidate: Any) -> Candidate:
    if isinstance(candidate, Candidate):
        return candidate
    if not isinstance(candidate, (str, Path)):
        raise BadInput(f"a candidate is a path or a Candidate, not a {type(candidate).__name__}")
    return Candidate.from_file(candidate)


def check_target(target: str | None) -> None:
    """Raise BadInput for an unknown target."""
    if target not in (None, *get_args(Target)):
        raise BadInput(f"target {target!r}: use {' or '.join(map(repr, get_args(Target)))}")


def add_baselines(options: Options, baselines: str | Sequence[str]) -> Options:
    """The options with additional baselines. Raises BadInput for an unknown baseline."""
    baselines = [baselines] if isinstance(baselines, str) else baselines
    if unknown := [name for name in baselines if name not in BASELINES]:
        raise BadInput(f"baseline {unknown[0]}: not one of {', '.join(BASELINES)}")
    names = {*options.baselines, *baselines}
    return replace(options, baselines=tuple(name for name in BASELINES if name in names))


Stops = list[Callable[[], object]]
"""Functions that stop the work from another thread."""


def beside_any_loop(work: Callable[..., T], *arguments: Any) -> T:
    """Call `work`; if an event loop is running here, as in a notebook, in another thread. Ctrl-C stops it."""
    stops: Stops = []
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work(*arguments, stops)
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(work, *arguments, stops).result()
        except KeyboardInterrupt:
            for stop in stops:
                stop()
            raise


@dataclass(frozen=True)
class ProfileResult:
    """The profile of a candidate and its diagnosis. Printed, it lists the findings and what to do."""

    profile: Profile
    diagnosis: Diagnosis

    def __str__(self) -> str:
        from kernelpro.diagnose import guidance

        return guidance.write(self.diagnosis)


@public
def profile(
    reference: Any,
    candidate: str | Path | Candidate,
    inputs: Inputs = (),
    *,
    weights: Sequence[float] = (),
    init_inputs: Sequence[Any] | None = None,
    mode: Mode | None = None,
    precision: Precision | None = None,
    target: Target | None = None,
    pool: str = "local",
    options: Options | None = None,
) -> ProfileResult:
    """Profile a candidate and diagnose what limits it, as `kernelpro profile` does. It does not check
    the candidate's outputs; `judge` does.

    `reference`, `inputs`, `weights`, `init_inputs`, `mode` and `precision` describe the task, see
    `load_task`.
    """
    from kernelpro.diagnose.diagnostics import registry
    from kernelpro.diagnose.track_record import TrackRecord
    from kernelpro.engine import profiling
    from kernelpro.pools.factory import create_pool

    check_target(target)
    loaded = _load_candidate(candidate)
    task = load_task(reference, inputs, init_inputs, mode, precision, weights)
    spec = profiling.ProfileSpec(task, loaded, target, options or Options())
    with create_pool(pool, spec.options.sandbox) as workers:

        async def submit(job: Job) -> Result:
            return await asyncio.wrap_future(workers.submit(job))

        def run(stops: Stops) -> ProfileResult:
            return ProfileResult(
                *asyncio.run(profiling.profile(submit, spec, registry().values(), TrackRecord.load()))
            )

        return beside_any_loop(run)
