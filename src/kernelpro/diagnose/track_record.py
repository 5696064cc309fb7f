"""Track record: what followed a tool's advice, against what it had promised.

For each tool the mean of log(gain that followed) / log(gain expected) over its advice that was tried, shrunk
towards 1 while there is little of it:

    worth = expected ** ((prior + sum of ratios) / (prior + count))

So a tool that promises too much sinks, one that keeps its word stays. One JSON line a trial, appended: a
killed process loses nothing that was written.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelpro.records import folders

_PRIOR = 5.0
"""As if so many trials had turned out as promised."""
_LEAST_EXPECTED = 1.02
_MOST_RATIO = 3.0
"""One lucky trial must not carry a tool for ever."""


def default_path() -> Path:
    return folders.data("track-record.jsonl")


@dataclass
class TrackRecord:
    trials: dict[str, list[float]] = field(default_factory=dict)
    """By tool: kept share of the promise, in logarithms."""
    path: Path | None = None

    @classmethod
    def load(cls, path: Path | None = None) -> TrackRecord:
        """From a file; lines that cannot be read are left out."""
        path = path or default_path()
        record = cls(path=path)
        try:
            lines = path.read_bytes().splitlines()
        except OSError:
            return record
        for line in lines:
            try:
                trial = json.loads(line)
                record._count(str(trial["tool"]), float(trial["expected"]), float(trial["followed"]))
            except (ValueError, KeyError, TypeError):
                continue
        return record

    def add(self, tool: str, expected: float, followed: float) -> None:
        """A candidate that took this advice ran `followed` times as fast as its parent."""
        self._count(tool, expected, followed)
        if self.path is None:
            return
        with suppress(
            OSError
        ):  # a home that cannot be written costs what would have been learnt, not the run
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"tool": tool, "expected": expected, "followed": followed}) + "\n")

    def _count(self, tool: str, expected: float, followed: float) -> None:
        if expected >= _LEAST_EXPECTED and followed > 0:
            ratio = math.log(followed) / math.log(expected)
            self.trials.setdefault(tool, []).append(max(-1.0, min(_MOST_RATIO, ratio)))

    def trust(self, tool: str) -> float:
        """1: gains have been as promised; 0: nothing ever followed."""
        trials = self.trials.get(tool, [])
        return max(0.0, (_PRIOR + sum(trials)) / (_PRIOR + len(trials)))

    def discounted_gain(self, tool: str, expected: float) -> float:
        """The gain to be expected in the light of what followed before."""
        return float(max(expected, 1.0) ** self.trust(tool))
