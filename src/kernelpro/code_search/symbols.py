"""Finds the definitions and uses of a symbol, and the outline of a file."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from kernelpro.code_search.index import TreeIndex
from kernelpro.code_search.ranking import file_weight
from kernelpro.code_search.scanner import KINDS
from kernelpro.code_search.tokenizer import tokens
from kernelpro.code_search.trees import NotFound, SourceTree
from kernelpro.records import BadInput

_SYMBOL = re.compile(r"(?:::)?~?\w+(?:(?:::|\.)~?\w+)*")
MAX_USES = 2000
"""The search stops after this many lines: such a name is a word of the language."""


@dataclass(frozen=True)
class SymbolLocation:
    """A definition: its path, lines and qualified name."""

    path: str
    line: int
    end: int
    kind: str
    qualified: str
    depth: int = 0


def find_definitions(index: TreeIndex, symbol: str) -> list[SymbolLocation]:
    """Return the definitions of a name (`copy`, `TiledCopy::get_slice`), most relevant first.

    If there are none, names that differ only in case are returned.
    """
    parts = _parts(symbol)
    rows = index.db.execute(
        "SELECT path, line, end, kind, qualified, name FROM definition JOIN file ON file.id = definition.file"
        " WHERE lower = ?",
        (parts[-1].lower(),),
    ).fetchall()
    same_case = [row for row in rows if row[5] == parts[-1]]
    found = []
    for path, line, end, kind, qualified, _ in same_case or rows:
        outer = re.split(r"::|\.", qualified.split("<")[0].lower())[:-1]
        if (
            not len(parts) > 1
            or [part.lower() for part in parts[:-1]] == outer[len(outer) - len(parts) + 1 :]
        ):
            found.append(SymbolLocation(path, line, end, kind, qualified))
    if not found:
        raise NotFound(
            f"{symbol}: not defined in the tree{_suggest(index, parts[-1])}; `search` finds words, `grep` any"
            " text"
        )
    return sorted(found, key=_relevance)


def _relevance(location: SymbolLocation) -> tuple[bool, bool, float, int, str, int]:
    """Sort key: bodies before aliases and declarations, types before constructors, headers before tests."""
    parts = re.split(r"::|\.", location.qualified.split("<")[0])
    constructor = len(parts) > 1 and parts[-1].lstrip("~") == parts[-2]
    kind = KINDS.index(location.kind)
    return (
        kind >= KINDS.index("alias"),
        constructor,
        -file_weight(location.path),
        kind,
        location.path,
        location.line,
    )


def find_uses(index: TreeIndex, tree: SourceTree, symbol: str) -> tuple[list[tuple[str, int, str]], bool]:
    """Return the lines that use a name, and whether these are all.

    Examples come first, then the library, then the rest.
    """
    name = _parts(symbol)[-1]
    if not (name_tokens := tokens(name)):
        raise BadInput(f"{symbol}: too short for the index; use grep with regex")
    token = name_tokens[-1]
    spans: dict[str, list[tuple[int, int]]] = {}
    for path, start, end in index.db.execute(
        "SELECT file.path, start, end FROM words JOIN chunk ON chunk.id = words.rowid JOIN file ON file.id ="
        " chunk.file WHERE words MATCH ?",
        (f'body : "{token}"',),
    ):
        spans.setdefault(path, []).append((start, end))
    where = "SELECT path, line FROM definition JOIN file ON file.id = definition.file WHERE name = ?"
    defining = set(index.db.execute(where, (name,)).fetchall())
    pattern = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    found: list[tuple[str, int, str]] = []
    for path in sorted(spans, key=lambda p: (_use_order(p), p)):
        lines = tree.lines(path)
        for start, end in sorted(spans[path]):
            for number, line in enumerate(lines[start - 1 : end], start):
                if pattern.search(line) and (path, number) not in defining:
                    found.append((path, number, line))
        if len(found) > MAX_USES:
            return found[:MAX_USES], False
    if not found and not defining:
        raise NotFound(f"{symbol}: not in the tree{_suggest(index, name)}; names are case-sensitive")
    return found, True


def outline(index: TreeIndex, path: str) -> list[SymbolLocation]:
    """Return the definitions of a file in order."""
    rows = index.db.execute(
        "SELECT path, line, end, kind, qualified FROM definition JOIN file ON file.id = definition.file"
        " WHERE path = ? ORDER BY start, -end",
        (path,),
    ).fetchall()
    locations: list[SymbolLocation] = []
    open_until: list[int] = []
    for path, line, end, kind, qualified in rows:
        while open_until and (open_until[-1] < line or kind == "macro"):
            open_until.pop()
        locations.append(SymbolLocation(path, line, end, kind, qualified, len(open_until)))
        if kind not in ("alias", "declaration", "macro"):
            open_until.append(end)
    return locations


def _parts(symbol: str) -> list[str]:
    text = symbol.strip()
    if len(text) <= 200 and (
        match := re.fullmatch(r"((?:\w+::)*)operator\s*(\(\)|\[\]|[^\s\w()]{1,3})", text)
    ):
        return [*match[1].split("::")[:-1], f"operator{match[2]}"]
    bare = text.removesuffix("()").split("<")[0]
    if len(text) > 200 or not _SYMBOL.fullmatch(bare):
        raise BadInput(f"{symbol[:80]!r}: use one name, such as TiledCopy or cute::make_layout")
    return [part for part in re.split(r"::|\.", bare) if part]


def _suggest(index: TreeIndex, name: str) -> str:
    """Suggest names that contain `name` or are spelled similarly."""
    like = name.lower().replace("\\", "").replace("%", "").replace("_", r"\_")
    rows = index.db.execute(
        r"SELECT DISTINCT name FROM definition WHERE lower LIKE ? ESCAPE '\' ORDER BY length(name), name"
        r" LIMIT 5",
        (f"%{like}%",),
    ).fetchall()
    if not rows:
        alike = index.db.execute(
            "SELECT DISTINCT name FROM definition WHERE lower LIKE ?", (f"{name[:2].lower()}%",)
        ).fetchall()
        rows = [(near,) for near in difflib.get_close_matches(name, sorted(row[0] for row in alike), 5)]
    return f"; near: {', '.join(row[0][:80] for row in rows)}" if rows else ""


def _use_order(path: str) -> int:
    if "examples" in path.split("/") or path.endswith((".md", ".ipynb")):
        return 0
    return 1 if file_weight(path) > 0.8 else 2
