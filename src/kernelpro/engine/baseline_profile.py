"""Profiles the fastest baseline of a run once, together with the first step that is profiled.

`StepDetails.compared_baseline` of that step names the baseline (the step is "marked"). The mark is on disk
before the profile is requested, so that an interrupted run requests the same profile again.
`StepDetails.baseline_kernels` then holds the baseline's largest kernel with its counters. The evidence for
every later step shows it as a column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kernelpro.records import Bound, Profile, Step, StepDetails
from kernelpro.records.profiling import CompilerReport


def mark(step: Step, steps: Iterable[Step], baselines: dict[str, float]) -> Step:
    """The step, marked to be profiled together with the fastest baseline unless another step is marked."""
    if any(other.details.compared_baseline for other in steps):
        return step
    # not max_autotune: its search takes minutes, and ncu would wait for it
    quick = [name for name in baselines if name != "max_autotune"]
    fastest = min(quick, key=lambda name: baselines[name], default="eager")
    return replace(step, details=replace(step.details, compared_baseline=fastest))


def baselines_to_profile(step: Step) -> tuple[str, ...]:
    """The baselines to profile with this step."""
    return (step.details.compared_baseline,) if step.details.compared_baseline else ()


def unmark(details: StepDetails) -> StepDetails:
    """The details without the mark, so that another step profiles the baseline."""
    return replace(details, compared_baseline="")


def with_baseline_kernels(profile: Profile, bound: Bound, details: StepDetails) -> StepDetails:
    """The details with the baseline's kernels from the profile. For a launch-bound step no counters are
    collected; its mark is removed, so that another step profiles the baseline."""
    if not details.compared_baseline or (bound is Bound.LAUNCH and not profile.references):
        return unmark(details)
    kernels = {name: other.kernels[0] for name, other in profile.references.items()}
    return replace(details, baseline_kernels=kernels)


def with_columns(profile: Profile, steps: Iterable[Step]) -> Profile:
    """The profile, with the baseline kernels stored in any step as its references."""
    kernels = {name: kernel for step in steps for name, kernel in step.details.baseline_kernels.items()}
    bare = replace(profile, timeline=None, source="", compiler=CompilerReport(), power=None)
    columns = {name: replace(bare, kernels=(kernel,)) for name, kernel in kernels.items()}
    return replace(profile, references=columns | profile.references)
