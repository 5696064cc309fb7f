"""`kernelpro tools`: the micro-profiling tools as a table, as JSON, or as the reference page of the documentation."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernelpro.diagnose.needs import needs
from kernelpro.diagnose.tool import EVERY, Tool
from kernelpro.diagnose.tools import registry

_LEVELS = ("kernel", "instruction", "system")


def run(files: list[str], page: bool, json_lines: bool) -> int:
    tools = sorted(
        registry(map(Path, files)).values(),
        key=lambda t: (t.target != "cuda", t.objective, _LEVELS.index(t.level), t.name),
    )
    if page:
        print(reference(tools), end="")
    elif json_lines:
        for tool in tools:
            print(json.dumps(_about(tool), separators=(",", ":")))
    else:
        table = Table()
        for title in ("tool", "target", "objective", "level", "classes", "needs", "speaks when"):
            table.add_column(title, overflow="fold")
        for tool in tools:
            table.add_row(
                tool.name, tool.target, tool.objective, tool.level, _classes(tool), _short(tool), tool.trigger
            )
        Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0


def _classes(tool: Tool) -> str:
    return "all" if tool.affinity == EVERY or not tool.metrics else ", ".join(sorted(tool.affinity))


def _short(tool: Tool) -> str:
    """`code, lines, 4 counters`; the counters' names are in the JSON."""
    count = len(tool.metrics)
    return (
        ", ".join([*needs(tool), *[f"{count} counter{'s' if count > 1 else ''}"] * bool(count)])
        or "time alone"
    )


def _about(tool: Tool) -> dict[str, object]:
    return {
        "tool": tool.name,
        "target": tool.target,
        "level": tool.level,
        "objective": tool.objective,
        "classes": sorted(tool.affinity),
        "needs": needs(tool),
        "metrics": tool.metrics,
        "trigger": tool.trigger,
        "remedy": tool.remedy,
        "expects": tool.expects,
    }


def reference(tools: list[Tool]) -> str:
    """The reference page, in Markdown."""
    lines = [
        "# Micro-profiling tools",
        "",
        "Made by `kernelpro tools --page`. A tool speaks when its trigger is met; its expected gain is Amdahl's law over the",
        "share of the time that its remedy would save, never beyond the floor. Tools without counters run always, the others",
        "where the class of the bottleneck is among theirs. How to write one: [profile.md](profile.md). Tools for energy speak",
        "only where energy is an objective; their gain is in joules at the same speed ([energy.md](energy.md)).",
    ]
    for target, title in (("cuda", "CUDA"), ("cpu", "CPU")):
        for level in (*_LEVELS, "energy"):
            mine = [
                tool
                for tool in tools
                if tool.target == target and (tool.objective == "energy") == (level == "energy")
            ]
            chosen = mine if level == "energy" else [tool for tool in mine if tool.level == level]
            if not chosen:
                continue
            name = "energy" if level == "energy" else f"{level} level"
            lines += [
                "",
                f"## {title}, {name}",
                "",
                "| tool | speaks when | recommends | expected gain | classes | after |",
            ]
            lines.append("|---|---|---|---|---|---|")
            for tool in chosen:
                cells = (
                    tool.name,
                    tool.trigger,
                    tool.remedy,
                    tool.expects,
                    _classes(tool),
                    ", ".join(tool.symptom_of),
                )
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
