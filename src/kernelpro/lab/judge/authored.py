"""Which share of a candidate's time is spent in kernels of its own."""

from __future__ import annotations

from kernelpro.lab.judge.participant import Participant, Verdictable
from kernelpro.lab.languages import authored_kernels, detect

DECOY = 0.01
"""A kernel below 1 % of the time is no contribution: the call alone costs that much of a millisecond on the CPU."""
_PROFILES = 3


def share(participant: Participant, source: str, device: str, seconds: float) -> float | None:
    """Share of device time (CPU: of the call) in authored kernels; 0 where the source has none; None if it cannot be seen."""
    names = authored_kernels(source)
    if not names:
        return 0.0
    if device == "cpu" and detect(source).name != "cpp":
        return None  # an extension built by torch calls into itself unseen
    try:
        participant.prepare(seconds)
        seen = [participant.ask({"op": "profile", "set": 0}, seconds) for _ in range(_PROFILES if device == "cpu" else 1)]
        profiles = [{str(name): float(value) for name, value in answer["times"].items()} for answer in seen]
    except (Verdictable, KeyError, TypeError, ValueError, AttributeError):
        return None
    own = {"native"} if device == "cpu" else names
    shares = [_share_of(times, own) for times in profiles]
    return min(shares) if shares else None


def _share_of(times: dict[str, float], names: set[str]) -> float:
    total = sum(times.values())
    return sum(value for label, value in times.items() if any(name in label for name in names)) / total if total > 0 else 0.0


def is_decoy(source: str, measured: float | None) -> bool:
    """The source brings kernels, and they do next to nothing."""
    return measured is not None and measured < DECOY and bool(authored_kernels(source))
