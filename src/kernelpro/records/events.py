"""Events of a run. They are stored with the run; the engine also passes its progress to `on_event` callbacks.

Requests of the user (`SteeringEvent`) are events, too. Any process may add them to the store of a run. The
engine reads them between steps, and stores when each took effect (`SteeringApplied`), so that a resumed run
repeats the same choices.
"""

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
        """The event as plain data with its kind under the key `event`, as `--json` prints it."""
        return {"event": self.kind, **self.to_json()}


@dataclass(frozen=True)
class RunStarted(RunEvent):
    """A process starts or resumes the run."""

    kind: ClassVar[str] = "started"


@dataclass(frozen=True)
class TaskMeasured(RunEvent):
    """The baselines and the floor of the task have been measured."""

    kind: ClassVar[str] = "task_measured"
    baselines: dict[str, float]
    """Time of a call in ms, by baseline."""
    floor_ms: float
    """Shortest time that the task allows on this device, in ms."""


@dataclass(frozen=True)
class StepChosen(RunEvent):
    """The policy, or the user with a pasted kernel, chose the next step."""

    kind: ClassVar[str] = "step_chosen"
    step: int
    """Number of the new step."""
    parent: int
    """The step that it starts from; 0: the reference."""
    action: Action
    """What the author is asked to do with the parent."""


@dataclass(frozen=True)
class StepProgress(RunEvent):
    """A step entered a phase, or completed one (`judged`, `profiled`, `settled`)."""

    kind: ClassVar[str] = "step"
    step: int
    """Number of the step."""
    phase: StepPhase
    """writing, judging, measuring_energy, profiling or final_judging; judged, profiled or settled."""


@dataclass(frozen=True)
class JobProgress(RunEvent):
    """A worker entered another stage of a job. Not stored."""

    kind: ClassVar[str] = "job"
    job: str
    """The job's id, such as `step 12`."""
    stage: str
    """What the worker is doing, in words."""


@dataclass(frozen=True)
class Note(RunEvent):
    """A message for the user."""

    kind: ClassVar[str] = "note"
    text: str
    """The message, in one line."""


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


@dataclass(frozen=True)
class RunStopped(RunEvent):
    """The process stopped because the user asked for it or interrupted it. The run can be resumed."""

    kind: ClassVar[str] = "stopped"
    reason: str


# --- steering ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SteeringEvent(RunEvent):
    """Base of the user's requests to a run."""


@dataclass(frozen=True)
class StopRequested(SteeringEvent):
    """Stop working on the run."""

    kind: ClassVar[str] = "stop"
    finish: bool = False
    """True: choose no further steps, judge the finalists and end the run. False: stop at once, as Ctrl-C
    does."""


@dataclass(frozen=True)
class ResumeRequested(SteeringEvent):
    """Continue the run. Cancels earlier requests to stop."""

    kind: ClassVar[str] = "resume"


@dataclass(frozen=True)
class BudgetAdded(SteeringEvent):
    """Raise the limits of the run by these amounts (see `Limits`). A limit that is not set stays unset."""

    kind: ClassVar[str] = "add_budget"
    candidates: int = 0
    dollars: float = 0.0
    tokens: int = 0
    wall_seconds: float = 0.0
    device_seconds: float = 0.0


@dataclass(frozen=True)
class NodePinned(SteeringEvent):
    """Search only in the branch of this step; 0: in the whole tree again."""

    kind: ClassVar[str] = "pin"
    step: int


@dataclass(frozen=True)
class BranchClosed(SteeringEvent):
    """Choose no further steps in the branch that starts at this step."""

    kind: ClassVar[str] = "close"
    step: int


@dataclass(frozen=True)
class BranchOpened(SteeringEvent):
    """Search again in a branch that `BranchClosed` closed."""

    kind: ClassVar[str] = "open"
    step: int


@dataclass(frozen=True)
class HintGiven(SteeringEvent):
    """Show the author of all later steps a hint."""

    kind: ClassVar[str] = "hint"
    text: str


@dataclass(frozen=True)
class HintWithdrawn(SteeringEvent):
    """Stop showing a hint to later steps."""

    kind: ClassVar[str] = "withdraw_hint"
    hint: int
    """The id of the `HintGiven` event."""


@dataclass(frozen=True)
class KernelPasted(SteeringEvent):
    """Judge a kernel that the user wrote, as the next step."""

    kind: ClassVar[str] = "paste"
    source: str
    """Content hash of the source, which is stored among the run's sources."""
    parent: int = 0
    """The step that it improves or repairs; 0: a new design."""
    note: str = ""
    """The plan of the step, written by the user."""


@dataclass(frozen=True)
class ProfileRequested(SteeringEvent):
    """Profile a step that passed."""

    kind: ClassVar[str] = "profile"
    step: int


@dataclass(frozen=True)
class AnswerGiven(SteeringEvent):
    """The user answered a question of the inbox."""

    kind: ClassVar[str] = "answer"
    question: str
    """The key of the question, like `step-12/plan`."""
    text: str
    """Content hash of the answer, which is stored among the run's sources."""


@dataclass(frozen=True)
class SteeringApplied(RunEvent):
    """The engine applied or refused a request of the user, before it chose a step."""

    kind: ClassVar[str] = "applied"
    request: int
    """The id of the request's event."""
    step: int
    """The number of the step that was chosen next."""
    refused: str = ""
    """Why the request was refused; empty if it was applied."""


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
        RunStopped,
        StopRequested,
        ResumeRequested,
        BudgetAdded,
        NodePinned,
        BranchClosed,
        BranchOpened,
        HintGiven,
        HintWithdrawn,
        KernelPasted,
        ProfileRequested,
        AnswerGiven,
        SteeringApplied,
    )
}


def read_event(kind: str, data: dict[str, Any]) -> RunEvent:
    """Inverse of `to_json` for events of this kind. Raises KeyError for an unknown kind."""
    return _EVENTS[kind].from_json(data)


STEERING_KINDS = tuple(kind for kind, event in _EVENTS.items() if issubclass(event, SteeringEvent))
"""The kinds of all requests of the user."""
