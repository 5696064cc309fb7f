"""Definitions are found in source as it is written, not only in source that parses."""

from __future__ import annotations

import pytest
from code_search.samples import GUIDE, KERNEL, SCRIPT

from kernelpro.code_search.chunks import MAX_CHUNK_LINES, chunks
from kernelpro.code_search.scanner import definitions


def found(path: str, text: str) -> dict[str, str]:
    return {d.qualified: d.kind for d in definitions(path, text)}


def test_cuda_definitions_with_their_kinds_and_scopes() -> None:
    assert found("tile.cuh", KERNEL) == {
        "TILE_SIZE": "macro",
        "demo::load_tile": "function",
        "demo::TileLoader": "struct",
        "demo::TileLoader::Element": "alias",
        "demo::TileLoader::TileLoader": "function",
        "demo::TileLoader::operator()": "function",
        "demo::TileLoader::run": "function",
        "demo::TileLoader::declared": "declaration",
        "demo::Traits<TileLoader>": "struct",
        "demo::Traits::Mode": "enum",
        "demo::tile_kernel": "kernel",
    }


def test_lines_begin_at_the_template_and_end_at_the_brace() -> None:
    load = next(d for d in definitions("tile.cuh", KERNEL) if d.name == "load_tile")
    lines = KERNEL.split("\n")
    assert lines[load.start - 1].startswith("template")
    assert "load_tile" in lines[load.line - 1]
    assert lines[load.end - 1] == "}"


def test_python_and_markdown() -> None:
    assert found("run.py", SCRIPT) == {
        "Runner": "class",
        "Runner.größe": "function",
        "schedule_tiles": "function",
    }
    assert found("guide.md", GUIDE) == {"Guide": "section", "Bank conflicts": "section"}


@pytest.mark.parametrize(
    "source",
    [
        "}}}}",
        "{" * 500,
        '"unterminated',
        "/* open",
        "#if\n#else\n#endif\n#endif",
        "struct",
        "template <",
        'R"x(',
        "a" * 100_000,
        "\x00\ufffd",
    ],
)
def test_nothing_breaks_the_scanner(source: str) -> None:
    definitions("broken.cu", source)
    definitions("broken.cu", source + "\nvoid after() {}\n" + source)


def test_chunks_cover_every_line_but_the_licence_once_and_stay_small() -> None:
    text = (
        KERNEL
        + "\n".join(f"void f{n}() {{\n  work({n});\n}}\n" for n in range(100))
        + "void long_one() {\n"
        + "  step();\n" * 300
        + "}\n"
    )
    lines = text.removesuffix("\n").split("\n")
    made = list(chunks(lines, definitions("x.cu", text)))
    covered = [line for chunk in made for line in range(chunk.start, chunk.end + 1)]
    assert covered == list(range(2, len(lines) + 1))
    assert max(chunk.end - chunk.start + 1 for chunk in made) <= MAX_CHUNK_LINES + 8
    assert {name for chunk in made for name in chunk.names} >= {f"f{n}" for n in range(100)}
    assert made[-1].symbol == "long_one"
