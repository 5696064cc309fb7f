"""The live display of a run: the best kernel, the budget, current work, and the latest steps.

On a terminal it is a panel, redrawn four times a second from the state of the engine; events only tell which
work is in progress. Without a terminal, one line is printed for each completed step.
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

from kernelpro.engine.loop import Engine
from kernelpro.engine.store import RunStore
from kernelpro.records import Outcome, RunConfig
from kernelpro.records.events import JobProgress, Note, RunEvent, StepProgress, TaskMeasured
from kernelpro.records.interval import format_share
from kernelpro.report import wording
from kernelpro.report.progress import ProgressLines
from kernelpro.report.reproduce import runs_dir_option

_MAX_STEPS = 14
_OTHER_LINES = 9
"""Lines of the panel other than the steps."""


class Display:
    """Shows the events of a run on stderr and its outcome on stdout, or both as JSON lines on stdout."""

    def __init__(self, store: RunStore, config: RunConfig, as_json: bool):
        self._store, self._config, self._json = store, config, as_json
        self._console = Console(stderr=True)
        self._lines = ProgressLines(store)
        self._engine: Engine | None = None
        self._active: dict[str, tuple[str, float]] = {}
        """By job: its stage, and when the stage began."""
        self._live: Live | None = None
        if self._console.is_terminal and not as_json:
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._panel)

    def watch(self, engine: Engine) -> None:
        """Show the state of this engine."""
        self._engine = engine

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._active.clear()
            self._live.stop()

    def print_line(self, text: str) -> None:
        """Print a line, above the panel if there is one."""
        if self._live and self._live.is_started:
            self._console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def on_event(self, event: RunEvent) -> None:
        """Show an event of the run; called from several threads."""
        if self._json:
            print(json.dumps(event.to_line(), separators=(",", ":")), flush=True)
            return
        self._track(event)
        if isinstance(event, Note):
            self.print_line(f"note: {event.text}")
        elif not self._live and (line := self._lines.line(event)):
            self.print_line(line)

    def _track(self, event: RunEvent) -> None:
        """Update the work in progress."""
        match event:
            case JobProgress(job, stage):
                self._set_stage(job, stage)
            case TaskMeasured():
                self._active.pop("task", None)
            case StepProgress(step, "profiling"):
                self._set_stage("profile", f"of step {step}")
            case StepProgress(_, "profiled"):
                self._active.pop("profile", None)
            case StepProgress(step, "judged" | "settled"):
                self._active.pop(f"step {step}", None)
            case StepProgress(step, "judging"):
                self._set_stage(f"step {step}", "waiting for the judge")
            case StepProgress(step, phase):
                self._set_stage(f"step {step}", phase.replace("_", " "))

    def _set_stage(self, job: str, stage: str) -> None:
        if self._active.get(job, ("", 0.0))[0] != stage:
            self._active[job] = (stage, time.monotonic())

    # --- the panel -------------------------------------------------------------------------------------

    def _panel(self) -> Group:
        engine = self._engine
        title = f"  {wording.describe_run(self._config)}"
        parts: list[Any] = [Text.assemble((self._store.id, "bold"), title)]
        if engine and engine.facts:
            parts += [Text(wording.describe_baselines(engine.facts), style="dim"), self._best(engine)]
            parts.append(Text(f"spent: {', '.join(_format_use(*use) for use in engine.budget.uses())}"))
        now = time.monotonic()
        for job, (stage, since) in list(self._active.items()):
            parts.append(Text(f"  {job}: {stage} {now - since:.0f} s", style="cyan"))
        if engine and engine.steps:
            parts.append(self._steps(engine))
        return Group(*parts)

    def _best(self, engine: Engine) -> Text:
        best = engine.tree.best()
        if not best.id or (verdict := engine.steps[best.id].verdict) is None:
            return Text("best: no kernel beats the baselines yet")
        ms = verdict.times["candidate"].value
        reached = f", {format_share(verdict.of_floor)} of the floor" if verdict.of_floor else ""
        author = engine.steps[best.id].author
        return Text(
            f"best: {wording.describe_speedup(verdict)}, {ms:.4g} ms{reached}; step {best.id} by {author}",
            style="bold green",
        )

    def _steps(self, engine: Engine) -> Group:
        """The latest steps. Columns have a fixed width, so that nothing moves; the plan takes the rest of the
        line."""
        room = max(3, min(_MAX_STEPS, self._console.size.height - _OTHER_LINES))
        best = engine.tree.best().id
        lines = [_row("step", "from", "action", "author", "status", "ms", "x", "plan", style="dim")]
        for step in sorted(engine.steps.values(), key=lambda s: -s.number)[:room]:
            ms, times = "", ""
            if step.ms and step.verdict:
                ms, times = (
                    f"{step.ms:.4g}",
                    f"{step.verdict.speedup[wording.hardest_baseline(step.verdict)].value:.2f}",
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
            details = filter(
                None,
                (wording.describe_energy_use(step.verdict) if step.verdict else "", step.plan or step.note),
            )
            lines.append(_row(*cells, "; ".join(details), style="green" if step.number == best else ""))
        return Group(*lines)

    # --- the end ---------------------------------------------------------------------------------------

    def print_outcome(self, outcome: Outcome) -> None:
        """Print how the run ended, on stdout."""
        if self._json:
            print(json.dumps({"event": "outcome", **outcome.to_json()}, separators=(",", ":")), flush=True)
            return
        print(f"{self._store.id}: {outcome.reason}")
        for note in outcome.notes:
            print(f"note: {note}")
        if outcome.verdict is None:
            return
        verdict, step = outcome.verdict, self._store.step(outcome.best or 0)
        print(wording.describe_winner(verdict, outcome.best, step.author if step else ""))
        if step and (why := wording.compiler_note(verdict, step)):
            print(f"  {why}")
        speedups = ", ".join(f"{name} {wording.format_speedup(x)}" for name, x in verdict.speedup.items())
        print(f"  over each baseline: {speedups}")
        details = (*wording.describe_shapes(verdict), wording.describe_unseen(verdict, of_winner=True))
        for line in filter(None, details):
            print(f"  {line}")
        if verdict.of_floor:
            print(f"  floor {verdict.floor_ms:.4f} ms ({format_share(verdict.of_floor)} reached)")
        if verdict.energy:
            print(f"  energy: {wording.describe_energy(verdict.energy)}")
        if step:
            print(f"  source: {self._store.folder / 'sources' / (step.final_source + '.py')}")
        run, option = self._store.id, runs_dir_option(self._store)
        print(
            f"  show it: kernelpro show {run} {outcome.best}{option}; "
            f"export it: kernelpro export {run}{option}"
        )

    def print_report(self, path: Path) -> None:
        """Print where the report is."""
        if self._json:
            print(json.dumps({"event": "report", "path": str(path)}, separators=(",", ":")), flush=True)
        else:
            print(f"  report: {path}")


def _row(
    step: str, parent: str, action: str, author: str, status: str, ms: str, times: str, plan: str, style: str
) -> Text:
    cells = f"{step:>4} {parent:>4} {action:7} {author[:18]:18} {status[:12]:12} {ms:>7} {times:>6}  {plan}"
    return Text(cells, style=style, no_wrap=True, overflow="ellipsis")


def _format_use(name: str, spent: float, limit: float) -> str:
    if name.endswith("seconds"):
        return f"{_format_clock(spent)} of {_format_clock(limit)} {name.removesuffix(' seconds')}"
    return f"{spent:.4g} of {limit:.4g} {name}"


def _format_clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02}" if minutes >= 60 else f"{minutes}m{rest:02}"
