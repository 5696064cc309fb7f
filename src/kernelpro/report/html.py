"""The report as one self-contained HTML file: it includes style, charts and the chart library.

Sources, plans and verdicts are untrusted text. Templates escape everything, other markup is built from
escaped text, and the page's content security policy allows only its own three scripts, by hash.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kernelpro.records.interval import format_share
from kernelpro.report import highlight, pareto_plot, wording
from kernelpro.report.schema import CodeExcerpt, FindingSummary, ReportData

ASSETS = Path(__file__).parent / "assets"
"""Folder of templates, style and scripts. The live page uses it too."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_SCRIPTS = ("vendor/echarts.min.js", "charts.js", "page.js")
_LANGUAGES = {"cpp": "C++", "cuda": "CUDA", "cute": "CuTe", "triton": "Triton", "torch": "PyTorch"}
_CHART_FIELDS = (
    "number",
    "parent",
    "state",
    "ms",
    "hardest_baseline",
    "speedup",
    "plan",
    "note",
    "is_compiler",
    "is_winner",
    "on_path",
)
"""The fields of a step that charts.js reads."""


def html(data: ReportData) -> str:
    """The report as HTML."""
    scripts = [_asset(name) for name in _SCRIPTS]
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    states = {step.state for step in data.steps}
    floor_ms = data.verdict.floor_ms or data.floor_ms
    values: dict[str, Any] = {item.name: getattr(data, item.name) for item in dataclasses.fields(data)}
    values |= {
        "title": _title(data),
        "policy": f"{_POLICY}; script-src {hashes}",
        "style": Markup(_asset("style.css")),
        "scripts": [Markup(script) for script in scripts],
        "finished": data.run.state == "finished",
        "floor_ms": floor_ms,
        "path": _shorten([step.number for step in data.steps if step.on_path]),
        "steps_legend": wording.steps_legend(data),
        "front_legend": wording.front_legend(data),
        "states": [state for state in wording.STATES if state in states],
        "has_compiler": any(step.is_compiler for step in data.steps),
        "has_energy": any(step.measured_energy for step in data.steps),
        "contents": _contents(data),
        "charts": _chart_data(data, floor_ms),
        "pareto_svg": _pareto_svg(data),
    }
    return environment().get_template("report.html").render(values)


def _title(data: ReportData) -> str:
    verdict = data.verdict
    if not verdict.is_original:
        return f"{data.run.task}: {verdict.short_result}"
    return f"{data.run.task}: {verdict.speedup[verdict.hardest_baseline].value:.2f}x"


def _shorten(path: list[int]) -> list[int | None]:
    """The path to the winner, with None in place of the middle of a long path."""
    return [*path] if len(path) <= 8 else [*path[:3], None, *path[-4:]]


def _contents(data: ReportData) -> list[tuple[str, str]]:
    """The sections of the page, as (id, title)."""
    sections = (
        ("verdict", "Verdict", True),
        ("baselines", "Baselines", data.baselines),
        ("progress", "Best so far", data.progress),
        ("roofline", "Roofline", data.roofline),
        ("energy", "Energy", data.pareto_front),
        ("tree", "Tree", data.steps),
        ("winner", "Source", data.winner),
        ("next", "What next", data.winner),
        ("steps", "Steps", data.steps),
        ("models", "Models", data.cost.roles),
        ("notes", f"Notes ({len(data.notes)})", data.notes),
        ("environment", "Environment", True),
        ("reproduce", "Reproduce", True),
    )
    return [(id, title) for id, title, content in sections if content]


def _pareto_svg(data: ReportData) -> Markup:
    """The chart of speed against energy. Inside a page it needs no XML namespace."""
    if not data.pareto_front:
        return Markup("")
    svg = pareto_plot.plot_svg(data.pareto_front, "")
    return Markup(svg.replace(' xmlns="http://www.w3.org/2000/svg"', ""))


def _chart_data(data: ReportData, floor_ms: float | None) -> dict[str, Any]:
    """The data for charts.js: only those parts of the report that it reads."""
    steps = [
        {name: value for name, value in step.to_json().items() if name in _CHART_FIELDS}
        for step in data.steps
    ]
    return {
        "steps": steps,
        "progress": [point.to_json() for point in data.progress],
        "baselines": [baseline.to_json() for baseline in data.baselines],
        "roofline": data.roofline.to_json() if data.roofline else None,
        "floor_ms": floor_ms,
        "shown": data.verdict.step or (data.steps[0].number if data.steps else None),
    }


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def environment(*folders: Path) -> Environment:
    """The template environment for the report and for `folders`. Templates escape all values."""
    environment = Environment(
        loader=FileSystemLoader([*folders, ASSETS]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "baseline": wording.baseline_name,
        "code": highlight.highlight,
        "cost": wording.describe_cost,
        "count": lambda value: f"{value:,}".replace(",", " "),
        "day": lambda text: datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M UTC"),
        "diff": highlight.diff,
        "diff_size": _diff_size,
        "dollars": lambda value: f"${value:.2f}" if value else "$0",
        "duration": wording.format_duration,
        "energy": wording.describe_energy,
        "energy_ratio": wording.format_energy_ratio,
        "exponent": lambda value: f"{value:.1e}",
        "figure": lambda value: f"{value:.4g}",
        "gain": _gain,
        "language": lambda name: _LANGUAGES.get(name, name),
        "lower_first": lambda text: text[:1].lower() + text[1:].rstrip("."),
        "millijoules": wording.format_millijoules,
        "ms": lambda value: f"{value:.4g} ms",
        "scaled": wording.format_scaled,
        "share": format_share,
        "speedup": wording.format_speedup,
        "two_digits": lambda value: f"{value:.2f}",
        "x": lambda value: f"{value:.2f}x",
    }
    return environment


def _gain(finding: FindingSummary) -> str:
    return wording.format_gain(finding.gain, finding.objective)


def _diff_size(code: CodeExcerpt) -> str:
    """Added and removed lines: `+14 -6`."""
    lines = code.text.split("\n")[2:]
    return f"+{sum(line.startswith('+') for line in lines)} -{sum(line.startswith('-') for line in lines)}"
