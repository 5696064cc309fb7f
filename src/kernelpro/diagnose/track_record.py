"""Track record: the speed-up that followed a diagnostic's advice, against the gain it had predicted.

For each diagnostic, the mean of log(achieved gain) / log(predicted gain) over the advice that was tried,
shrunk towards 1 while there are few trials:

    discounted gain = predicted ** ((prior + sum of ratios) / (prior + count))

A diagnostic that overestimates its gains ranks lower over time. The file holds one JSON line per trial and
is only appended to, so a killed process loses nothing.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelpro.records import folders

_PRIOR_TRIALS = 5.0
"""Weight of the prior, in trials that turned out as predicted."""
_MIN_PREDICTED = 1.02
_MAX_RATIO = 3.0
"""Limits the weight of one lucky trial."""


def default_path() -> Path:
    """The track record of this user."""
    return folders.data("track-record.jsonl")


@dataclass
class TrackRecord:
    """The trials of all diagnostics."""

    trials: dict[str, list[float]] = field(default_factory=dict)
    """By diagnostic: achieved over predicted gain, in logarithms."""
    path: Path | None = None

    @classmethod
    def load(cls, path: Path | None = None) -> TrackRecord:
        """Reads a file, and ignores lines that cannot be parsed."""
        path = path or default_path()
        record = cls(path=path)
        try:
            lines = path.read_bytes().splitlines()
        except OSError:
            return record
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                trial = json.loads(line)
                record._count(str(trial["diagnostic"]), float(trial["predicted"]), float(trial["achieved"]))
        return record

    def add(self, diagnostic: str, predicted: float, achieved: float) -> None:
        """Records that a candidate which took this advice ran `achieved` times as fast as its parent."""
        self._count(diagnostic, predicted, achieved)
        if self.path is None:
            return
        trial = {"diagnostic": diagnostic, "predicted": predicted, "achieved": achieved}
        with suppress(OSError):  # a read-only home loses this trial, not the run
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(trial) + "\n")

    def _count(self, diagnostic: str, predicted: float, achieved: float) -> None:
        if predicted >= _MIN_PREDICTED and achieved > 0:
            ratio = math.log(achieved) / math.log(predicted)
            self.trials.setdefault(diagnostic, []).append(max(-1.0, min(_MAX_RATIO, ratio)))

    def trust(self, diagnostic: str) -> float:
        """1: the gains were as predicted; 0: no gain ever followed."""
        trials = self.trials.get(diagnostic, [])
        return max(0.0, (_PRIOR_TRIALS + sum(trials)) / (_PRIOR_TRIALS + len(trials)))

    def discounted_gain(self, diagnostic: str, predicted: float) -> float:
        """The predicted gain, corrected by the track record of its diagnostic."""
        return float(max(predicted, 1.0) ** self.trust(diagnostic))
