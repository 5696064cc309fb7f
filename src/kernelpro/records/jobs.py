"""What goes to a worker and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from kernelpro.records.base import Record
from kernelpro.records.judging import Candidate, Options, Target, Task, Verdict
from kernelpro.records.profiling import Counters, Profile

Kind = Literal["judge", "build", "probe", "study", "profile", "environment", "energy"]


@dataclass(frozen=True)
class Job(Record):
    """One line of a worker's input."""

    id: str
    kind: Kind
    """`study`: the task's operator graph and what compilers make of it. `energy`: what this machine's counter of joules can do."""
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
    tune: int = 0
    """Points of its tunables that may be tried once a judge job's candidate has passed."""
    sanitize: bool = False
    """Whether a judge job's candidate that a GPU stops for its accesses is run once more under compute-sanitizer, where that is
    installed: whoever mends it wants to know the line."""


@dataclass(frozen=True)
class Progress(Record):
    """What a job is doing now."""

    job: str
    stage: str


@dataclass(frozen=True)
class Result(Record):
    """One line of a worker's output: verdict, profile, data or error.

    Where tunables were searched, the verdict is the best point's, and the data says what was found.
    """

    job: str
    verdict: Verdict | None = None
    profile: Profile | None = None
    data: dict[str, Any] | None = None
    error: str | None = None
    device_seconds: float = 0.0
    """For which the job held the device, its task's preparation included."""
