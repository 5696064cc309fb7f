"""What goes to a worker and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from kernelpro.records.base import Record
from kernelpro.records.judging import Candidate, Options, Target, Task, Verdict
from kernelpro.records.profiling import Counters, Profile


@dataclass(frozen=True)
class Job(Record):
    """One line of a worker's input."""

    id: str
    kind: Literal["judge", "build", "probe", "study", "profile", "environment"]
    """`study`: the task's operator graph and what compilers make of it."""
    task: Task | None = None
    candidate: Candidate | None = None
    target: Target | None = None
    options: Options = field(default_factory=Options)
    counters: Counters = field(default_factory=Counters)
    """What a profile job collects."""
    known: tuple[str, ...] = ()
    """Machine code that was judged before: a judge job whose candidate compiles to it is answered with `same_as`, no verdict."""
    seeds: tuple[str, ...] = ()
    """Baselines that a study job gives as candidates."""


@dataclass(frozen=True)
class Progress(Record):
    """What a job is doing now."""

    job: str
    stage: str


@dataclass(frozen=True)
class Result(Record):
    """One line of a worker's output: exactly one of verdict, profile, data and error is set."""

    job: str
    verdict: Verdict | None = None
    profile: Profile | None = None
    data: dict[str, Any] | None = None
    error: str | None = None
