"""Pages of the documentation: links, width, generated parts, and the checks of the commands themselves."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from docs.pages import PAGES, ROOT
from docs.running import check_command, check_snippet, names


def links(text: str) -> list[str]:
    """Targets of relative links, without fenced blocks."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("path", PAGES, ids=names)
def test_links_of_a_page_lead_somewhere(path: Path) -> None:
    for link in links(path.read_text()):
        target, _, anchor = link.partition("#")
        page = (path.parent / target) if target else path
        assert page.exists(), f"{names(path)}: {link}"
        if anchor and page.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in slugs, f"{names(path)}: {link}"


@pytest.mark.parametrize("path", PAGES, ids=names)
def test_prose_is_wrapped_at_100_columns(path: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    wide = [
        line
        for line in prose.splitlines()
        if len(line) > 100 and not line.lstrip().startswith(("|", "!", "[", "<"))
    ]
    assert not [line for line in wide if " " in line.strip()[:90]]


def test_the_generated_reference_is_up_to_date() -> None:
    script = ROOT / "docs" / "reference" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate", script)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, page in module.PAGES.items():
        assert (script.parent / name).read_text() == page(), f"run: python {names(script)}"


def test_every_field_of_the_json_formats_is_explained() -> None:
    rows = (ROOT / "docs" / "reference" / "json.md").read_text().splitlines()
    assert not [row for row in rows if row.endswith("|  |")]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("command", ["kernelpro optimise x.py", "kernelpro judge a.py b.py --no-such-option"])
def test_a_command_that_does_not_exist_is_found(command: str) -> None:
    with pytest.raises(Exception, match=r"[Nn]o (such option|command)"):
        check_command(command)


def test_a_snippet_with_a_parameter_that_does_not_exist_is_found() -> None:
    with pytest.raises(TypeError):
        check_snippet("import kernelpro\nkernelpro.optimize(1, (2,), no_such=3)")


def test_every_page_is_run_by_one_test() -> None:
    from docs import test_run_guides, test_run_reference, test_run_start

    runs = (test_run_start, test_run_guides, test_run_reference)
    assert sorted(page for module in runs for page in module.SELECTED) == PAGES
