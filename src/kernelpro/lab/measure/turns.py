"""Candidate and baselines take turns in a device's memory, where it is too small for both together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import BadInput

if TYPE_CHECKING:
    from kernelpro.lab.measure.participant import Participant


class Turns:
    """At most one process holds memory beyond its parameters: the others have freed theirs."""

    def __init__(self, enabled: bool, seconds: float):
        """If not `enabled`, all keep their memory. `seconds`: in which a process must have freed it."""
        self._enabled, self._seconds = enabled, seconds
        self._holder: Participant | None = None

    def take(self, participant: Participant | None) -> None:
        """Before `participant` is called (None: before the judge itself needs memory), the last one frees
        its memory."""
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
