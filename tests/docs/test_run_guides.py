"""The commands and snippets of the guides work."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.pages import PAGES
from docs.running import names, run_page

SELECTED = [page for page in PAGES if page.parent.name == "guides"]
LONG = {"own-module.md", "judging.md"}
"""Their searches and judgements take long; the quickstart and the reference run such commands too."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(page, marks=pytest.mark.long if page.name in LONG else ()) for page in SELECTED],
    ids=names,
)
def test_commands_and_snippets_of_a_page_work(path: Path, tmp_path: Path) -> None:
    run_page(path, tmp_path)
