"""`kernelpro code-search`, from the arguments to what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelpro.cli.code_search import search_code
from kernelpro.cli.commands.code_search import CodeSearchOptions
from kernelpro.code_search import SourceTree
from kernelpro.records import BadInput


def ask(
    tree: str,
    json: bool = False,
    regex: bool = False,
    exact: bool = False,
    glob: str = "",
    **question: str,
) -> int:
    options = CodeSearchOptions(tree=tree, json=json, regex=regex, exact=exact, glob=glob, **question)  # type: ignore[arg-type]
    return search_code(options)


def test_a_folder_needs_no_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(str(root), query="load tile") == 0
    assert capsys.readouterr().out.startswith("include/tile.cuh:")
    assert ask(str(root), query="zebra") == 1


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        ({"outline": "run.py"}, "4-9: class Runner"),
        ({"read": "guide.md:5-7"}, "5: ## Bank conflicts"),
        ({"read": "guide.md"}, "1: # Guide"),
        ({"definition": "tile_kernel"}, "kernel demo::tile_kernel"),
        ({"uses": "load_tile"}, "test/test_tile.cu:1"),
    ],
)
def test_the_other_questions(
    tree: SourceTree, wanted: dict[str, str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("small", **wanted) == 0
    assert shown in capsys.readouterr().out


def test_json_rows_hold_what_the_text_shows(tree: SourceTree, capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in (
        {"query": "load tile"},
        {"outline": "run.py"},
        {"read": "guide.md"},
        {"definition": "run"},
        {"uses": "load_tile"},
    ):
        assert ask("small", json=True, **wanted) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert rows and all(row["path"] for row in rows)


def test_regex_and_exact(tree: SourceTree, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("small", regex=True, query=r"^def|^async def") == 0
    assert "run.py:12" in capsys.readouterr().out
    assert ask("small", exact=True, glob="*.md", query="load_tile(") == 1


def test_trees_are_added_listed_and_removed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("cutlass", add=f"mine={root}") == 0
    assert ask("cutlass") == 0
    assert f"mine: {root.resolve()}" in capsys.readouterr().out
    assert ask("cutlass", remove="mine") == 0
    with pytest.raises(BadInput, match="no tree named 'mine'"):
        ask("mine", query="x")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"query": "x", "uses": "y"}, "QUERY and --uses exclude each other: give only one of them"),
        ({"query": "x", "glob": "*.h"}, "--glob needs"),
        ({"add": "mine"}, "give NAME=PATH"),
        ({"outline": "missing.cu"}, "no such file"),
        ({"definition": "missing"}, "not defined"),
    ],
)
def test_misuse_is_one_line(tree: SourceTree, wanted: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ask("small", **wanted)
