"""Medians and ratios with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import torch

from kernelpro.records import Interval, Target

RESAMPLES = 2000
LEVEL = 0.95
CERTAIN = 0.998
"""Level of the interval that a `cheating` verdict requires."""
SYSTEMATIC: dict[Target, float] = {"cuda": 0.0075, "cpu": 0.03}
"""Every interval of a ratio between two processes is widened by this on both sides (in log space). The times
of two processes that run the same code differ by up to 0.6 % on an H200 and by up to 3 % on a Xeon, however
long they are timed, because the addresses of their memory differ (benchmarks/judge_noise.py)."""


def bootstrap_medians(values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Medians of resampled values."""
    return values.sort().values[_median_ranks(len(values), seed)]


@lru_cache(maxsize=64)
def _median_ranks(count: int, seed: int) -> torch.Tensor:
    """For each resample of `count` sorted values, the rank of its median.

    Cached, because a verdict needs dozens of intervals: while compilers use all cores, torch takes 10 ms for
    each such median, and a verdict took 0.2 s longer.
    """
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(count, (RESAMPLES, count), generator=generator)
    return picks.median(dim=1).values


def quantile_interval(medians: torch.Tensor, value: float, level: float = LEVEL) -> Interval:
    """The interval that contains the share `level` of the medians, extended to contain `value`."""
    tail = (1 - level) / 2
    low, high = torch.quantile(medians, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(value, min(low, value), max(high, value))


def median_interval(values: torch.Tensor, level: float = LEVEL) -> Interval:
    """The median of the values, with its bootstrap interval."""
    return quantile_interval(bootstrap_medians(values), float(values.median()), level)


def ratio_interval(log_ratios: torch.Tensor, systematic: float, link: torch.Tensor | None = None) -> Interval:
    """The interval of a ratio from its per-round logs, widened by `systematic`. `link`: another log-ratio,
    measured independently, to multiply it by."""
    medians, value = bootstrap_medians(log_ratios), float(log_ratios.median())
    if link is not None:
        medians, value = medians + bootstrap_medians(link, seed=1), value + float(link.median())
    logs = quantile_interval(medians, value)
    return Interval(math.exp(logs.value), math.exp(logs.low - systematic), math.exp(logs.high + systematic))


def lower_bound(intervals: list[Interval]) -> Interval:
    """The interval of the minimum: the lowest value, low end and high end of several intervals."""
    return Interval(
        min(interval.value for interval in intervals),
        min(interval.low for interval in intervals),
        min(interval.high for interval in intervals),
    )


def above_one(ratio: Interval) -> Literal["yes", "no", "unclear"]:
    """Whether a ratio lies clearly above 1."""
    return "yes" if ratio.low > 1 else "no" if ratio.high < 1 else "unclear"


def faster_than_all(speedups: Mapping[str, Interval]) -> Literal["yes", "no", "unclear"]:
    """Whether all speed-ups lie clearly above 1; `no` if one lies clearly below."""
    return above_one(lower_bound(list(speedups.values())))
