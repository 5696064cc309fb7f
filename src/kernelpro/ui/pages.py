"""The HTML of the pages. The templates escape the texts of candidates, models and users; all markup comes
from the templates. Style, charts and the parts of a step are shared with the report."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment

from kernelpro.engine.store import RunStore
from kernelpro.llm.transcripts import FILE
from kernelpro.records import BadInput, ComparableTimes, Cost, RunConfig
from kernelpro.report import steps
from kernelpro.report.html import ASSETS as REPORT_ASSETS
from kernelpro.report.html import environment
from kernelpro.ui.brief import short_name
from kernelpro.ui.costs import exchanges

ASSETS = Path(__file__).parent / "assets"
FILES = {
    "style.css": REPORT_ASSETS / "style.css",
    "charts.js": REPORT_ASSETS / "charts.js",
    "echarts.js": REPORT_ASSETS / "vendor" / "echarts.min.js",
} | {path.name: path for path in ASSETS.iterdir() if path.suffix in (".css", ".js")}
"""The files that the server serves, by name."""


VISIBLE = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {
    0x7F: "\u2421",
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\N{REPLACEMENT CHARACTER}"),
}
"""Visible replacements of control characters (such as terminal escapes) and of changes of the writing
direction."""


@cache
def _templates() -> Environment:
    return environment(ASSETS)


def page(template: str, **values: Any) -> str:
    """One of the pages: `runs`, `run`, `compare`, `suites`, `suite` or `error`."""
    return _templates().get_template(f"live_{template}.html").render({"steers": False} | values)


def run_facts(store: RunStore) -> dict[str, Any]:
    """Facts about a run that do not change, from its configuration."""
    config = store.config()
    return {
        "id": store.id,
        "task": config.task.name,
        "target": config.target,
        "author": short_name(config.author_name),
        "policy": config.policy,
        "objective": config.objective,
        "hears_hints": hears_hints(config),
    }


def hears_hints(config: RunConfig) -> bool:
    """Whether the author of the run reads hints: LLM agents do, the playbook and files do not."""
    return config.author.partition(":")[0] == "team"


def step_fragment(store: RunStore, number: int) -> str:
    """Everything about a step as HTML: verdict, plan, findings, source, diff, prompts and answers."""
    step = store.step(number)
    if step is None:
        raise BadInput(f"there is no step {number}")
    parent, outcome = store.step(step.parent), store.outcome()
    asked = exchanges(store.folder / FILE, number)
    if asked:
        costs = (Cost.from_json(entry.get("cost") or {}) for entry in asked)
        step = dataclasses.replace(step, cost=sum(costs, Cost()))
    is_winner = outcome is not None and outcome.best == number
    finalists, times = outcome.finalists if outcome else (), ComparableTimes.of(store.task_facts())
    summary = steps.summarize_step(step, parent, store, times, is_winner, (), finalists)
    summary = dataclasses.replace(summary, author_name=short_name(summary.author_name))
    try:
        source = store.source(step.final_source) if step.final_source else ""
    except BadInput as error:
        source = str(error)
    values = {
        "step": summary,
        "source": source,
        "exchanges": asked,
        "finished": False,
        "verdict": outcome.verdict if is_winner and outcome else None,
        "run": {"id": store.id, "runs_dir_option": ""},
    }
    return _templates().get_template("live_step.html").render(values).translate(VISIBLE)
