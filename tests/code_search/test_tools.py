"""What agents call: text in, text out, confined to the tree, bounded, and never a traceback."""

from __future__ import annotations

import inspect
import time
from pathlib import Path

import pytest

from kernelpro.code_search import (
    TOOLS,
    SourceTree,
    definition,
    forget,
    grep,
    known_trees,
    line_search,
    outline,
    read,
    register,
    search,
    uses,
)
from kernelpro.records import BadInput


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_schemas_agree_with_the_functions(tool: object) -> None:
    signature = inspect.signature(tool.function)  # type: ignore[attr-defined]
    schema = tool.parameters  # type: ignore[attr-defined]
    assert set(schema["properties"]) == set(signature.parameters)
    assert schema["required"] == [
        name for name, p in signature.parameters.items() if p.default is inspect.Parameter.empty
    ]


def test_search_shows_path_lines_and_symbol(tree: SourceTree) -> None:
    first = search("load tile", "small").split("\n")[0]
    assert first.startswith("include/tile.cuh:") and first.endswith("demo::load_tile")


@pytest.mark.parametrize(
    "query", ["loadTile", "LOAD_TILE", "loading tiles", "tensor memory accelerator", "tmem accelerator"]
)
def test_words_meet_identifiers_however_they_are_written(tree: SourceTree, query: str) -> None:
    assert search(query, "small").startswith("include/tile.cuh:")


def test_the_header_stands_before_the_test(tree: SourceTree) -> None:
    text = search("load_tile", "small")
    assert text.index("include/tile.cuh") < text.index("test/test_tile.cu")


def test_unicode_is_found_and_shown(tree: SourceTree) -> None:
    assert "größe" in search("größe", "small")
    assert "run.py" in search("排队", "small")
    assert "naïve" in grep("naïve", "small")
    assert "run.py:8-9: function Runner.größe" in definition("größe", "small")


def test_definition_uses_outline_and_read(tree: SourceTree) -> None:
    assert "include/tile.cuh:10-13: function demo::load_tile" in definition("load_tile", "small")
    assert definition("TileLoader::run", "small").startswith("include/tile.cuh:22-25")
    assert definition("tileloader", "small").startswith("include/tile.cuh:15-28: struct demo::TileLoader")
    assert uses("load_tile", "small").split("\n") == [
        "include/tile.cuh:24: load_tile(nullptr);",
        "test/test_tile.cu:1: void check() { load_tile(1); }",
    ]
    assert "  22-25: function run" in outline("tile.cuh", "small")
    assert (
        read("guide.md", 5, 7, "small")
        == "guide.md: lines 5-7 of 11\n5: ## Bank conflicts\n6: \n7: Pad the rows."
    )


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "include/../../secret",
        ".secret.py",
        "picture.png",
        "~/x",
        "",
        "a\0b",
        "x" * 9999,
    ],
)
def test_paths_lead_nowhere_but_to_files_of_the_tree(tree: SourceTree, path: str) -> None:
    for function in (read, outline):
        assert function(path, tree="small").startswith("error: ")


def test_links_are_not_followed(tree: SourceTree, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "hidden.py").write_text("def stolen(): pass\n")
    (root / "link.py").symlink_to(outside / "hidden.py")
    (root / "folder").symlink_to(outside)
    assert read("link.py", tree="small").startswith("error: ")
    assert read("folder/hidden.py", tree="small").startswith("error: ")
    assert "no line matches" in grep("stolen", "small")
    assert "not defined" in definition("stolen", "small")


def test_agents_name_trees_and_not_folders(tree: SourceTree, root: Path) -> None:
    assert search("tile", str(root)).startswith("error: no tree named")


def test_wrong_arguments_are_worded(tree: SourceTree) -> None:
    assert search(3).startswith("error: query=3: must be text")  # type: ignore[arg-type]
    assert search("x", limit=True) == "error: limit=True: must be a whole number"
    assert search("x", "small", 0).startswith("error: limit=0")
    assert search("  ", "small").startswith("error: query: empty")
    assert search("x" * 401, "small").startswith("error: query: 401 characters")
    assert search(query="x", colour="red").startswith("error: got an unexpected")  # type: ignore[call-arg]
    assert read("guide.md", 9, 5, "small").startswith("error: lines 9-5")
    assert read("guide.md", 99, tree="small").endswith("guide.md: start=99 is beyond its 11 lines")
    assert definition("a b", "small").startswith("error: 'a b': use one name")
    assert (
        uses("load_tyle", "small")
        == "error: load_tyle: not in the tree; near: load_tile; names are case-sensitive"
    )
    assert read("tile", tree="small").endswith("did you mean include/tile.cuh, test/test_tile.cu?")


@pytest.mark.parametrize(
    "query", ['"', "a AND", "NEAR(", "*", "col:x", "'; DROP TABLE words; --", "^", "()", "\ud800", "?" * 300]
)
def test_queries_are_words_and_no_syntax(tree: SourceTree, query: str) -> None:
    assert not search(query, "small").startswith("error")


def test_results_are_bounded_and_say_so(tree: SourceTree, root: Path) -> None:
    (root / "many.cu").write_text("\n".join(f"void f{n}() {{ needle({'x' * 500}); }}" for n in range(3000)))
    (root / "wide.cu").write_text("needle " + "y" * 100_000)
    text = grep("needle", "small", limit=5)
    assert len(text) < 3000 and "(shown 5 of at least 2000 lines" in text and "narrow with glob" in text
    assert "(shown 20 of 2000 lines" not in uses("needle", "small") and "at least" in uses("needle", "small")
    assert len(read("wide.cu", tree="small")) < 400
    long = read("many.cu", 1, 3000, "small")
    assert long.count("\n") == 401 and long.endswith("continue with start=401)")
    assert outline("many.cu", "small").count("\n") <= 301
    assert "more match" in search("needle", "small", 2)
    assert len(search("needle", "small", 10_000)) < 60_000


def test_grep_globs_and_expressions(tree: SourceTree) -> None:
    assert (
        grep(r"tile_?kernel\(", "small", regex=True)
        == "include/tile.cuh:33: __global__ void __launch_bounds__(TILE_SIZE) tile_kernel(float* out) {"
    )
    assert "tile.cuh" not in grep("load_tile", "small", glob="test/**")
    assert "test_tile" not in grep("load_tile", "small", glob="*.cuh")
    assert "no line matches" in grep("LOAD_TILE", "small")
    assert "load_tile" in grep("LOAD_TILE", "small", ignore_case=True)
    assert grep("(", "small", regex=True).startswith("error: '(': invalid regular expression")
    assert "test_tile.cu:1" in grep("load_tile(", "small")
    assert grep("", "small").startswith("error: pattern: use")


def test_a_pattern_that_never_ends_is_stopped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "trap.py").write_text("a" * 5000 + "!\n")
    tree = SourceTree("t", root)
    began = time.monotonic()
    found = line_search.grep(tree, tree.listing(), "(a+)+$", True, "", False, seconds=0.5)
    assert found.timed_out and not found.complete and time.monotonic() - began < 5


def test_an_empty_tree(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    register("void", str(tmp_path / "empty"))
    assert search("anything", "void").startswith("nothing matches")
    assert grep("anything", "void").startswith("no line matches")
    assert definition("anything", "void").startswith("error: anything: not defined")
    assert read("x", tree="void").startswith("error: ")


def test_the_same_question_has_the_same_answer(tree: SourceTree, root: Path) -> None:
    for number in range(20):
        (root / f"same{number}.cu").write_text("void twin() { equal(); }\n")
    answers = {search("twin equal", "small", 20) for _ in range(3)}
    assert len(answers) == 1 and [f"same{n}" in answers.pop() for n in (0,)] == [True]


def test_names_are_registered_and_forgotten(tree: SourceTree, root: Path) -> None:
    assert known_trees()["small"].root == root.resolve()
    forget("small")
    assert "small" not in known_trees()
    for name, path in (("a/b", "."), ("cutlass", "."), ("", "."), ("x", str(root / "missing"))):
        with pytest.raises(BadInput):
            register(name, path)
    with pytest.raises(BadInput):
        forget("small")
