"""Intervals of a handful of windows: Student's, on logs.

A bootstrap of so few values spans from the least to the most, which holds the truth in three of four cases where there are three.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from kernelpro.lab.measure.timing import SYSTEMATIC
from kernelpro.records import Interval

_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""By the number of values: 95 % lie within so many standard errors."""


def interval(values: Sequence[float]) -> Interval:
    """Of the geometric mean of two to eight values."""
    logs = [math.log(value) for value in values]
    middle, half = statistics.mean(logs), _STUDENT[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def ratio_interval(ratios: Sequence[float]) -> Interval:
    """The same, widened as all ratios of two processes are."""
    found = interval(ratios)
    return Interval(found.value, found.low * math.exp(-SYSTEMATIC), found.high * math.exp(SYSTEMATIC))
