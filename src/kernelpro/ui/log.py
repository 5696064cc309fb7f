"""Events of a run as lines of its log."""

from __future__ import annotations

from dataclasses import dataclass

from kernelpro.records import Record
from kernelpro.records.events import (
    AnswerGiven,
    BranchClosed,
    BranchOpened,
    BudgetAdded,
    HintGiven,
    HintWithdrawn,
    KernelPasted,
    NodePinned,
    Note,
    ProfileRequested,
    ResumeRequested,
    RunEvent,
    RunFailed,
    RunPaused,
    RunStarted,
    RunStopped,
    SteeringApplied,
    StepChosen,
    StepProgress,
    StopRequested,
    TaskMeasured,
)
from kernelpro.report.wording import baseline_name

_UNITS = {
    "candidates": "{:g} candidates",
    "dollars": "{:g} dollars",
    "tokens": "{:g} tokens",
    "wall_seconds": "{:g} s of time",
    "device_seconds": "{:g} s of device time",
}


_IN_EFFECT: dict[type[RunEvent], str] = {
    BudgetAdded: "the added budget is available from step {step} on",
    NodePinned: "the pin applies from step {step} on",
    BranchClosed: "the branch is closed from step {step} on",
    BranchOpened: "the branch is open from step {step} on",
    HintGiven: "authors read the hint from step {step} on",
    HintWithdrawn: "authors no longer read the hint from step {step} on",
    KernelPasted: "your kernel is step {step}",
    ProfileRequested: "the step is being profiled",
}
REQUESTS = {event.kind for event in _IN_EFFECT} | {StopRequested.kind, ResumeRequested.kind, AnswerGiven.kind}
"""The kinds of events that users add."""


@dataclass(frozen=True)
class LogLine(Record):
    """One line."""

    id: int
    time: float
    kind: str
    text: str
    step: int = 0
    """The number of the step that it is about; 0 if there is none."""
    level: str = ""
    """`user`, `good`, `poor` (a step that did not pass), `bad` (an error) or empty."""


def describe_event(event: RunEvent) -> tuple[str, int, str] | None:
    """Text, step and level of an event's line; None if the log does not show the event."""
    match event:
        case RunStarted():
            return "a process started to work on this run", 0, "good"
        case TaskMeasured(baselines, floor_ms):
            times = ", ".join(f"{baseline_name(name)} {ms:.4g} ms" for name, ms in baselines.items())
            return f"the task was measured: {times}; floor {floor_ms:.4g} ms", 0, ""
        case StepChosen(step, parent, action):
            of = f" of step {parent}" if parent else ""
            return f"step {step} was chosen: {action}{of}", step, ""
        case StepProgress(step, phase):
            return f"step {step}: {phase.replace('_', ' ')}", step, "good" if phase == "settled" else ""
        case Note(text):
            return text, 0, ""
        case RunPaused(reason):
            return f"paused: {reason}", 0, ""
        case RunFailed(reason):
            return f"failed: {reason}", 0, "bad"
        case RunStopped(reason):
            return f"stopped: {reason}", 0, "bad"
        case _:
            return _describe_request(event)


def describe_applied(applied: SteeringApplied, request: RunEvent) -> tuple[str, int, str] | None:
    """The line of a request that took effect or was refused; None if other events show it."""
    if applied.refused:
        return f"your request was refused: {applied.refused}", 0, "bad"
    if isinstance(request, NodePinned) and not request.step:
        return f"nothing is pinned from step {applied.step} on", 0, ""
    text = _IN_EFFECT.get(type(request), "")
    return (text.format(step=applied.step), 0, "") if text else None


def _describe_request(event: RunEvent) -> tuple[str, int, str] | None:
    text, step = "", 0
    match event:
        case StopRequested(finish):
            text = "you asked to end the search and judge the finalists" if finish else "you asked to stop"
        case ResumeRequested():
            text = "you asked to resume"
        case BudgetAdded():
            amounts = [_UNITS[name].format(value) for name, value in event.to_json().items() if value]
            text = f"you added {', '.join(amounts)}"
        case NodePinned(step):
            text = f"step {step} was pinned: the search goes on below it" if step else "the pin was released"
        case BranchClosed(step):
            text = f"you closed the branch of step {step}"
        case BranchOpened(step):
            text = f"you opened the branch of step {step}"
        case HintGiven(hint):
            text = f"your hint: {hint}"
        case HintWithdrawn():
            text = "you withdrew a hint"
        case KernelPasted(_, parent, note):
            of = f" below step {parent}" if parent else " as a new design"
            text = f"you pasted a kernel{of}{f': {note}' if note else ''}"
        case ProfileRequested(step):
            text = f"you asked for a profile of step {step}"
        case AnswerGiven(question):
            text = f"you answered {question}"
    return (text, step, "user") if text else None
