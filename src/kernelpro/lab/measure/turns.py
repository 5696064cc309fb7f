"""Lets candidate and baselines take turns in a device's memory, if it is too small for both together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import BadInput

if TYPE_CHECKING:
    from kernelpro.lab.measure.participant import Participant


class Turns:
    """Ensures that at most one process holds memory beyond its parameters."""

    def __init__(self, enabled: bool, seconds: float):
        """If not `enabled`, all processes keep their memory. `seconds`: time limit for freeing it."""
        self._enabled, self._seconds = enabled, seconds
        self._holder: Participant | None = None

    def take(self, participant: Participant | None) -> None:
        """Let the last process free its memory, before `participant` is called; before the judge itself needs
        memory, with None."""
        if not self._enabled or self._holder is participant:
            return
        last, self._holder = self._holder, participant
        if last is None or last.process.has_ended():
            return
        try:
            last.release_memory(self._seconds)
        except CandidateRejected as error:
            if not last.trusted:
                raise
            raise BadInput(f"the reference cannot free its memory: {error.reason}") from None
