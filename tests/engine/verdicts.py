"""Verdicts with a given time and power, relative to a baseline that takes 1 ms and 0.4 J."""

from __future__ import annotations

from kernelpro.records import Energy, Interval, Status, Verdict


def about(value: float, width: float = 0.01) -> Interval:
    return Interval(value, value * (1 - width), value * (1 + width))


def verdict(ms: float, power: float | None = None, refused: str = "", against: str = "compile") -> Verdict:
    """A baseline of 1 ms and 400 W; `power`: the candidate's, as a ratio."""
    energy = Energy(unavailable=refused) if refused else None
    if power is not None:
        ratio = {"energy": about(power * ms), "power": about(power), "edp": about(power * ms * ms)}
        both = {"candidate": about(0.4 * power * ms), against: about(0.4)}
        watts = {"candidate": about(400 * power), against: about(400.0)}
        energy = Energy(
            "NVML", against, both, watts, both, ratio, "yes" if power * ms < 1 else "no", {"before": 80.0}
        )
    times, speedup = {"candidate": about(ms), against: about(1.0)}, {against: about(1 / ms)}
    return Verdict("k", Status.PASSED, "correct", times=times, speedup=speedup, faster="yes", energy=energy)
