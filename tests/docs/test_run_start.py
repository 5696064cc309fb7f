"""The commands and snippets of README and the first pages work."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.pages import PAGES, ROOT
from docs.running import names, run_page

SELECTED = [page for page in PAGES if page.parent in (ROOT, ROOT / "docs")]
LONG = {ROOT / "README.md", ROOT / "docs" / "install.md"}
"""Their searches and judgements take long; the quickstart runs the same commands on a smaller task."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(page, marks=pytest.mark.long if page in LONG else ()) for page in SELECTED],
    ids=names,
)
def test_commands_and_snippets_of_a_page_work(path: Path, tmp_path: Path) -> None:
    run_page(path, tmp_path)
