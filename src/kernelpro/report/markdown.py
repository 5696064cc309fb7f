"""The report in Markdown, short enough for a pull request: verdict, baselines, steps, notes and commands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kernelpro.records import Cost, Point
from kernelpro.report import wording
from kernelpro.report.schema import ReportData, StepSummary, WinnerSummary

_MAX_STEPS = 40
_MAX_CELL = 120


def markdown(data: ReportData) -> str:
    """The report as Markdown."""
    verdict = data.verdict
    parts = [
        f"# {_text(data.run.task)}: {verdict.short_result}",
        f"**{_text(verdict.headline)}** {_text(' '.join(verdict.sentences))}".strip(),
        _text(_describe_run(data)),
    ]
    if data.baselines:
        parts += ["## Against each baseline", _baselines(data)]
    if data.pareto_front:
        parts += ["## Speed against energy", _pareto_front(data.pareto_front)]
        parts += filter(None, [wording.front_legend(data)])
    if data.steps:
        parts += ["## Steps", _steps(data.steps), wording.steps_legend(data)]
    if data.winner:
        summary = f"step {data.winner.step}, by {_text(verdict.author_name)}"
        parts += ["## What would be next", _next(data.winner)]
        parts += ["## The winner", f"<details><summary>{summary}</summary>"]
        parts += [_fenced(data.winner.source, "python"), "</details>"]
    if data.cost.roles:
        parts += ["## Cost of the models", _roles(data.cost.roles)]
    if data.notes:
        parts += ["## Notes", "\n".join(f"- {_text(note)}" for note in data.notes)]
    commands = "\n".join(f"# {item.purpose}\n{item.command}" for item in data.reproduce)
    parts += ["## Reproduce", _fenced(commands, "sh")]
    return "\n\n".join(parts) + "\n"


def _describe_run(data: ReportData) -> str:
    """Where the run was measured, and what it cost."""
    run, cost, environment = data.run, data.cost, data.environment
    device = f" ({environment.device})" if environment.device else ""
    outcomes = f" ({wording.describe_counts(cost.outcomes)})" if cost.outcomes else ""
    sandbox = f"; sandbox: {environment.sandbox}" if environment.sandbox else ""
    uses = ", ".join(
        f"{use} {wording.format_duration(seconds)}" for use, seconds in cost.device_uses.items() if seconds
    )
    device_time = (
        f"{wording.format_duration(cost.device_seconds)} on the device{f' ({uses})' if uses else ''}"
    )
    return (
        f"Run {run.id} on {run.target}{device}, precision {run.precision or 'of the task'}; "
        f"{cost.candidates} candidates{outcomes}, {wording.format_duration(cost.wall_seconds)} of work, "
        f"{device_time}; {wording.describe_cost(cost.models)}{sandbox}."
    )


def _baselines(data: ReportData) -> str:
    rows = []
    for row in data.baselines:
        name = f"**{row.label}** (hardest to beat)" if row.is_hardest else row.label
        rows.append((name, f"{row.ms:.4g}", wording.format_speedup(row.speedup) if row.speedup else ""))
    verdict = data.verdict
    if verdict.ms is not None:
        author = " (compiler's own work)" if verdict.is_compiler else ""
        rows.append((f"step {verdict.step}{author}", f"{verdict.ms.value:.4g}", ""))
    return _table(("", "ms per call", "speed-up of the winner"), rows)


def _pareto_front(points: Sequence[Point]) -> str:
    rows = [
        (
            f"step {point.step}",
            f"{point.ms:.4g}",
            wording.format_millijoules(point.joules),
            wording.format_energy_ratio(point.energy, point.baseline),
            "yes" if point.best else "",
        )
        for point in points
    ]
    return _table(("", "ms per call", "mJ per call", "energy", "on the front"), rows)


def _steps(steps: Sequence[StepSummary]) -> str:
    """The table of steps. Of many steps it shows those on the path to the winner and the fastest."""
    selected = list(steps)
    if len(steps) > _MAX_STEPS:
        ranked = sorted(steps, key=lambda s: (not s.on_path, s.comparable_ms or float("inf")))
        selected = sorted(ranked[:_MAX_STEPS], key=lambda s: s.number)
    has_energy = any(step.measured_energy for step in steps)
    rows = [_step_cells(step, has_energy) for step in selected]
    table = _table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    omitted = len(steps) - len(selected)
    return table + (f"\n\n{omitted} more in the HTML report." if omitted else "")


def _step_cells(step: StepSummary, has_energy: bool) -> dict[str, str]:
    """The row of a step: its cells by the title of their column."""
    donor = f" and {step.donor}" if step.donor else ""
    speedup = step.speedup[step.hardest_baseline] if step.ms and step.hardest_baseline else None
    return {
        "step": f"{step.number}{' **winner**' if step.is_winner else ''}",
        "from": f"{step.action} of {step.parent or 'reference'}{donor}",
        "by": step.author_name if step.author else "",
        "outcome": step.state,
        "speed-up in the search": f"{speedup.value:.2f}x" if speedup else "",
        **(_energy_cells(step) if has_energy else {}),
        "hypothesis confirmed": {True: "yes", False: "no", None: ""}[step.confirmed],
        "plan": step.plan or step.note,
    }


def _energy_cells(step: StepSummary) -> dict[str, str]:
    energy = step.measured_energy
    if energy is None:
        return {"mJ per call": "", "energy": ""}
    return {
        "mJ per call": wording.format_millijoules(energy.joules["candidate"].value),
        "energy": wording.format_energy_ratio(energy.ratio["energy"], energy.baseline),
    }


def _roles(roles: Mapping[str, Cost]) -> str:
    rows = [
        (role, str(cost.calls), str(cost.tokens_in), str(cost.tokens_out), f"{cost.dollars:.4f}")
        for role, cost in roles.items()
    ]
    return _table(("role", "calls", "tokens in", "tokens out", "dollars"), rows)


def _next(winner: WinnerSummary) -> str:
    diagnosis = winner.diagnosis
    if not diagnosis:
        reason = f": {_text(winner.profile_error)}" if winner.profile_error else "."
        return f"The winner was not profiled{reason}"
    if not diagnosis.findings:
        return "\n".join(_text(line) for line in diagnosis.guidance)
    why = _text(diagnosis.why)
    lines = [f"The task is {diagnosis.bound_phrase} (confidence {diagnosis.confidence}): {why}.", ""]
    for row in diagnosis.account:
        where = f" ({_text(', '.join(row.lines))})" if row.lines else ""
        lines.append(f"- {row.share:.0%} {_text(row.title)}{where}")
    lines.append("")
    for finding in diagnosis.findings:
        advice = f" Try: {finding.advice[0]}." if finding.advice else ""
        gain = wording.format_gain(finding.gain, finding.objective)
        title = f"**{_text(finding.diagnostic)}** ({finding.severity}, up to {gain})"
        lines.append(f"- {title}: {_text(f'{finding.cause}.{advice}')}")
    return "\n".join(lines)


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [" | ".join(titles), " | ".join("---" for _ in titles)]
    lines += [" | ".join(_cell(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(text: str) -> str:
    """The content of a table cell: one line of limited length, with escaped bars."""
    line = _text(text).replace("|", "\\|")
    return line if len(line) <= _MAX_CELL else line[: _MAX_CELL - 1].rstrip("\\") + "…"


def _text(text: str) -> str:
    """Untrusted text as one line, with tags, links and images escaped."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")


def _fenced(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
