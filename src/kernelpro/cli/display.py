"""The live display of a run: best so far, budget, what is going on, and the latest steps.

On a terminal a panel that is drawn four times a second from what the engine holds; elsewhere a line for everything that
came to its end. Events only say what is in flight.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kernelpro.cli import joules
from kernelpro.engine.loop import Engine
from kernelpro.engine.store import Store
from kernelpro.records import Outcome, RunConfig
from kernelpro.records.interval import share
from kernelpro.report import sentence
from kernelpro.report.reproduce import home_option

_BEGINS = {"writing", "judging", "metering", "final"}
_ENDS = {"judged", "settled"}
_MOST_STEPS = 14
_OTHER_LINES = 9
"""Of the panel: what is not a step."""


class Display:
    def __init__(self, store: Store, config: RunConfig, json_lines: bool):
        self._store, self._config, self._json = store, config, json_lines
        self._console = Console(stderr=True)
        self._engine: Engine | None = None
        self._busy: dict[str, tuple[str, float]] = {}
        """What is in flight: what is being done to it, and since when."""
        self._live: Live | None = None
        if self._console.is_terminal and not json_lines:
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._panel)

    def watch(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        elif not self._json:
            what = "going on" if self._store.ground() else "probing the task and measuring its baselines"
            self.say(f"run {self._store.id}: {self._title()}; {what}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._busy.clear()
            self._live.stop()

    def say(self, text: str) -> None:
        """A line of its own; above the panel, where there is one."""
        if self._live and self._live.is_started:
            self._console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """What the engine tells; called from several threads."""
        if self._json:
            print(json.dumps({"event": kind, **data}, separators=(",", ":")), flush=True)
            return
        self._follow(kind, data)
        if kind in ("damage", "note"):
            self.say(f"{kind}: {data['line']}")
        elif not self._live and self._engine:
            if kind == "ground":
                self.say(sentence.laid(data))
            elif kind == "settled":
                self.say(sentence.settled(self._engine.steps[data["step"]]))
            elif kind == "final":
                self.say(f"step {data['step']}: judged again, at full length")

    def _follow(self, kind: str, data: dict[str, Any]) -> None:
        step = f"step {data['step']}" if "step" in data else ""
        if kind in _BEGINS:
            self._now(step, "waiting for the judge" if kind == "judging" else kind)
        elif kind == "progress":
            self._now(data["job"], data["stage"])
        elif kind == "profiling":
            self._now("profile", f"of {step}")
        elif kind in _ENDS:
            self._busy.pop(step, None)
        elif kind in ("profiled", "ground"):
            self._busy.pop("profile" if kind == "profiled" else kind, None)

    def _now(self, job: str, stage: str) -> None:
        if self._busy.get(job, ("", 0.0))[0] != stage:
            self._busy[job] = (stage, time.monotonic())

    # --- the panel -------------------------------------------------------------------------------------

    def _title(self) -> str:
        return (
            f"{self._config.task.name} on {self._config.target}, {self._config.author}, {self._config.policy}"
        )

    def _panel(self) -> Group:
        engine = self._engine
        parts: list[Any] = [Text.assemble((self._store.id, "bold"), f"  {self._title()}")]
        if engine and engine.ground:
            parts += [Text(sentence.laid(engine.ground), style="dim"), self._best(engine)]
            parts.append(Text(f"spent: {', '.join(_amount(*use) for use in engine.budget.uses())}"))
        now = time.monotonic()
        for job, (stage, since) in list(self._busy.items()):
            parts.append(Text(f"  {job}: {stage} {now - since:.0f} s", style="cyan"))
        if engine and engine.steps:
            parts.append(self._steps(engine))
        return Group(*parts)

    def _best(self, engine: Engine) -> Text:
        best = engine.tree.best()
        if not best.id or (verdict := engine.steps[best.id].verdict) is None:
            return Text("best: nothing beats the baselines yet")
        ms, floor = verdict.times["candidate"].value, engine.tree.floor_ms
        reached = f", {share(floor / ms)} of the floor" if floor else ""
        author = engine.steps[best.id].author
        return Text(
            f"best: {sentence.over(verdict)}, {ms:.4g} ms{reached}; step {best.id} by {author}",
            style="bold green",
        )

    def _steps(self, engine: Engine) -> Group:
        """Columns of fixed width, so that nothing moves; the plan has the rest of the line."""
        room = max(3, min(_MOST_STEPS, self._console.size.height - _OTHER_LINES))
        best = engine.tree.best().id
        lines = [_row("step", "from", "action", "author", "status", "ms", "x", "plan", style="dim")]
        for step in sorted(engine.steps.values(), key=lambda s: -s.number)[:room]:
            ms, times = "", ""
            if step.ms and step.verdict:
                ms, times = (
                    f"{step.ms:.4g}",
                    f"{step.verdict.speedup[sentence.best_of(step.verdict)].value:.2f}",
                )
            cells = (
                str(step.number),
                str(step.parent or ""),
                step.action,
                step.author,
                step.state,
                ms,
                times,
            )
            told = filter(
                None, (sentence.taken(step.verdict) if step.verdict else "", step.plan or step.note)
            )
            lines.append(_row(*cells, "; ".join(told), style="green" if step.number == best else ""))
        return Group(*lines)

    # --- the end ---------------------------------------------------------------------------------------

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
        verdict, step = outcome.verdict, self._store.step(outcome.best or 0)
        by = f" by {step.author}" if step else ""
        print(f"winner: step {outcome.best}{by}, {verdict.times['candidate'].value:.4f} ms; {verdict.reason}")
        if step and (why := sentence.unwrapped(verdict, step)):
            print(f"  {why}")
        print(
            f"  over each baseline: {', '.join(f'{name} {sentence.times(x)}' for name, x in verdict.speedup.items())}"
        )
        if verdict.floor_ms:
            reached = share(verdict.floor_ms / verdict.times["candidate"].value)
            print(f"  floor {verdict.floor_ms:.4f} ms ({reached} reached)")
        if verdict.energy:
            print(f"  energy: {joules.line(verdict.energy)}")
        if step:
            print(f"  source: {self._store.folder / 'sources' / (step.final_source + '.py')}")
        run, home = self._store.id, home_option(self._store)
        print(
            f"  look at it: kernelpro show {run} {outcome.best}{home}; take it: kernelpro export {run}{home}"
        )

    def reported(self, path: Path) -> None:
        if self._json:
            print(json.dumps({"event": "report", "path": str(path)}, separators=(",", ":")), flush=True)
        else:
            print(f"  report: {path}")


def _row(
    step: str, parent: str, action: str, author: str, status: str, ms: str, times: str, plan: str, style: str
) -> Text:
    cells = f"{step:>4} {parent:>4} {action:7} {author[:18]:18} {status[:12]:12} {ms:>7} {times:>6}  {plan}"
    return Text(cells, style=style, no_wrap=True, overflow="ellipsis")


def _amount(name: str, spent: float, limit: float) -> str:
    if name.endswith("seconds"):
        return f"{_clock(spent)} of {_clock(limit)} {name.removesuffix(' seconds')}"
    return f"{spent:.4g} of {limit:.4g} {name}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02}" if minutes >= 60 else f"{minutes}m{rest:02}"
