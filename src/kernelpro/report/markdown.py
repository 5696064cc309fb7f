"""The report in Markdown, short enough for a pull request: verdict, baselines, the way to the winner, notes, commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kernelpro.records import Interval
from kernelpro.report import sentence
from kernelpro.report.steps import told

_MOST_STEPS = 40
_LONGEST_CELL = 120


def markdown(data: dict[str, Any]) -> str:
    verdict = data["verdict"]
    parts = [
        f"# {_text(data['run']['task'])}: {sentence.outcome(verdict)}",
        f"**{_text(verdict['headline'])}** {_text(' '.join(verdict['sentences']))}".strip(),
        _text(_took(data)),
    ]
    if data["baselines"]:
        parts += ["## Against each baseline", _baselines(data)]
    if data["front"]:
        parts += ["## Speed against energy", _front(data["front"])]
    if data["steps"]:
        parts += ["## Steps", _steps(data["steps"])]
    if data["winner"]:
        parts += ["## What would be next", _next(data["winner"])]
        parts += [
            "## The winner",
            f"<details><summary>step {data['winner']['step']}, by {_text(verdict['by'])}</summary>",
        ]
        parts += [_fenced(data["winner"]["source"], "python"), "</details>"]
    if data["cost"]["roles"]:
        parts += ["## What the models cost", _roles(data["cost"]["roles"])]
    if data["notes"]:
        parts += ["## To keep in mind", "\n".join(f"- {_text(note)}" for note in data["notes"])]
    commands = "\n".join(f"# {item['what']}\n{item['command']}" for item in data["reproduce"])
    parts += ["## Reproduce", _fenced(commands, "sh")]
    return "\n\n".join(parts) + "\n"


def _took(data: dict[str, Any]) -> str:
    """Where, and what it cost."""
    run, cost, place = data["run"], data["cost"], data["environment"]
    device = f" ({place['device']})" if place["device"] else ""
    outcomes = f" ({sentence.counted(cost['outcomes'])})" if cost["outcomes"] else ""
    sandbox = f"; sandbox: {place['sandbox']}" if place["sandbox"] else ""
    uses = ", ".join(
        f"{use} {sentence.duration(seconds)}" for use, seconds in cost["device_uses"].items() if seconds
    )
    held = f"{sentence.duration(cost['device_seconds'])} on the device{f' ({uses})' if uses else ''}"
    return (
        f"Run {run['id']} on {run['target']}{device}, precision {run['precision'] or 'as the task has it'}; "
        f"{cost['candidates']} candidates{outcomes}, {sentence.duration(cost['wall_seconds'])} of work, "
        f"{held}; {sentence.spent(cost)}{sandbox}."
    )


def _baselines(data: dict[str, Any]) -> str:
    rows = []
    for row in data["baselines"]:
        name = f"**{row['label']}** (hardest to beat)" if row["best"] else row["label"]
        ratio = row["speedup"]
        shown = sentence.times(Interval.from_json(ratio)) if ratio else ""
        rows.append((name, f"{row['ms']['value']:.4g}", shown))
    verdict = data["verdict"]
    if verdict["step"] is not None:
        maker = " (compiler's own work)" if verdict["compiler"] else ""
        rows.append((f"step {verdict['step']}{maker}", f"{verdict['ms']['value']:.4g}", ""))
    return _table(("", "ms a call", "speed-up of the winner"), rows)


def _front(points: list[dict[str, Any]]) -> str:
    rows = []
    for point in points:
        energy = (sentence.millijoules(point["joules"]), sentence.of(point["energy"], point["against"]))
        rows.append((f"step {point['step']}", f"{point['ms']:.4g}", *energy, "yes" if point["best"] else ""))
    return _table(("", "ms a call", "mJ a call", "energy", "on the front"), rows)


def _steps(steps: list[dict[str, Any]]) -> str:
    """All of them where they are few; else those on the way to the winner and the fastest."""
    chosen = steps
    if len(steps) > _MOST_STEPS:
        ranked = sorted(
            steps, key=lambda s: (not s["on_path"], s["ms"]["value"] if s["ms"] else float("inf"))
        )
        chosen = sorted(ranked[:_MOST_STEPS], key=lambda s: s["number"])
    metered = any(map(told, steps))
    rows = []
    for step in chosen:
        mark = " **winner**" if step["winner"] else ""
        speed = f"{step['speedup'][step['against']]['value']:.2f}x" if step["ms"] else ""
        kept = {True: "yes", False: "no", None: ""}[step["confirmed"]]
        made = f"{step['action']} of {step['parent'] or 'reference'}" + (
            f" and {step['second']}" if step["second"] else ""
        )
        by = step["by"] if step["author"] else ""
        energy = _energy(step) if metered else ()
        rows.append(
            (
                f"{step['number']}{mark}",
                made,
                by,
                step["state"],
                speed,
                *energy,
                kept,
                step["plan"] or step["note"],
            )
        )
    titles = ("mJ a call", "energy") if metered else ()
    table = _table(("step", "from", "by", "outcome", "speed-up", *titles, "hypothesis held", "plan"), rows)
    left = len(steps) - len(chosen)
    return table + (f"\n\n{left} more in the HTML report." if left else "")


def _energy(step: dict[str, Any]) -> tuple[str, str]:
    if not told(step):
        return "", ""
    energy = step["energy"]
    return sentence.millijoules(energy["joules"]["candidate"]["value"]), sentence.of(
        energy["ratio"]["energy"], energy["against"]
    )


def _roles(roles: list[dict[str, Any]]) -> str:
    rows = [
        (r["role"], str(r["calls"]), str(r["tokens_in"]), str(r["tokens_out"]), f"{r['dollars']:.4f}")
        for r in roles
    ]
    return _table(("role", "calls", "tokens in", "tokens out", "dollars"), rows)


def _next(winner: dict[str, Any]) -> str:
    found = winner["diagnosis"]
    if not found:
        return "The winner was not profiled" + (
            f": {_text(winner['not_profiled'])}" if winner["not_profiled"] else "."
        )
    if not found["findings"]:
        return "\n".join(_text(line) for line in found["guidance"])
    lines = [f"Bound by {found['bound']} (confidence {found['confidence']}): {_text(found['why'])}."]
    for finding in found["findings"]:
        advice = f" Try: {finding['advice'][0]}." if finding["advice"] else ""
        said = _text(f"{finding['cause']}.{advice}")
        lines.append(
            f"- **{_text(finding['tool'])}** ({finding['severity']}, up to {sentence.promise(finding)}): {said}"
        )
    return "\n".join(lines)


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [" | ".join(titles), " | ".join("---" for _ in titles)]
    lines += [" | ".join(_cell(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(text: str) -> str:
    """One line of a table: no bars, no line ends, not endless."""
    flat = _text(text).replace("|", "\\|")
    return flat if len(flat) <= _LONGEST_CELL else flat[: _LONGEST_CELL - 1].rstrip("\\") + "…"


def _text(text: str) -> str:
    """Others' words as plain text: on one line, no tags, no links and pictures."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")


def _fenced(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
