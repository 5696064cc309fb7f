"""Sources, plans and verdicts are others' words: in a report they are text, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import made_runs
from markupsafe import escape

from kernelpro.report import render
from kernelpro.report.highlight import diff, highlight


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.text: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._open = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts[-1] += data
        else:
            self.text.append(data)


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def test_a_hostile_run_makes_the_same_elements_as_a_harmless_one(tmp_path: Path) -> None:
    tags = parsed(render(made_runs.hostile(tmp_path), "html"))
    assert len(tags.scripts) == 4, "data, chart library, charts, page"
    assert not [tag for tag, _ in tags.found if tag in ("img", "iframe", "object", "embed")]
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    assert "".join(tags.text).count(made_runs.HOSTILE) >= 10, "it is shown as it is, template marks too"


def test_only_the_pages_own_scripts_may_run(tmp_path: Path) -> None:
    tags = parsed(render(made_runs.hostile(tmp_path), "html"))
    (policy,) = (
        a["content"]
        for tag, a in tags.found
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    allowed = set(re.findall(r"'sha256-([^']+)'", policy or ""))
    running = {
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in tags.scripts[1:]
    }
    assert (
        allowed == running and "default-src 'none'" in (policy or "") and "unsafe-eval" not in (policy or "")
    )


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    tags = parsed(render(made_runs.won(tmp_path), "html"))
    places = [a.get("src") or a.get("href") for _, a in tags.found if "src" in a or "href" in a]
    assert places and all(place and place.startswith(("#", "data:")) for place in places)


def test_markdown_of_a_hostile_run_has_no_markup_outside_fences(tmp_path: Path) -> None:
    text = render(made_runs.hostile(tmp_path), "md")
    outside = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", text)
    assert "<script" not in outside and "<img" not in outside and "](http" not in outside
    rows = [line for line in outside.splitlines() if line.startswith("| 1")]
    header = next(line for line in outside.splitlines() if line.startswith("| step |"))
    assert rows and all(len(re.findall(r"(?<!\\)\|", row)) == header.count("|") for row in rows), (
        "a bar in a plan makes no column"
    )


def test_highlighting_and_differences_keep_the_text() -> None:
    source = 'x = "<b>" # a & b\nlib(r"""\n#include <cmath>\nfloat f(int n) { return 1.5f; } // \'s\n""")\n'
    plain = re.sub(r"<span[^>]*>|</span>", "", str(highlight(source)))
    assert plain == str(escape(source)) and '<span class="w">float</span>' in highlight(source)
    lines = str(diff("--- a\n+++ b\n@@ -1 +1 @@\n-<i>\n+--x\n same"))
    assert '<span class="del">-&lt;i&gt;</span>' in lines and '<span class="add">+--x</span>' in lines
