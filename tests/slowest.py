"""The ten slowest tests of `make test`, over both of its parts: so that growth is seen."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

SHOWN = 10
PARTS = ("together", "alone")


def show(reporter: Any, config: pytest.Config) -> None:
    """Keep the slowest tests of this part; after the last part, print those of all."""
    part = str(config.option.markexpr).removesuffix(" and not long")
    cache = getattr(config, "cache", None)  # the plugin may be off
    if part not in PARTS or cache is None:
        return
    seconds: Counter[str] = Counter()
    for report in (report for group in reporter.stats.values() for report in group):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid] += report.duration
    cache.set(f"slowest/{part}", seconds.most_common(SHOWN))
    if part != PARTS[-1]:
        return
    rows = [(*row, name) for name in PARTS for row in cache.get(f"slowest/{name}", [])]
    reporter.section(f"{SHOWN} slowest tests of all, with their set-up")
    for test, spent, name in sorted(rows, key=lambda row: -row[1])[:SHOWN]:
        reporter.line(f"{spent:6.1f} s  {name:8}  {test}")
