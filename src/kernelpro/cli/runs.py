"""`kernelpro runs`, `show`, `export` and `report`: look at runs and use their results."""

from __future__ import annotations

import difflib
import json
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rich.markup import escape
from rich.table import Table
from rich.tree import Tree as TreeView

from kernelpro import report
from kernelpro.cli.commands.runs import ExportOptions, ReportOptions, RunsOptions, ShowOptions
from kernelpro.cli.errors import print_error
from kernelpro.cli.output import table_console, write_file
from kernelpro.diagnose import guidance
from kernelpro.engine import export, model_costs
from kernelpro.engine.store import RunStore, runs_dir
from kernelpro.llm.transcripts import FILE, TranscriptEntry, Transcripts
from kernelpro.records import BadInput, ComparableTimes, Outcome, Step, Verdict
from kernelpro.report import pareto_plot, wording
from kernelpro.report.reproduce import runs_dir_option


def list_runs(options: RunsOptions) -> int:
    """Print all runs; the one that changed last comes last."""
    folder = runs_dir(options.runs_dir)
    table = Table()
    for title in ("run", "task", "target", "author", "policy", "started", "steps", "state", "best"):
        table.add_column(title, overflow="fold")
    for path in sorted(folder.glob("*/run.db"), key=lambda path: path.stat().st_mtime):
        try:
            store = RunStore(path.parent)
            config, steps, outcome, state = store.config(), store.steps(), store.outcome(), store.state()
            times = ComparableTimes.of(store.task_facts())
            started = datetime.fromtimestamp(store.created).isoformat(sep=" ", timespec="minutes")
            store.close()
        except BadInput as error:
            print_error(str(error))
            continue
        best = _describe_best(outcome, steps, times)
        name, task, count = path.parent.name, config.task.name, len(steps)
        if options.json:
            print(json.dumps({"run": name, "task": task, "steps": count, "state": state, "best": best}))
        table.add_row(
            name, task, config.target, config.author_name, config.policy, started, str(count), state, best
        )
    if not options.json:
        table_console().print(table if table.row_count else f"no runs in {folder}")
    return 0


def _describe_best(outcome: Outcome | None, steps: list[Step], times: ComparableTimes) -> str:
    """The speed-up of the winner, or of the fastest step so far if the run has not ended."""
    verdict, so_far = outcome.verdict if outcome else None, ""
    if outcome is None:
        passed = [step for step in steps if step.ms]
        fastest = min(passed, key=lambda step: times.ms(step) or 0.0, default=None)
        verdict, so_far = fastest.verdict if fastest else None, " so far"
    if verdict is None:
        return ""
    baseline = wording.hardest_baseline(verdict)
    return f"{wording.format_speedup(verdict.speedup[baseline])} over {baseline}{so_far}"


def delete_runs(options: RunsOptions) -> int:
    """Delete runs in the given order, up to the first one that does not exist or is in use."""
    for name in options.delete:
        RunStore.open(runs_dir(options.runs_dir), name).delete()
        print(f"deleted: {name}", file=sys.stderr)
    return 0


def show_run(options: ShowOptions) -> int:
    """Print the search tree of a run, or everything about one step."""
    store = RunStore.open(runs_dir(options.runs_dir), options.run)
    store.config()  # raises if the file holds no run
    if options.plot:
        _write_plot(store, Path(options.plot))
    stored = store.steps()
    costs = model_costs.read(store.folder, stored)
    steps = {step.number: replace(step, cost=costs.steps[step.number]) for step in stored}
    for line in store.damage:
        print_error(line)
    if options.step is None:
        if options.json:
            for step in steps.values():
                print(json.dumps(step.to_json(), separators=(",", ":")))
        else:
            _print_tree(store, steps)
            _print_costs(costs)
        return 0
    if options.step not in steps:
        raise BadInput(f"run {options.run} has no step {options.step}; it has {len(steps)} steps")
    step = steps[options.step]
    if options.json:
        print(json.dumps(step.to_json() | _step_texts(store, step), separators=(",", ":")))
    else:
        _print_step(store, steps, step)
    return 0


def _last_verdict(step: Step, outcome: Outcome | None) -> Verdict | None:
    """The latest verdict on a step: the winner's final one, or the one from the search."""
    is_winner = outcome is not None and outcome.best == step.number
    return (outcome.verdict if outcome and is_winner else None) or step.verdict


def _search_time(step: Step, verdict: Verdict) -> str:
    """The step's time in the search if `verdict` is its final one, else empty."""
    return f"final; {step.ms:.4g} ms in the search" if step.ms and verdict != step.verdict else ""


def _write_plot(store: RunStore, path: Path) -> None:
    steps = store.steps()
    points = pareto_plot.points(store.outcome(), steps, ComparableTimes.of(store.task_facts()))
    if not points:
        energies = [step.verdict.energy for step in steps if step.verdict and step.verdict.energy]
        reason = f": {energies[0].unavailable}" if energies else ""
        hint = "" if reason else "; --objective energy-at-speed or edp measures it"
        hint += f"; `kernelpro plot {store.id} progress` draws its speed"
        raise BadInput(f"--plot: run {store.id} has no energy measurements{reason}{hint}")
    title = f"{store.config().task.name}: speed against energy"
    write_file(path, pareto_plot.plot_svg(points, title), "--plot")


def _print_tree(store: RunStore, steps: dict[int, Step]) -> None:
    facts, outcome = store.task_facts(), store.outcome()
    times = "not measured yet"
    if facts:
        times = f"best baseline {facts.baseline_ms:.4g} ms, floor {facts.floor_ms:.4g} ms"
    root = TreeView(f"[bold]{store.id}[/]: reference, {times}")
    nodes = {0: root}
    for number, step in sorted(steps.items()):
        winner = "[bold green]winner[/] " if outcome and outcome.best == number else ""
        result, verdict = wording.describe_state(step), _last_verdict(step, outcome)
        if verdict and verdict.times:
            comparison = (wording.describe_speedup(verdict), wording.describe_energy_use(verdict))
            ms = verdict.times["candidate"].value
            result = f"{ms:.4g} ms ({'; '.join(filter(None, (*comparison, _search_time(step, verdict))))})"
        donor = f" with {step.donor}" if step.donor else ""
        author = f" by {step.author}" if step.author else ""
        label = f"{number} {step.action}{donor}{author}: {result}  {step.plan or step.note}"
        nodes[number] = nodes.get(step.parent, root).add(f"{winner}{escape(label)}")
    console = table_console()
    console.print(root)
    resume = f"kernelpro resume {store.id}{runs_dir_option(store)}"
    if outcome is None:
        console.print(f"unfinished; continue with: {resume}", soft_wrap=True)
    else:
        console.print(f"{outcome.reason}{f'; {resume}' if outcome.unanswered else ''}", soft_wrap=True)
    notes = [*(outcome.notes if outcome else ()), *((facts.seed_errors, facts.graph_error) if facts else ())]
    for note in filter(None, notes):
        console.print(f"note: {note}", markup=False)


def _print_costs(costs: model_costs.ModelCosts) -> None:
    """Print the cost of the models by role, failed requests included."""
    if costs.roles:
        table = Table()
        for title in ("role", "calls", "tokens in", "tokens out", "dollars"):
            table.add_column(title, justify="left" if title == "role" else "right")
        for role, cost in (costs.roles | {"total": costs.total}).items():
            table.add_row(
                role, str(cost.calls), str(cost.tokens_in), str(cost.tokens_out), f"{cost.dollars:.4f}"
            )
        table_console().print(table)
    if costs.prompts:
        print(f"prompts: {', '.join(costs.prompts)}")


def _exchanges(store: RunStore, step: Step) -> list[TranscriptEntry]:
    """Questions and answers of a step, in order."""
    entries = Transcripts(store.folder / FILE).entries()
    return [entry for entry in entries if entry.key.startswith(f"step-{step.number}/")]


def _step_texts(store: RunStore, step: Step) -> dict[str, object]:
    """The texts to which a step's record only refers: source and exchanges with models."""
    exchanges = [
        {"role": entry.role, "model": entry.model, "status": entry.status, "messages": entry.messages}
        for entry in _exchanges(store, step)
    ]
    return {"text": store.source(step.final_source) if step.final_source else "", "exchanges": exchanges}


def _print_step(store: RunStore, steps: dict[int, Step], step: Step) -> None:
    donor = f" and step {step.donor}" if step.donor else ""
    origin = f"of step {step.parent}{donor}" if step.parent else ""
    author = f"{', ' * bool(origin)}by {step.author}" if step.author else ""
    lines = [
        f"step {step.number} of {store.id}: {step.action} {origin}{author}: {wording.describe_state(step)}"
    ]
    facts = {
        "plan": step.plan,
        "hypothesis": step.hypothesis,
        "follows the advice of": step.details.diagnostic,
        "note": step.note,
        "tuned": _describe_tuning(step),
        "not profiled": step.details.profile_error,
        "cost": wording.describe_cost(step.cost) if step.cost.calls else "",
    }
    if verdict := _last_verdict(step, store.outcome()):
        facts |= {"verdict": verdict.reason, "error": _describe_error(verdict)}
        search = _search_time(step, verdict)
        first = f" ({search})" if search else ""
        facts |= {"time": f"{verdict.times['candidate'].value:.4g} ms{first}"} if verdict.times else {}
        facts |= {f"over {name}": wording.format_speedup(ratio) for name, ratio in verdict.speedup.items()}
        facts |= {"energy": wording.describe_energy(verdict.energy)} if verdict.energy else {}
    lines += [f"{name}: {text}" for name, text in facts.items() if text]
    if step.diagnosis:
        lines += ["", guidance.write(step.diagnosis)]
    for entry in _exchanges(store, step):
        lines += ["", f"=== {entry.role}: {entry.model}, {entry.status}"]
        for message in entry.messages:
            text = str(message.get("text") or message.get("calls") or "").rstrip()
            lines += [f"--- {message['role']}", text]
    if step.final_source:
        source, parent = store.source(step.final_source), steps.get(step.parent)
        if parent and parent.final_source:
            before = store.source(parent.final_source)
            names = (f"step {parent.number}", f"step {step.number}")
            lines += ["", "=== difference to its parent"]
            lines += difflib.unified_diff(before.splitlines(), source.splitlines(), *names, lineterm="")
        lines += ["", "=== source", source.rstrip()]
    print("\n".join(lines))


def _describe_tuning(step: Step) -> str:
    tuning = step.details.tuning
    if not tuning:
        return ""
    point = ", ".join(f"{name}={value}" for name, value in tuning.point.items())
    return f"{point} after {len(tuning.points)} points ({tuning.reason})"


def _describe_error(verdict: Verdict) -> str:
    if verdict.error is None or verdict.tolerance is None:
        return ""
    return f"{verdict.error:.2e} relative (tolerance {verdict.tolerance:.2e})"


def export_run(options: ExportOptions) -> int:
    """Export the winner or a step as one Python file, or as an installable package."""
    store = RunStore.open(runs_dir(options.runs_dir), options.run)
    winner = export.select_winner(store, options.step)
    name = export.module_file_name(options.run)
    path = Path(options.out or (name.removesuffix(".py") if options.package else name))
    export.write_export(winner, path, options.package)
    package = export.module_file_name(path.name).removesuffix(".py")
    test = f"pip install {path} && python -m {package}" if options.package else f"python {path}"
    print(f"{path}: test it with `{test}`")
    if winner.verdict and wording.speed_result(winner.verdict) != "faster":
        print(f"it is not certainly faster than the original: {wording.describe_speedup(winner.verdict)}")
    return 0


def write_report(options: ReportOptions) -> int:
    """Write the report of a run."""
    store = RunStore.open(runs_dir(options.runs_dir), options.run)
    if options.out == "-":
        print(report.render(store, options.format), end="")
    else:
        print(report.write(store, options.format, Path(options.out) if options.out else None))
    for line in store.damage:
        print_error(line)
    return 0
