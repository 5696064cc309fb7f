"""Starts processes before they are needed, because creating a CUDA context takes half a second."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.sandbox.process import CannotStart


class Spares:
    """Started processes by role, which have not loaded any candidate yet."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._ready: dict[str, Participant] = {}

    def begin(self, role: str, start: Callable[[], Participant]) -> None:
        """Start a process in the background. If that fails, there is no spare for the role."""

        def run() -> None:
            try:
                self._ready[role] = start()
            except (CandidateRejected, CannotStart, torch.OutOfMemoryError):
                return  # the caller that needs the process starts it again, and reports the error

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def wait(self) -> None:
        """Wait until all processes have started: nothing may be timed before."""
        while self._threads:
            self._threads.pop().join()

    def take(self, role: str) -> Participant | None:
        """The process of a role, or None if there is none. The caller then owns it."""
        self.wait()
        return self._ready.pop(role, None)

    def close(self) -> None:
        """End the processes that were not taken."""
        self.wait()
        ending = [participant.close_in_background() for participant in self._ready.values()]
        self._ready.clear()
        for thread in ending:
            thread.join()
