"""A number with the interval it lies in, and shares, for people."""

from __future__ import annotations

from dataclasses import dataclass

from kernelpro.records.base import Record

_WIDE = 0.02
"""Below, two digits leave two or three numbers to choose from."""


@dataclass(frozen=True)
class Interval(Record):
    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval is not ordered: {self.low} <= {self.value} <= {self.high}")

    def words(self, unit: str = "") -> str:
        """`1.10x [1.08, 1.12]`, for ratios; one digit more where two would hide how wide it is."""
        digits = 2 if self.high - self.low >= _WIDE else 3
        return f"{self.value:.{digits}f}{unit} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def share(part: float) -> str:
    """A share for people: `6 %`; small ones keep a digit."""
    percent = 100 * part
    return f"{percent:.0f} %" if percent >= 9.5 or percent == 0 else f"{percent:.2g} %"
