"""Reports of runs, and plots.

`data.collect_report` reads the store of a run into one record, which is written as HTML, Markdown or JSON.
Nothing is measured here.

    schema.py       the record and its parts             data.py           collects it from the store
    steps.py        the steps of a run                   charts.py         the numbers behind the charts
    wording.py      verdicts and steps in words          reproduce.py      the exact commands
    html.py         HTML, with assets/ (templates, style, charts, chart library)
    markdown.py     Markdown, for a pull request         highlight.py      source code as HTML
    notebook.py     progress and results in notebooks    plots.py          the charts of `kernelpro plot`
    tree_plot.py, progress_plot.py, roofline_plot.py, account_plot.py, pareto_plot.py, profile_plot.py
                    single charts as SVG                 svg.py            their building blocks
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput
from kernelpro.report.data import collect_report

Format = Literal["html", "md", "json"]

__all__ = ["Format", "collect_report", "render", "write"]


def render(store: RunStore, form: Format) -> str:
    """The text of the report."""
    data = collect_report(store)
    if form == "json":
        return json.dumps(data.to_json(), indent=1) + "\n"
    if form == "md":
        from kernelpro.report.markdown import markdown

        return markdown(data)
    from kernelpro.report.html import html

    return html(data)


def write(store: RunStore, form: Format = "html", path: Path | None = None) -> Path:
    """Write the report, by default to `report.FORMAT` in the folder of the run. The file is replaced
    atomically."""
    target = path or store.folder / f"report.{form}"
    text = render(store, form)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise BadInput(f"the report cannot be written to {target} ({error.strerror})") from None
    return target
