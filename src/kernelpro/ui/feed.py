"""The changes of a run since a cursor, in batches. The live view of a run is the sum of its batches.

A cursor names the last event and the last change of a step that the page has seen. The first batches of a new
page have all steps, a few thousand at a time; later batches have only changes. A page that reconnects sends
its cursor and continues there.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from kernelpro.engine.steering import Steering
from kernelpro.engine.store import RunStore
from kernelpro.llm.transcripts import FILE
from kernelpro.records import BadInput, ComparableTimes
from kernelpro.records.events import (
    RunEvent,
    RunFailed,
    RunPaused,
    RunStarted,
    RunStopped,
    SteeringApplied,
    StepChosen,
    StepProgress,
    read_event,
)
from kernelpro.report.steps import summarize_diagnosis
from kernelpro.report.wording import baseline_name
from kernelpro.ui import questions
from kernelpro.ui.brief import StepBrief, brief, judged_again
from kernelpro.ui.costs import CostReader
from kernelpro.ui.log import REQUESTS, LogLine, describe_applied, describe_event

_STEPS_PER_BATCH = 2000
_EVENTS_PER_BATCH = 5000
_OLD_LINES = 300
"""Number of log lines that a new page receives."""
_LIFECYCLE = {event.kind for event in (RunStarted, RunPaused, RunFailed, RunStopped)}
_QUESTIONS_EVERY = 2.0
"""Seconds between two checks of the inbox."""


@dataclass(frozen=True)
class Cursor:
    """What a page has seen: the last event, and the last change of a step."""

    event: int = 0
    change: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse the text of a cursor. Any other text gives the cursor of a new page."""
        event, _, change = text.partition(".")
        return cls(int(event), int(change)) if event.isdigit() and change.isdigit() else cls()

    def __str__(self) -> str:
        return f"{self.event}.{self.change}"


@dataclass
class RunFeed:
    """Reads one run for one page. Not thread-safe."""

    store: RunStore
    cursor: Cursor = field(default_factory=Cursor)
    _version: int = -1
    _state: str = ""
    _read_event: int = 0
    """The last event that was read. Events before the cursor are read as well, to compute the clock."""
    _read_change: int = 0
    _clock: float = 0.0
    """Seconds of work so far, excluding the time between sessions."""
    _clock_at: float = 0.0
    """The time of the last event."""
    _last: RunEvent | None = None
    """The last event of the run's life cycle."""
    _last_time: float = 0.0
    """The time of that event."""
    _newest: deque[tuple[int, float, str, str]] = field(default_factory=lambda: deque(maxlen=_OLD_LINES))
    """Events that are not in the page's log yet."""
    _requests: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Requests of the user, by id."""
    _phases: dict[int, tuple[str, float]] = field(default_factory=dict)
    """The phase of each open step, and when it began."""
    _best: StepBrief | None = None
    _times: ComparableTimes = field(default_factory=ComparableTimes)
    _counts: dict[int, StepBrief] = field(default_factory=dict)
    _account: tuple[int, list[dict[str, Any]]] = (0, [])
    _questions: tuple[float, list[dict[str, str]]] = (0.0, [])

    def __post_init__(self) -> None:
        self._steering = Steering(self.store)
        self._costs = CostReader(self.store.folder / FILE)

    def next(self) -> dict[str, Any] | None:
        """The next batch; None if nothing has changed."""
        version, state = self.store.version, self.store.state()
        asked = self._read_questions()
        if (version, state) == (self._version, self._state) and not asked:
            return None
        seconds = self._read_events()
        steps, complete = self._read_steps()
        lines: list[LogLine] = []
        seen = self.cursor.event
        if complete:  # otherwise the next batch follows at once
            self._version, self._state = version, state
            lines, seen = self._read_lines(), max(seen, self._read_event)
        self.cursor = Cursor(seen, self._read_change)
        return {
            "steps": [step.sparse() for step in steps],
            "lines": [line.to_json() for line in lines],
            "seconds": seconds,
            "complete": complete,
            "status": self._status(state) if complete else None,
        }

    # --- reading ---------------------------------------------------------------------------------------

    def _read_events(self) -> dict[int, float]:
        """Read new events. Returns, for each step that was settled, the seconds of work until then."""
        seconds: dict[int, float] = {}
        while True:
            rows = self.store.event_rows_after(self._read_event, _EVENTS_PER_BATCH)
            for id, timestamp, kind, data in rows:
                self._read_event = id
                if kind in REQUESTS:
                    self._requests[id] = (kind, data)
                elif kind != SteeringApplied.kind:  # a process may apply requests before it logs its start
                    self._follow(timestamp, kind, data, seconds)
                if id > self.cursor.event:
                    self._newest.append((id, timestamp, kind, data))
            if len(rows) < _EVENTS_PER_BATCH:
                return seconds

    def _read_lines(self) -> list[LogLine]:
        """The new lines of the log. All steps must have been read, because lines quote their outcomes."""
        lines = [line for row in self._newest if (line := self._log_line(*row))]
        self._newest.clear()
        return lines

    def _log_line(self, id: int, timestamp: float, kind: str, data: str) -> LogLine | None:
        try:
            event = read_event(kind, json.loads(data))
            described = describe_event(event)
            if isinstance(event, SteeringApplied) and event.request in self._requests:
                kind_of_request, fields = self._requests[event.request]
                described = describe_applied(event, read_event(kind_of_request, json.loads(fields)))
        except (TypeError, ValueError, KeyError):  # an event of another version
            return None
        if isinstance(event, StepProgress) and event.phase == "settled":
            step = self._counts.get(event.step)
            if step and not step.open:
                described = f"step {step.n}: {step.outcome}", step.n, "good" if step.ms else "poor"
        return LogLine(id, timestamp, kind, *described) if described else None

    def _follow(self, timestamp: float, kind: str, data: str, seconds: dict[int, float]) -> None:
        """Update the clock, the phases of open steps and the life cycle.

        Requests of the user do not advance the clock, because they also arrive while no process runs. Large
        runs have 100,000 events, so that only the necessary ones are decoded.
        """
        if kind == RunStarted.kind:
            self._phases.clear()
        elif self._clock_at:
            self._clock += max(0.0, timestamp - self._clock_at)
        self._clock_at = timestamp
        if kind in (StepChosen.kind, StepProgress.kind):
            fields = json.loads(data)
            step, phase = fields.get("step", 0), fields.get("phase", "chosen")
            if phase in ("settled", "profiled"):
                self._phases.pop(step, None)
            else:
                self._phases[step] = (phase.replace("_", " "), timestamp)
            if phase == "settled":
                seconds[step] = round(self._clock, 2)
        elif kind in _LIFECYCLE:
            self._last, self._last_time = read_event(kind, json.loads(data)), timestamp

    def _read_steps(self) -> tuple[list[StepBrief], bool]:
        """The steps of the next batch, and whether the batch is complete: no further changes are stored."""
        new: list[StepBrief] = []
        times = self._comparable_times()
        while True:
            last, rows = self.store.steps_changed_after(self._read_change, _STEPS_PER_BATCH)
            steps = [brief(row, times) for row in rows]
            for step in steps:
                self._counts[step.n] = step
                if step.c and (self._best is None or not self._best.c or step.c <= self._best.c):
                    self._best = step
            if last > self.cursor.change:
                new += steps
            self._read_change = last
            complete = len(rows) < _STEPS_PER_BATCH
            if new or complete:
                return new, complete

    def _comparable_times(self) -> ComparableTimes:
        if not self._times.baselines:  # they are measured before the first step
            self._times = ComparableTimes.of(self.store.task_facts())
        return self._times

    def _read_questions(self) -> bool:
        """Check the inbox every few seconds. Returns whether its questions have changed."""
        at, before = self._questions
        if time.monotonic() - at < _QUESTIONS_EVERY:
            return False
        found = questions.waiting(self.store)
        self._questions = (time.monotonic(), found)
        return found != before

    # --- the status ------------------------------------------------------------------------------------

    def _status(self, state: str) -> dict[str, Any]:
        config, facts, outcome = self.store.config(), self.store.task_facts(), self.store.outcome()
        self._steering.poll()
        steps = self._counts.values()
        best = self._counts.get(outcome.best) if outcome and outcome.best else self._best
        running = state == "running"
        now = time.time()
        wall = self._clock + (max(0.0, now - self._clock_at) if running and self._clock_at else 0.0)
        finished = not running and self.store.is_finished
        if finished and best and outcome and outcome.verdict:
            best = judged_again(best, outcome.verdict, self._comparable_times())
        died = not running and not finished and isinstance(self._last, RunStarted)
        reason = self._last.reason if isinstance(self._last, (RunPaused, RunFailed, RunStopped)) else ""
        costs = self._read_costs()
        candidates = sum(bool(step.by) and not step.pasted for step in steps)
        return {
            "state": "finished" if finished else state if state != "finished" else "stopped",
            "died": died,
            "reason": outcome.reason if finished and outcome else reason,
            "state_since": self._last_time,
            "last_event": self._clock_at,
            "now": now,
            "limits": config.limits.to_json(),
            "spent": {
                "candidates": candidates,
                "wall_seconds": wall,
                "device_seconds": sum(self.store.device_seconds.values()),
                **costs["total"],
            },
            "baselines": {baseline_name(name): ms for name, ms in facts.baselines.items()} if facts else {},
            "floor_ms": facts.floor_ms if facts else None,
            "best": best.sparse() if best else None,
            "winner": outcome.best if outcome and finished else None,
            "notes": list(outcome.notes) if outcome else [],
            "activity": self._activity() if running else [],
            "account": self._read_account(best),
            "costs": costs["roles"],
            "steering": self._describe_steering(),
            "questions": self._questions[1],
        }

    def _activity(self) -> list[dict[str, Any]]:
        """Current activity: the jobs of workers, and steps that wait or are being written."""
        jobs = {job: (stage, since) for job, stage, since in self.store.activity()}
        for step, (phase, since) in self._phases.items():
            jobs.setdefault(f"step {step}", (phase, since))
        return [
            {"job": job, "stage": stage, "since": since}
            for job, (stage, since) in sorted(jobs.items(), key=lambda item: item[1][1])
        ]

    def _read_account(self, best: StepBrief | None) -> list[dict[str, Any]]:
        """The time account of the best kernel; empty until it is profiled."""
        if best is None or not best.profiled:
            return []
        if self._account[0] != best.n:
            step = self.store.step(best.n)
            rows = summarize_diagnosis(step.diagnosis).account if step and step.diagnosis else ()
            self._account = (best.n, [row.to_json() for row in rows])
        return self._account[1]

    def _read_costs(self) -> dict[str, Any]:
        """The cost of the models, in total and by role. Authors without transcripts report costs by step."""
        roles = self._costs.roles()
        dollars = sum(step.usd for step in self._counts.values())
        tokens = sum(step.tokens for step in self._counts.values())
        total = {
            "dollars": max(dollars, sum(cost.dollars for cost in roles.values())),
            "tokens": max(tokens, sum(cost.tokens_in + cost.tokens_out for cost in roles.values())),
        }
        return {"roles": {role: cost.to_json() for role, cost in roles.items()}, "total": total}

    def _describe_steering(self) -> dict[str, Any]:
        steering = self._steering
        return {
            "pinned": steering.pinned,
            "closed": sorted(steering.closed),
            "hints": [
                {"id": hint.id, "text": hint.text} for hint in steering.hints if hint.last_step is None
            ],
            "finish": steering.finish,
            "pending": [{"id": id, **event.to_line()} for id, event in steering.pending.items()],
        }


def read_all(store: RunStore) -> dict[str, Any]:
    """The whole run in one batch, for pages that do not follow it. Raises BadInput if it cannot be read."""
    feed, batch = RunFeed(store), None
    steps: list[dict[str, Any]] = []
    seconds: dict[int, float] = {}
    while (new := feed.next()) is not None:
        batch = new
        steps += new["steps"]
        seconds |= new["seconds"]
        if new["complete"]:
            break
    if batch is None:
        raise BadInput(f"run {store.id} cannot be read")
    return batch | {"steps": steps, "seconds": seconds}
