"""Where a name is defined, where it is used, and what a file defines."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from kernelpro.library.index import Index
from kernelpro.library.ranking import place
from kernelpro.library.scanner import KINDS
from kernelpro.library.trees import NotFound, Tree
from kernelpro.library.words import tokens
from kernelpro.records import BadInput

_SYMBOL = re.compile(r"(?:::)?~?\w+(?:(?:::|\.)~?\w+)*")
MOST_USES = 2000
"""Lines that are counted; a name beyond is a word of the language."""


@dataclass(frozen=True)
class Place:
    """A definition: its path, its lines, and the text of its head."""

    path: str
    line: int
    end: int
    kind: str
    qualified: str
    depth: int = 0


def defined(index: Index, symbol: str) -> list[Place]:
    """All definitions of a name (`copy`, `TiledCopy::get_slice`), the most telling first; a name in other case if there is none."""
    parts = _parts(symbol)
    rows = index.db.execute(
        "SELECT path, line, end, kind, qualified, name FROM definition JOIN file ON file.id = definition.file WHERE lower = ?",
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
            found.append(Place(path, line, end, kind, qualified))
    if not found:
        raise NotFound(
            f"{symbol}: not defined in the tree{_suggest(index, parts[-1])}; `search` finds words, `grep` any text"
        )
    return sorted(found, key=_telling)


def _telling(spot: Place) -> tuple[bool, bool, float, int, str, int]:
    """Sorts definitions: bodies before aliases and declarations, types before their constructors, headers before tests."""
    parts = re.split(r"::|\.", spot.qualified.split("<")[0])
    constructor = len(parts) > 1 and parts[-1].lstrip("~") == parts[-2]
    kind = KINDS.index(spot.kind)
    return kind >= KINDS.index("alias"), constructor, -place(spot.path), kind, spot.path, spot.line


def used(index: Index, tree: Tree, symbol: str) -> tuple[list[tuple[str, int, str]], bool]:
    """Lines that hold the name and do not define it: examples first, then the library, then the rest. And whether that is all."""
    name = _parts(symbol)[-1]
    if not (made := tokens(name)):
        raise BadInput(f"{symbol}: too short to be indexed; grep with regex finds it")
    token = made[-1]
    spans: dict[str, list[tuple[int, int]]] = {}
    for path, start, end in index.db.execute(
        "SELECT file.path, start, end FROM words JOIN chunk ON chunk.id = words.rowid JOIN file ON file.id = chunk.file"
        " WHERE words MATCH ?",
        (f'body : "{token}"',),
    ):
        spans.setdefault(path, []).append((start, end))
    where = "SELECT path, line FROM definition JOIN file ON file.id = definition.file WHERE name = ?"
    defining = set(index.db.execute(where, (name,)).fetchall())
    pattern = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    found: list[tuple[str, int, str]] = []
    for path in sorted(spans, key=lambda p: (_showing(p), p)):
        lines = tree.lines(path)
        for start, end in sorted(spans[path]):
            for number, line in enumerate(lines[start - 1 : end], start):
                if pattern.search(line) and (path, number) not in defining:
                    found.append((path, number, line))
        if len(found) > MOST_USES:
            return found[:MOST_USES], False
    if not found and not defining:
        raise NotFound(f"{symbol}: not in the tree{_suggest(index, name)}; the case of letters counts")
    return found, True


def outline(index: Index, path: str) -> list[Place]:
    """What a listed file defines, in order."""
    rows = index.db.execute(
        "SELECT path, line, end, kind, qualified FROM definition JOIN file ON file.id = definition.file"
        " WHERE path = ? ORDER BY start, -end",
        (path,),
    ).fetchall()
    made: list[Place] = []
    open_until: list[int] = []
    for path, line, end, kind, qualified in rows:
        while open_until and (open_until[-1] < line or kind == "macro"):
            open_until.pop()
        made.append(Place(path, line, end, kind, qualified, len(open_until)))
        if kind not in ("alias", "declaration", "macro"):
            open_until.append(end)
    return made


def _parts(symbol: str) -> list[str]:
    given = symbol.strip()
    if len(given) <= 200 and (
        match := re.fullmatch(r"((?:\w+::)*)operator\s*(\(\)|\[\]|[^\s\w()]{1,3})", given)
    ):
        return [*match[1].split("::")[:-1], f"operator{match[2]}"]
    bare = given.removesuffix("()").split("<")[0]
    if len(given) > 200 or not _SYMBOL.fullmatch(bare):
        raise BadInput(f"{symbol[:80]!r}: give one name, such as TiledCopy or cute::make_layout")
    return [part for part in re.split(r"::|\.", bare) if part]


def _suggest(index: Index, name: str) -> str:
    """Names that contain it, or are spelt much like it."""
    like = name.lower().replace("\\", "").replace("%", "").replace("_", r"\_")
    rows = index.db.execute(
        r"SELECT DISTINCT name FROM definition WHERE lower LIKE ? ESCAPE '\' ORDER BY length(name), name LIMIT 5",
        (f"%{like}%",),
    ).fetchall()
    if not rows:
        alike = index.db.execute(
            "SELECT DISTINCT name FROM definition WHERE lower LIKE ?", (f"{name[:2].lower()}%",)
        ).fetchall()
        rows = [(near,) for near in difflib.get_close_matches(name, sorted(row[0] for row in alike), 5)]
    return f"; near: {', '.join(row[0][:80] for row in rows)}" if rows else ""


def _showing(path: str) -> int:
    if "examples" in path.split("/") or path.endswith((".md", ".ipynb")):
        return 0
    return 1 if place(path) > 0.8 else 2
