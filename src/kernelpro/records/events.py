"""Events of a run: stored with the run and passed to `on_event` callbacks while it is worked on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from kernelpro.records.base import Record
from kernelpro.records.running import Action

StepPhase = Literal[
    "writing", "judging", "measuring_energy", "judged", "profiling", "profiled", "final_judging", "settled"
]


@dataclass(frozen=True)
class RunEvent(Record):
    """Base of all events. `kind` names the type in JSON."""

    kind: ClassVar[str] = ""

    def to_line(self) -> dict[str, Any]:
        """The event as plain data, with its kind as `event`: a line of `--json`."""
        return {"event": self.kind, **self.to_json()}


@dataclass(frozen=True)
class RunStarted(RunEvent):
    """A process starts to work on the run, for the first time or again."""

    kind: ClassVar[str] = "started"


@dataclass(frozen=True)
class TaskMeasured(RunEvent):
    """The baselines and the floor of the task are known."""

    kind: ClassVar[str] = "task_measured"
    baselines: dict[str, float]
    """Milliseconds by name."""
    floor_ms: float


@dataclass(frozen=True)
class StepChosen(RunEvent):
    """The policy chose what to try next."""

    kind: ClassVar[str] = "step_chosen"
    step: int
    parent: int
    action: Action


@dataclass(frozen=True)
class StepProgress(RunEvent):
    """A step entered a phase, or (`judged`, `profiled`, `settled`) completed one."""

    kind: ClassVar[str] = "step"
    step: int
    phase: StepPhase


@dataclass(frozen=True)
class JobProgress(RunEvent):
    """What a worker is doing for a job. Not stored."""

    kind: ClassVar[str] = "job"
    job: str
    stage: str


@dataclass(frozen=True)
class Note(RunEvent):
    """Something the user should know."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True)
class RunPaused(RunEvent):
    """The run waits for answers or results from outside."""

    kind: ClassVar[str] = "paused"
    reason: str


@dataclass(frozen=True)
class RunFailed(RunEvent):
    """The run stopped with an error."""

    kind: ClassVar[str] = "failed"
    reason: str


_EVENTS: dict[str, type[RunEvent]] = {
    event.kind: event
    for event in (
        RunStarted,
        TaskMeasured,
        StepChosen,
        StepProgress,
        JobProgress,
        Note,
        RunPaused,
        RunFailed,
    )
}


def read_event(kind: str, data: dict[str, Any]) -> RunEvent:
    """The event that `to_json` of an event of this kind described. Raises KeyError for an unknown kind."""
    return _EVENTS[kind].from_json(data)
