"""The state of the candidate that is being judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelpro.lab.languages.machine_code import fingerprint
from kernelpro.lab.languages.torch import extension_build_error
from kernelpro.lab.measure.stopwatch import Stopwatch
from kernelpro.lab.sandbox.extensions import build_errors
from kernelpro.records import Candidate


@dataclass
class CandidateState:
    """The candidate that is being judged, and what the judge knows about it so far."""

    candidate: Candidate
    clock: Stopwatch = field(default_factory=Stopwatch)
    machine_code: str = ""
    """Fingerprint of the candidate's machine code, after its build."""
    build_errors: tuple[str, ...] = ()
    """Errors of extensions that failed to build. The candidate caught them."""
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

    def seconds_before_timing(self) -> float:
        """Seconds that loading and verification took."""
        seconds = self.clock.seconds()
        return seconds.get("load", 0.0) + seconds.get("verify", 0.0)

    def set_build(self, artifacts: bytes) -> None:
        """Take the facts of a build from its artifacts."""
        self.machine_code = fingerprint(self.candidate.source, artifacts)
        self.build_errors = tuple(
            (extension_build_error(error) or error).strip() or "no message"
            for error in build_errors(artifacts)
        )
