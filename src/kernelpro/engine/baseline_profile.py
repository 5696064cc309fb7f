"""What the kernels of a run are compared with: its fastest baseline, profiled once, together with the first step that is.

In that step's details: `compared`, the baseline's name, on disk before it is asked for, so that a run that was interrupted asks for
the same again; then `beside`, that baseline's largest kernel as it was counted. Every later page of evidence has it as a column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kernelpro.records import Bound, Kernel, Profile, Step

_COMPARED, _BESIDE = "compared", "beside"


def mark(step: Step, steps: Iterable[Step], baselines: dict[str, float]) -> Step:
    """The step, to bring the baseline's profile with its own where no step is to do that yet."""
    if any(_COMPARED in other.details for other in steps):
        return step
    quick = [
        name for name in baselines if name != "max_autotune"
    ]  # which searches for minutes, while ncu waits
    fastest = min(quick, key=lambda name: baselines[name], default="eager")
    return replace(step, details=step.details | {_COMPARED: fastest})


def asked(step: Step) -> tuple[str, ...]:
    """The baselines that are to be profiled with this step."""
    return (step.details[_COMPARED],) if _COMPARED in step.details else ()


def unmarked(details: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in details.items() if name != _COMPARED}


def kept(found: Profile, bound: Bound, details: dict[str, Any]) -> dict[str, Any]:
    """The step's details with what its profile brought. Where its class needs no counters, another step is to bring it."""
    if _COMPARED not in details or (bound is Bound.LAUNCH and not found.references):
        return unmarked(details)
    return details | {_BESIDE: {name: other.kernels[0].to_json() for name, other in found.references.items()}}


def beside(found: Profile, steps: Iterable[Step]) -> Profile:
    """The profile with the columns that a step of this run has brought."""
    known = {name: kernel for step in steps for name, kernel in step.details.get(_BESIDE, {}).items()}
    bare = replace(found, timeline=None, source="", compiler={}, power={}, graph=())
    columns = {name: replace(bare, kernels=(Kernel.from_json(kernel),)) for name, kernel in known.items()}
    return replace(found, references=columns | found.references)
