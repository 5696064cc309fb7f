"""A run as one row of the list: its state, its best kernel, its cost, and a small curve of its progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput, ComparableTimes
from kernelpro.records.events import RunStarted
from kernelpro.ui.brief import StepBrief, brief, judged_again, short_name

_CURVE_POINTS = 40


@dataclass
class Overview:
    """The rows of all runs. A run is read again only if its files changed."""

    _rows: dict[Path, tuple[object, dict[str, Any]]] = field(default_factory=dict)

    def rows(self, folders: list[tuple[str, Path]]) -> list[dict[str, Any]]:
        """A row for each run, newest first. The row of a run that cannot be read has an error."""
        known = {folder for _, folder in folders}
        self._rows = {folder: row for folder, row in self._rows.items() if folder in known}
        rows = [self._row(root, folder) for root, folder in folders]
        return sorted(rows, key=lambda row: (-row["created"], row["id"]))

    def _row(self, root: str, folder: Path) -> dict[str, Any]:
        stamp = tuple(_stamp(folder / name) for name in ("run.db", "run.db-wal"))
        before = self._rows.get(folder)
        try:
            store = RunStore(folder)
        except BadInput as error:
            return {"root": root, "id": folder.name, "created": 0.0, "error": str(error)}
        try:
            if before is None or before[0] != stamp or "error" in before[1]:
                before = (stamp, _read(store))
                self._rows[folder] = before
            state = store.state()
        except BadInput as error:
            return {"root": root, "id": folder.name, "created": 0.0, "error": str(error)}
        finally:
            store.close()
        row = before[1]
        if state == "finished" and not row["complete"]:
            state = "stopped"
        died = state == "stopped" and row["started_last"]
        return row | {"root": root, "state": state, "died": died}


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


def _read(store: RunStore) -> dict[str, Any]:
    config, outcome, times = store.config(), store.outcome(), ComparableTimes.of(store.task_facts())
    _, stored = store.steps_changed_after(0)
    steps = sorted((brief(row, times) for row in stored), key=lambda step: step.n)
    best = next((step for step in steps if outcome and step.n == outcome.best), None)
    best = best or min((step for step in steps if step.c), key=lambda step: step.c or 0.0, default=None)
    if best and outcome and outcome.verdict:
        best = judged_again(best, outcome.verdict, times)
    return {
        "id": store.id,
        "task": config.task.name,
        "target": config.target,
        "author": short_name(config.author_name),
        "policy": config.policy,
        "created": store.created,
        "steps": len(steps),
        "passed": sum(bool(step.ms) for step in steps),
        "speedup": best.x if best else None,
        "base": best.base if best else "",
        "ms": best.ms if best else None,
        "compiler": best.compiler if best else False,
        "limits": config.limits.to_json(),
        "spent": {
            "candidates": sum(bool(step.by) and not step.pasted for step in steps),
            "dollars": sum(step.usd for step in steps),
            "wall_seconds": store.wall_seconds,
        },
        "curve": _curve(steps),
        "complete": store.is_finished,
        "started_last": isinstance(store.last_change_of_state(), RunStarted),
        "reason": outcome.reason if outcome else "",
    }


def _curve(steps: list[StepBrief]) -> list[float]:
    """The best speed-up after each settled step, reduced to a few points."""
    best, values = 0.0, []
    for step in steps:
        if not step.open:
            best = max(best, step.x or 0.0)
            values.append(round(best, 3))
    if len(values) <= _CURVE_POINTS:
        return values
    return [values[k * (len(values) - 1) // (_CURVE_POINTS - 1)] for k in range(_CURVE_POINTS)]
