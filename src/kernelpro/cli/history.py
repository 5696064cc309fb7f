"""`kernelpro runs`, `show`, `export` and `report`: looking at what was done."""

from __future__ import annotations

import difflib
import json
import math
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.tree import Tree as Drawing

from kernelpro import report as reporting
from kernelpro.cli import joules
from kernelpro.diagnose import guidance
from kernelpro.engine import exchanges
from kernelpro.engine import export as exporting
from kernelpro.engine.store import Store, default_home
from kernelpro.llm.transcripts import FILE, Line, Transcripts
from kernelpro.memory.knowledge import Knowledge, default_path
from kernelpro.records import BadInput, Step, Verdict
from kernelpro.report import front, sentence
from kernelpro.report.reproduce import home_option


def _home(given: str | None) -> Path:
    return Path(given) if given else default_home()


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 160)


def runs(home: str | None, json_lines: bool) -> int:
    folder = _home(home)
    table = Table()
    for title in ("run", "task", "target", "author", "policy", "begun", "steps", "state", "best"):
        table.add_column(title, overflow="fold")
    for path in sorted(folder.glob("*/run.db"), key=lambda p: p.stat().st_mtime):
        try:
            store = Store(path.parent)
            config, steps, outcome, state = store.config(), store.steps(), store.outcome(), store.state()
            begun = datetime.fromtimestamp(store.created).isoformat(sep=" ", timespec="minutes")
            store.close()
        except BadInput as error:
            print(f"kernelpro: {error}", file=sys.stderr)
            continue
        best = ""
        if outcome and outcome.verdict:
            fastest = min(outcome.verdict.speedup.items(), key=lambda item: item[1].value)
            best = f"{sentence.times(fastest[1])} over {fastest[0]}"
        if json_lines:
            print(
                json.dumps(
                    {
                        "run": path.parent.name,
                        "task": config.task.name,
                        "steps": len(steps),
                        "state": state,
                        "best": best,
                    }
                )
            )
        table.add_row(
            path.parent.name,
            config.task.name,
            config.target,
            config.author,
            config.policy,
            begun,
            str(len(steps)),
            state,
            best,
        )
    if not json_lines:
        _console().print(table if table.row_count else f"no runs in {folder}")
    return 0


def delete(names: list[str], home: str | None) -> int:
    """All of them or, where one is not there or is being worked on, those before it."""
    for name in names:
        Store.open(_home(home), name).delete()
        print(f"deleted: {name}", file=sys.stderr)
    return 0


def show(run: str, number: int | None, plot: str | None, home: str | None, json_lines: bool) -> int:
    store = Store.open(_home(home), run)
    if plot:
        _plot(store, Path(plot))
    known = store.steps()
    asked = exchanges.read(store.folder, known)
    steps = {step.number: replace(step, cost=asked.steps[step.number]) for step in known}
    for line in store.damaged:
        print(f"kernelpro: {line}", file=sys.stderr)
    if number is not None and number not in steps:
        raise BadInput(f"run {run} has no step {number}; it has {len(steps)}")
    chosen = [steps[number]] if number is not None else list(steps.values())
    if json_lines:
        for step in chosen:
            extra = _more(store, step) if number is not None else {}
            print(json.dumps(step.to_json() | extra, separators=(",", ":")))
    elif number is None:
        _tree(store, steps)
        _models(asked)
    else:
        _step(store, steps, steps[number])
    return 0


def _plot(store: Store, path: Path) -> None:
    steps = store.steps()
    points = front.points(store.outcome(), steps)
    if not points:
        refused = next(
            (step.verdict.energy.refused for step in steps if step.verdict and step.verdict.energy), ""
        )
        why = f": {refused}" if refused else "; they are measured with --objective energy-at-speed or edp"
        raise BadInput(f"--plot: run {store.id} has no energies{why}")
    try:
        path.write_text(
            front.svg(points, f"{store.config().task.name}: speed against energy"), encoding="utf-8"
        )
    except OSError as error:
        raise BadInput(f"--plot {path}: cannot be written ({error.strerror})") from None


def _tree(store: Store, steps: dict[int, Step]) -> None:
    ground, outcome = store.ground() or {}, store.outcome()
    best, floor = ground.get("baseline_ms", 0.0), ground.get("floor_ms", 0.0)
    drawing = Drawing(f"[bold]{store.id}[/]: reference, best baseline {best:.4f} ms, floor {floor:.4f} ms")
    places = {0: drawing}
    for step in sorted(steps.values(), key=lambda s: s.number):
        crown = "[bold green]winner[/] " if outcome and outcome.best == step.number else ""
        time = f"{step.ms:.4f} ms ({_compared(step.verdict)})" if step.ms and step.verdict else step.state
        by = f" by {step.author}" if step.author else ""
        other = f" with {step.second}" if step.second else ""
        label = f"{crown}{step.number} {step.action}{other}{by}: {time}  {step.plan or step.note}"
        places[step.number] = places.get(step.parent, drawing).add(label)
    console = _console()
    console.print(drawing)
    go_on = f"kernelpro resume {store.id}{home_option(store)}"
    ended = (
        f"{outcome.reason}{f': {go_on}' if outcome.unanswered else ''}" if outcome else f"unfinished: {go_on}"
    )
    console.print(ended, soft_wrap=True)
    for note in [
        *(outcome.notes if outcome else ()),
        *filter(None, [ground.get("no_seeds"), ground.get("no_graph")]),
    ]:
        console.print(f"note: {note}", markup=False)


def _models(asked: exchanges.Exchanges) -> None:
    """What each role of the team cost, failed questions among it."""
    if asked.roles:
        table = Table()
        for title in ("role", "calls", "tokens in", "tokens out", "dollars"):
            table.add_column(title, justify="left" if title == "role" else "right")
        for role, cost in (asked.roles | {"in all": asked.total}).items():
            table.add_row(
                role, str(cost.calls), str(cost.tokens_in), str(cost.tokens_out), f"{cost.dollars:.4f}"
            )
        _console().print(table)
    if asked.prompts:
        print(f"prompts: {', '.join(asked.prompts)}")


def _more(store: Store, step: Step) -> dict[str, object]:
    """What the record of a step only points at."""
    asked = [
        {"role": line.role, "model": line.model, "status": line.status, "messages": line.messages}
        for line in _asked(store, step)
    ]
    return {"text": store.source(step.final_source) if step.final_source else "", "asked": asked}


def _asked(store: Store, step: Step) -> list[Line]:
    """What models were asked for this step, in order."""
    return [
        line
        for line in Transcripts(store.folder / FILE).lines()
        if line.key.startswith(f"step-{step.number}/")
    ]


def _compared(verdict: Verdict) -> str:
    """Its speed and its energy, as far as that is known."""
    return "; ".join(filter(None, (sentence.over(verdict), sentence.taken(verdict))))


def _step(store: Store, steps: dict[int, Step], step: Step) -> None:
    other = f" and step {step.second}" if step.second else ""
    source = f"of step {step.parent}{other}, " if step.parent else ""
    parts = [
        f"step {step.number} of {store.id}: {step.action} {source}by {step.author or 'nobody'}: {step.state}"
    ]
    told = {
        "plan": step.plan,
        "hypothesis": step.hypothesis,
        "follows the advice of": step.details.get("advice"),
        "note": step.note,
    }
    told |= {"tuned": _tuned(step), "not profiled": step.details.get("not_profiled"), "cost": _cost(step)}
    if verdict := step.verdict:
        told |= {"verdict": verdict.reason, "error": _error(verdict)}
        told |= {"time": f"{verdict.times['candidate'].value:.4g} ms"} if verdict.times else {}
        told |= {f"over {name}": sentence.times(ratio) for name, ratio in verdict.speedup.items()}
        told |= {"energy": joules.line(verdict.energy)} if verdict.energy else {}
    parts += [f"{name}: {text}" for name, text in told.items() if text]
    if step.diagnosis:
        parts += ["", guidance.write(step.diagnosis)]
    for line in _asked(store, step):
        parts += ["", f"=== {line.role}: {line.model}, {line.status}"]
        for message in line.messages:
            parts += [
                f"--- {message['role']}",
                str(message.get("text") or message.get("calls") or "").rstrip(),
            ]
    parent = steps.get(step.parent)
    if step.final_source:
        text = store.source(step.final_source)
        if parent and parent.final_source:
            before = store.source(parent.final_source)
            names = (f"step {parent.number}", f"step {step.number}")
            changed = difflib.unified_diff(before.splitlines(), text.splitlines(), *names, lineterm="")
            parts += ["", "=== difference to its parent", *changed]
        parts += ["", "=== source", text.rstrip()]
    print("\n".join(parts))


def _tuned(step: Step) -> str:
    tuned = step.details.get("tuned")
    if not tuned:
        return ""
    chosen = ", ".join(f"{name}={value}" for name, value in tuned["point"].items())
    return f"{chosen} after {len(tuned['tried'])} points ({tuned['why']})"


def _cost(step: Step) -> str:
    cost = step.cost
    return (
        f"{cost.dollars:.4f} dollars, {cost.tokens_in} + {cost.tokens_out} tokens, {cost.calls} calls"
        if cost.calls
        else ""
    )


def _error(verdict: Verdict) -> str:
    known = verdict.error is not None and verdict.tolerance is not None
    return f"{verdict.error:.2e} relative (tolerance {verdict.tolerance:.2e})" if known else ""


def export(run: str, number: int | None, out: str | None, home: str | None) -> int:
    store = Store.open(_home(home), run)
    text = exporting.export(store, number)
    path = Path(out or f"{run}.py")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--out {path}: cannot be written ({error.strerror})") from None
    print(f"{path}: test it with `python {path}`")
    return 0


def report(run: str, form: Any, out: str | None, home: str | None) -> int:
    store = Store.open(_home(home), run)
    if out == "-":
        print(reporting.render(store, form), end="")
    else:
        print(reporting.write(store, form, Path(out) if out else None))
    for line in store.damaged:
        print(f"kernelpro: {line}", file=sys.stderr)
    return 0


def knowledge(out: str | None, source: str | None, forget: bool, json_lines: bool) -> int:
    base = Knowledge(default_path(), lambda text: print(f"kernelpro: {text}", file=sys.stderr))
    if source:
        print(f"{base.import_json(Path(source))} observations added")
    if out:
        print(f"{base.export_json(Path(out))} observations written to {out}")
    if forget:
        print(f"{base.forget()} observations forgotten")
    if source or out or forget:
        return 0
    table = Table()
    for title in ("method", "bottleneck", "family", "language", "hardware", "gain", "trials", "faster"):
        table.add_column(title, overflow="fold")
    for entry in base.show():
        if json_lines:
            print(json.dumps(entry.to_json()))
        gain = f"{math.exp(entry.gain):.2f}x"
        row = (
            entry.method,
            entry.bound,
            entry.family,
            entry.language,
            entry.hardware,
            gain,
            str(entry.count),
            str(entry.wins),
        )
        table.add_row(*row)
    if not json_lines:
        _console().print(table if table.row_count else "nothing has been learnt yet")
    return 0
