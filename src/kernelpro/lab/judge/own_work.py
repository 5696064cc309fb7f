"""The share of a candidate's time that is spent in its own kernels."""

from __future__ import annotations

import re
from statistics import median

from kernelpro.lab.languages import CandidateSource, own_kernels
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.samples import Sample
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import Status

DECOY_SHARE = 0.01
"""Kernels that take less than 1 % of the time do no real work. On the CPU, the call overhead alone is 1 % of
a millisecond."""

_DECLARES_LIBRARY_CALLS = re.compile(r"^# library-calls: \w", re.MULTILINE)
"""The line with which a source declares the library calls that do its work."""


def own_share(
    participant: Participant, source: str, device: str, samples: list[Sample], seconds: float
) -> float | None:
    """The share of device time (on a CPU: of the time of the timed calls) in the candidate's own kernels.

    0 if it has none; None if the share cannot be measured.
    """
    names = own_kernels(source)
    if not names:
        return 0.0
    if device == "cpu":
        if (
            "cpp" not in CandidateSource(source).languages()
        ):  # calls inside an extension built by torch are not metered
            return None
        return median(min(1.0, sample.native_ms / sample.own_ms) for sample in samples)
    try:
        participant.prepare(seconds)
        reply = participant.request({"op": "kernel_times", "set": 0}, seconds)
        times = {str(name): float(value) for name, value in reply["times"].items()}
    except CandidateRejected as error:
        # a candidate that worked before and dies here is evading the measurement
        if participant.process.has_ended() or error.status is Status.TIMED_OUT:
            raise
        return None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    total = sum(times.values())
    own = sum(value for label, value in times.items() if any(name in label for name in names))
    return own / total if total > 0 else None


def is_decoy(source: str, measured: float | None) -> bool:
    """Whether the source defines kernels that do almost no work, and does not declare its library calls.

    Declaring them gains nothing: the candidate then counts as library calls without kernels of its own.
    """
    return (
        measured is not None
        and measured < DECOY_SHARE
        and bool(own_kernels(source))
        and not _DECLARES_LIBRARY_CALLS.search(source)
    )
