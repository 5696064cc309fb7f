"""The progress of a run as lines of text, for displays that print one line after another."""

from __future__ import annotations

from kernelpro.engine.store import RunStore
from kernelpro.records.events import JobProgress, RunEvent, RunStarted, StepProgress, TaskMeasured
from kernelpro.records.jobs import WAITING_FOR_DEVICE
from kernelpro.report import wording
from kernelpro.report.reproduce import runs_dir_option


class ProgressLines:
    """Turns the events of a run into lines."""

    def __init__(self, store: RunStore):
        self._store = store
        self._waiting: set[str] = set()
        """Jobs that wait for the device. Their workers report it every few seconds."""

    def line(self, event: RunEvent) -> str:
        """The line for an event; empty if it needs none. Notes are left to the display."""
        match event:
            case RunStarted():
                is_measured = self._store.task_facts() is not None
                return wording.describe_start(self._store.id, self._store.config(), is_measured)
            case TaskMeasured():
                return wording.describe_baselines(event)
            case StepProgress(number, "settled") if step := self._store.step(number):
                show = f"kernelpro show {self._store.id} {number}{runs_dir_option(self._store)}"
                return wording.describe_step(step, show)
            case StepProgress(number, "final_judging"):
                return wording.describe_final_judging(number)
            case JobProgress(job, stage):
                return self._waiting_line(job, stage)
        return ""

    def _waiting_line(self, job: str, stage: str) -> str:
        """A line when a job begins to wait for the device."""
        was_waiting = job in self._waiting
        if stage != WAITING_FOR_DEVICE:
            self._waiting.discard(job)
            return ""
        self._waiting.add(job)
        return "" if was_waiting else f"{job}: {stage}"
