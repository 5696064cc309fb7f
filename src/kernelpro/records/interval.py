"""A number with the interval it lies in."""

from __future__ import annotations

from dataclasses import dataclass

from kernelpro.records.base import Record


@dataclass(frozen=True)
class Interval(Record):
    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval is not ordered: {self.low} <= {self.value} <= {self.high}")
