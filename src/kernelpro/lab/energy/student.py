"""Confidence intervals of a few windows: Student's t on logarithms.

A bootstrap interval of three values spans from the smallest to the largest. It contains the true mean in only
75 % of cases."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from kernelpro.lab.measure.statistics import SYSTEMATIC
from kernelpro.records import Interval

_SYSTEMATIC = SYSTEMATIC["cuda"]
_T_QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""By the number of values: the half-width of the 95 % interval in standard errors. A table, because hosts of
the lab have no scipy."""


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the 95 % interval of the geometric mean of two to eight values."""
    logs = [math.log(value) for value in values]
    mean, half_width = (
        statistics.mean(logs),
        _T_QUANTILES[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs)),
    )
    return Interval(math.exp(mean), math.exp(mean - half_width), math.exp(mean + half_width))


def ratio_interval(ratios: Sequence[float]) -> Interval:
    """Return the 95 % interval of a mean ratio, widened by the systematic difference between processes."""
    interval = mean_interval(ratios)
    return Interval(
        interval.value, interval.low * math.exp(-_SYSTEMATIC), interval.high * math.exp(_SYSTEMATIC)
    )
