"""Where the seconds went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds by stage, and in total since it was made."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._stages: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._stages[stage] = time.perf_counter() - begun

    def seconds(self) -> dict[str, float]:
        total = time.perf_counter() - self._begun
        return {name: round(value, 4) for name, value in self._stages.items()} | {"total": round(total, 4)}
