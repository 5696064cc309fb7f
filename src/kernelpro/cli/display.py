"""The live display of a run: best so far, budget, what is going on, and the tree in brief."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kernelpro.engine.loop import Engine
from kernelpro.engine.store import Store
from kernelpro.records import Interval, Outcome, RunConfig, Status, Step

_BUSY = {"writing", "judging", "tuning", "profiling", "final"}
_MOST_LINES = 14


class Display:
    """On a terminal a panel that changes in place; elsewhere a line for each settled step; with `json_lines` events."""

    def __init__(self, store: Store, config: RunConfig, json_lines: bool):
        self._store, self._config, self._json = store, config, json_lines
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal and not json_lines else None
        self._engine: Engine | None = None
        self._busy: dict[str, str] = {}

    def watch(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """What the engine tells; called from several threads."""
        if self._json:
            print(json.dumps({"event": kind, **data}, separators=(",", ":")), flush=True)
            return
        self._follow(kind, data)
        if kind == "settled" and self._engine:
            step = self._engine.steps[data["step"]]
            if not self._live:
                self.say(_line(step))
        elif kind == "damage":
            self.say(f"damaged: {data['line']}")
        if self._live and self._engine:
            self._live.update(self._panel(self._engine))

    def _follow(self, kind: str, data: dict[str, Any]) -> None:
        if kind in _BUSY:
            self._busy[f"step {data['step']}"] = kind
        elif kind == "progress":
            self._busy[data["job"]] = data["stage"]
        elif kind == "settled":
            self._busy.pop(f"step {data['step']}", None)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _panel(self, engine: Engine) -> Group:
        parts: list[Any] = [Text(f"run {self._store.id}: {self._config.task.name} on {self._config.target}, {self._config.policy}")]
        if hasattr(engine, "_tree"):
            best = engine.tree.best()
            floor = engine.tree.floor_ms
            shown = f"{best.ms:.4f} ms, {engine.tree.baseline_ms / best.ms:.2f}x over the best baseline" if best.ms else ""
            told = f"best: step {best.id}, {shown}, {floor / best.ms:.0%} of the floor" if best.id and best.ms else "best: none yet"
            parts.append(Text(told, style="bold green" if best.id else ""))
        uses = ", ".join(f"{spent:.4g} of {limit:.4g} {name}" for name, spent, limit in engine.budget.uses())
        parts.append(Text(f"spent: {uses}"))
        parts += [Text(f"  {job}: {stage}", style="cyan") for job, stage in list(self._busy.items())[-6:]]
        table = Table(show_edge=False, pad_edge=False)
        for title in ("step", "from", "action", "status", "ms", "plan"):
            table.add_column(title, no_wrap=True, overflow="ellipsis")
        for step in sorted(engine.steps.values(), key=lambda s: -s.number)[:_MOST_LINES]:
            ms = f"{step.ms:.4f}" if step.ms else ""
            table.add_row(str(step.number), str(step.parent), step.action, step.state, ms, step.plan or step.note)
        return Group(*parts, table)

    def final(self, outcome: Outcome) -> None:
        """The last word, on stdout."""
        if self._json:
            print(json.dumps({"event": "outcome", **outcome.to_json()}, separators=(",", ":")), flush=True)
            return
        print(f"{self._store.id}: {outcome.reason}")
        for note in outcome.notes:
            print(f"note: {note}")
        if outcome.verdict is None:
            return
        verdict = outcome.verdict
        print(f"winner: step {outcome.best}, {verdict.times['candidate'].value:.4f} ms; {verdict.reason}")
        print(f"  over each baseline: {', '.join(f'{name} {interval(x)}' for name, x in verdict.speedup.items())}")
        if verdict.floor_ms:
            print(f"  floor {verdict.floor_ms:.4f} ms ({verdict.floor_ms / verdict.times['candidate'].value:.0%} reached)")
        step = self._store.step(outcome.best or 0)
        if step:
            print(f"  source: {self._store.folder / 'sources' / (step.final_source + '.py')}")
        print(f"  look at it: kernelpro show {self._store.id} {outcome.best}; take it: kernelpro export {self._store.id}")

    def reported(self, path: Path) -> None:
        if self._json:
            print(json.dumps({"event": "report", "path": str(path)}, separators=(",", ":")), flush=True)
        else:
            print(f"  report: {path}")


def interval(x: Interval) -> str:
    return f"{x.value:.2f}x [{x.low:.2f}, {x.high:.2f}]"


def _line(step: Step) -> str:
    shown = f"{step.ms:.4f} ms" if step.ms else (step.verdict.reason if step.verdict else step.note)
    better = f", {step.verdict.faster}" if step.verdict and step.verdict.status is Status.PASSED else ""
    return f"step {step.number} ({step.action} of {step.parent}): {step.state}: {shown}{better}  {step.plan}".rstrip()
