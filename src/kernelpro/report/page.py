"""The report as one HTML file that needs nothing else: style, charts and their library are inside.

Sources, plans and verdicts were written by others. Templates escape everything; the few pieces that are markup are made
here from escaped text; and the page's own policy lets no script run but the three that belong to it, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from kernelpro.records import Interval, Point
from kernelpro.records.interval import share
from kernelpro.report import front, sentence
from kernelpro.report.steps import told

_ASSETS = Path(__file__).parent / "assets"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_SCRIPTS = ("vendor/echarts.min.js", "charts.js", "page.js")
_LANGUAGES = {"cpp": "C++", "cuda": "CUDA", "cute": "CuTe", "triton": "Triton", "torch": "PyTorch"}
_CHARTED = (
    "number",
    "parent",
    "state",
    "ms",
    "against",
    "speedup",
    "plan",
    "note",
    "compiler",
    "winner",
    "on_path",
)
"""What charts.js reads of a step."""
_WORDS = (
    "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda "
    "None not or pass raise return self True try while with yield auto bool case char const constexpr default do double enum "
    "extern float int inline long namespace nullptr short signed sizeof static struct switch template typename unsigned using "
    "void volatile __device__ __global__ __host__ __restrict__ __shared__"
)
_TOKEN = re.compile(
    r"(?P<p>\#[ \t]*(?:include|pragma|define|if|ifdef|ifndef|endif|else|undef)\b[^\n]*)"
    r"|(?P<c>\#[^\n]*|//[^\n]*|/\*.*?\*/)"
    r"|(?P<s>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    rf"|(?P<w>\b(?:{'|'.join(_WORDS.split())})\b)"
    r"|(?P<n>\b\d[\w.]*\b)",
    re.DOTALL,
)
"""Python and C++ at once, as candidates mix them: preprocessor, comment, string, word, number."""


def html(data: dict[str, Any]) -> str:
    scripts = [_asset(name) for name in _SCRIPTS]
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts
    )
    verdict, steps = data["verdict"], data["steps"]
    floor = verdict.get("floor_ms") or data["floor_ms"]
    return (
        _environment()
        .get_template("report.html")
        .render(
            data
            | {
                "title": _title(data),
                "policy": f"{_POLICY}; script-src {hashes}",
                "style": Markup(_asset("style.css")),
                "scripts": [Markup(script) for script in scripts],
                "finished": data["run"]["state"] == "finished",
                "floor_ms": floor,
                "path": _path([step["number"] for step in steps if step["on_path"]]),
                "states": [state for state in sentence.STATES if state in {step["state"] for step in steps}],
                "has_compiler": any(step["compiler"] for step in steps),
                "metered": any(map(told, steps)),
                "contents": _contents(data),
                "charts": _charts(data, floor),
                "front_svg": _front(data),
            }
        )
    )


def _title(data: dict[str, Any]) -> str:
    verdict = data["verdict"]
    if not verdict["original"]:
        return f"{data['run']['task']}: {sentence.outcome(verdict)}"
    return f"{data['run']['task']}: {verdict['speedup'][verdict['best_baseline']]['value']:.2f}x"


def _path(numbers: list[int]) -> list[int | None]:
    """The way to the winner; of a long one its ends, with None between."""
    return [*numbers] if len(numbers) <= 8 else [*numbers[:3], None, *numbers[-4:]]


def _contents(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Sections that are there, as (id, name)."""
    sections = (
        ("verdict", "Verdict", True),
        ("baselines", "Baselines", data["baselines"]),
        ("progress", "Best so far", data["progress"]),
        ("roofline", "Roofline", data["roofline"]),
        ("energy", "Energy", data["front"]),
        ("tree", "Tree", data["steps"]),
        ("winner", "Source", data["winner"]),
        ("next", "What next", data["winner"]),
        ("steps", "Steps", data["steps"]),
        ("models", "Models", data["cost"]["roles"]),
        ("notes", f"Notes ({len(data['notes'])})", data["notes"]),
        ("environment", "Environment", True),
        ("reproduce", "Reproduce", True),
    )
    return [(id, name) for id, name, there in sections if there]


def _front(data: dict[str, Any]) -> Markup:
    """Speed against energy, drawn here; inside a page it needs no namespace."""
    points = [Point.from_json(point) for point in data["front"]]
    return Markup(front.svg(points, "").replace(' xmlns="http://www.w3.org/2000/svg"', "") if points else "")


def _charts(data: dict[str, Any], floor: float | None) -> dict[str, Any]:
    """What charts.js takes: a part of the report, no more than it reads."""
    steps = [{name: step[name] for name in _CHARTED} for step in data["steps"]]
    shown = data["verdict"]["step"] or (steps[0]["number"] if steps else None)
    return {
        "steps": steps,
        "progress": data["progress"],
        "baselines": data["baselines"],
        "roofline": data["roofline"],
        "floor_ms": floor,
        "shown": shown,
    }


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "baseline": sentence.baseline,
        "changes": _changes,
        "code": _code,
        "count": lambda value: f"{value:,}".replace(",", " "),
        "day": lambda text: datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M UTC"),
        "diff": _diff,
        "duration": sentence.duration,
        "figure": lambda value: f"{value:.4g}",
        "joules": sentence.joules,
        "language": lambda name: _LANGUAGES.get(name, name),
        "lower_first": lambda text: text[:1].lower() + text[1:].rstrip("."),
        "millijoules": sentence.millijoules,
        "money": lambda value: f"${value:.2f}" if value else "$0",
        "ms": lambda value: f"{value:.4g} ms",
        "of": sentence.of,
        "power": lambda value: f"{value:.1e}",
        "promise": sentence.promise,
        "scaled": sentence.scaled,
        "share": share,
        "spent": sentence.spent,
        "times": lambda ratio: sentence.times(Interval.from_json(ratio)),
        "two": lambda value: f"{value:.2f}",
        "x": lambda value: f"{value:.2f}x",
    }
    return made


# --- code as markup: made from escaped text alone ----------------------------------------------------------


def _code(text: str) -> Markup:
    """Light highlighting."""
    parts, at = [], 0
    for token in _TOKEN.finditer(text):
        kind = {"p": "w"}.get(token.lastgroup or "", token.lastgroup)
        parts += [
            escape(text[at : token.start()]),
            Markup('<span class="{}">{}</span>').format(kind, token[0]),
        ]
        at = token.end()
    return Markup("").join([*parts, escape(text[at:])])


def _diff(text: str) -> Markup:
    """A unified difference, a block a line."""
    lines = []
    for number, line in enumerate(text.split("\n")):
        heading = number < 2 and line.startswith(("---", "+++"))
        kind = "hunk" if heading or line.startswith("@@") else {"+": "add", "-": "del"}.get(line[:1], "")
        lines.append(Markup('<span class="{}">{}</span>').format(kind, line))
    return Markup("").join(lines)


def _changes(code: dict[str, Any]) -> str:
    """`+14 -6`."""
    lines = code["text"].split("\n")[2:]
    return f"+{sum(line.startswith('+') for line in lines)} -{sum(line.startswith('-') for line in lines)}"
