"""A number with its confidence interval; numbers as text."""

from __future__ import annotations

from dataclasses import dataclass

from kernelpro.records.base import Record

_MIN_WIDTH = 0.02
"""Narrower intervals are written with three digits: with two, both bounds would often look equal."""


@dataclass(frozen=True)
class Interval(Record):
    """A value and its 95 % confidence interval."""

    value: float
    """The estimate."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval is not ordered: {self.low} <= {self.value} <= {self.high}")

    def format(self, unit: str = "") -> str:
        """The interval as text, for ratios: `1.10x [1.08, 1.12]`."""
        digits = 2 if self.high - self.low >= _MIN_WIDTH else 3
        return f"{self.value:.{digits}f}{unit} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def format_share(share: float) -> str:
    """A share (0 to 1) as a percentage: `6 %`. Below 10 % it has two significant digits."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 9.5 or percent == 0 else f"{percent:.2g} %"
