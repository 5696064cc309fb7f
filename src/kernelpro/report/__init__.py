"""What people look at: the report of a run, and the roofline of one profile as a picture.

A store comes in, text goes out. `data.gather` makes one plain dictionary of everything that a run knows about itself;
`page`, `markdown` and JSON are three ways to write it down. Nothing is measured here.

    data.py      the dictionary, top to bottom          steps.py     a step: plan, verdict, difference, findings
    sentence.py  verdicts and steps in words            curves.py    what the charts show, as numbers
    page.py      HTML, with assets/ (templates, style, charts, the chart library)
    markdown.py  for a pull request                     roofline.py  one profile's roofline, SVG
    front.py     a run's speed against energy, SVG      reproduce.py the exact commands
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from kernelpro.engine.store import Store
from kernelpro.records import BadInput
from kernelpro.report.data import gather

Format = Literal["html", "md", "json"]
FORMATS: tuple[Format, ...] = ("html", "md", "json")

__all__ = ["FORMATS", "Format", "gather", "render", "write"]


def render(store: Store, form: Format) -> str:
    """The report's text."""
    data = gather(store)
    if form == "json":
        return json.dumps(data, indent=1) + "\n"
    if form == "md":
        from kernelpro.report.markdown import markdown

        return markdown(data)
    from kernelpro.report.page import html

    return html(data)


def write(store: Store, form: Format = "html", path: Path | None = None) -> Path:
    """To a file, by default `report.FORMAT` in the run's folder; a reader never sees half of it."""
    place = path or store.folder / f"report.{form}"
    text = render(store, form)
    partial = place.with_name(f".{place.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(place)
    except OSError as error:
        raise BadInput(f"the report cannot be written to {place} ({error.strerror})") from None
    return place
