"""The state of the candidate that is being judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelpro.lab.measure.stopwatch import Stopwatch
from kernelpro.records import Candidate


@dataclass
class CandidateState:
    """The candidate that is being judged, and what the judge knows about it so far."""

    candidate: Candidate
    clock: Stopwatch = field(default_factory=Stopwatch)
    machine_code: str = ""
    """Fingerprint of the candidate's machine code, after its build."""
    parameters: str | None = None
    """Where its parameters come from, after loading: `by name`, `by seed` or `none`."""
    overwritten: tuple[str, ...] = ()
    """Parameters whose values were replaced by the reference's."""
    keep_own_values: bool = False
    """Parameters keep the values that its constructor gave them."""
    restrided: tuple[int, ...] = ()
    """Outputs whose strides differ from the reference's."""
    compile_seconds: float = 0.0
    """Seconds that compilers ran while it was loaded and called for the first time."""
