"""What is known of the candidate that is being judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelpro.lab.measure.stopwatch import Stopwatch
from kernelpro.records import Candidate


@dataclass
class CandidateState:
    """The candidate that is being judged, and what is known of it so far."""

    candidate: Candidate
    clock: Stopwatch = field(default_factory=Stopwatch)
    machine_code: str = ""
    """Fingerprint of the candidate's machine code, once it is built."""
    parameters: str | None = None
    """How its parameters were set, once it is loaded."""
    overwritten: tuple[str, ...] = ()
    """Parameters whose values were replaced by the reference's."""
    keep_own_values: bool = False
    """Parameters keep the values of its constructor."""
    restrided: tuple[int, ...] = ()
    """Outputs with other strides than the reference's."""
    compile_seconds: float = 0.0
    """Seconds that compilers ran while it was loaded and first called."""
