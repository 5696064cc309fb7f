"""Reads the transcripts of a run for the page. They may have hundreds of megabytes, so that the cost reader
decodes each line once, and `exchanges` only the lines of one step."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelpro.records import Cost

_KEY_PLACE = 100
"""A line's key is within this many first bytes, because it is the first field."""


@dataclass
class CostReader:
    """The cost of the models by role. Each call reads only what was appended since the last one."""

    path: Path
    _offset: int = 0
    _roles: dict[str, Cost] = field(default_factory=dict)

    def roles(self) -> dict[str, Cost]:
        """The cost of each role so far. An answer without a cost (from an inbox) counts as one call."""
        for data in self._new_lines():
            cost = Cost.from_json(data.get("cost") or {})
            role = str(data.get("role", ""))
            self._roles[role] = self._roles.get(role, Cost()) + replace(cost, calls=max(1, cost.calls))
        return self._roles

    def _new_lines(self) -> list[dict[str, Any]]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except OSError:  # there is no exchange yet
            return []
        complete = text.rpartition(b"\n")[0]
        self._offset += len(complete) + 1 if complete else 0
        return [data for line in complete.split(b"\n") if (data := _decode(line))]


def exchanges(path: Path, step: int) -> list[dict[str, Any]]:
    """The exchanges of a step, in order."""
    found, key = [], f'"step-{step}/'.encode()
    try:
        with path.open("rb") as file:
            for line in file:
                if key in line[:_KEY_PLACE] and (data := _decode(line)):
                    found.append(data)
    except OSError:
        return []
    return found


def _decode(line: bytes) -> dict[str, Any] | None:
    """The fields of a line; None if it is damaged."""
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
