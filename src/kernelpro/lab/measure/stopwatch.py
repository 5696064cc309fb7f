"""Measures seconds by stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Measures the seconds of each stage, and in total since its creation."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._stages: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Measure a stage. If it is repeated, its seconds add up."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._stages[stage] = self._stages.get(stage, 0.0) + time.perf_counter() - begun

    def seconds(self) -> dict[str, float]:
        """Seconds of each stage, and in `total` since the creation."""
        total = time.perf_counter() - self._begun
        return {name: round(value, 4) for name, value in self._stages.items()} | {"total": round(total, 4)}
