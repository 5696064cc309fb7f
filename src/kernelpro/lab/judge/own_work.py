"""Which share of a candidate's time is spent in kernels of its own."""

from __future__ import annotations

import re
from statistics import median

from kernelpro.lab.languages import Source, authored_kernels
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.samples import Sample
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import Status

DECOY_SHARE = 0.01
"""A kernel below 1 % of the time is no contribution: the call alone costs that much of a millisecond on the CPU."""

_DECLARES_LIBRARY_CALLS = re.compile(r"^# library-calls: \w", re.MULTILINE)
"""The line by which a source says which library calls it leaves the work to."""


def own_share(
    participant: Participant, source: str, device: str, samples: list[Sample], seconds: float
) -> float | None:
    """Share of device time (CPU: of the timed calls) in authored kernels; 0 where there are none; None if it cannot be seen."""
    names = authored_kernels(source)
    if not names:
        return 0.0
    if device == "cpu":
        # an extension built by torch calls into itself unseen
        return (
            median(min(1.0, s.native_ms / s.own_ms) for s in samples)
            if "cpp" in Source(source).languages()
            else None
        )
    try:
        participant.prepare(seconds)
        answer = participant.request({"op": "kernel_times", "set": 0}, seconds)
        times = {str(name): float(value) for name, value in answer["times"].items()}
    except CandidateRejected as error:
        if (
            participant.process.has_ended() or error.status is Status.TIMED_OUT
        ):  # one that lives otherwise dies to stay unseen
            raise
        return None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    total = sum(times.values())
    return (
        sum(value for label, value in times.items() if any(name in label for name in names)) / total
        if total > 0
        else None
    )


def is_decoy(source: str, measured: float | None) -> bool:
    """The source brings kernels that do next to nothing, and does not say that a library does the work.

    Saying so wins nothing: it passes as a library call does that brings no kernel at all, with the same share.
    """
    return (
        measured is not None
        and measured < DECOY_SHARE
        and bool(authored_kernels(source))
        and not _DECLARES_LIBRARY_CALLS.search(source)
    )
