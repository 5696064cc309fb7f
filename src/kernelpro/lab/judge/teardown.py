"""Ends the processes of candidates, and waits until they are dead."""

from __future__ import annotations

import threading

from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.sandbox.health import DeviceUnhealthy


class Teardown:
    """Processes that have ended, or are being ended in the background."""

    def __init__(self, is_shared: bool):
        """`is_shared`: other workers use the device. Then a process that cannot be ended stops this one: its
        work may still be there."""
        self._is_shared = is_shared
        self._ending: list[tuple[threading.Thread, Participant]] = []

    def end(self, participant: Participant) -> None:
        """End a process now."""
        participant.close()
        self._require_dead(participant)

    def begin(self, participant: Participant) -> None:
        """End a process in the background."""
        self._ending.append((participant.close_in_background(), participant))

    def wait(self) -> None:
        """Wait until all processes have ended."""
        while self._ending:
            thread, participant = self._ending.pop()
            thread.join()
            self._require_dead(participant)

    def prove(self) -> None:
        """Before other workers use the device: nothing of a candidate is left on it."""
        if self._is_shared:
            self.wait()

    def _require_dead(self, participant: Participant) -> None:
        if self._is_shared and participant.process.survived_kill:
            raise DeviceUnhealthy("the process of a candidate cannot be ended: its GPU is quarantined")
