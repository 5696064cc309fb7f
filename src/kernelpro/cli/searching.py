"""`kernelpro search`: code search in CUTLASS, in trees with a name, and in any folder."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from kernelpro.library import asking, index, trees
from kernelpro.library.asking import Answer
from kernelpro.records import BadInput


@dataclass(frozen=True)
class Wanted:
    """What is asked: at most one of query, outline, read, definition, uses, add and remove."""

    query: str | None = None
    outline: str | None = None
    read: str | None = None
    definition: str | None = None
    uses: str | None = None
    add: str | None = None
    remove: str | None = None


def run(wanted: Wanted, where: str, regex: bool, exact: bool, glob: str, limit: int, json_lines: bool) -> int:
    """Exit code 0: found; 1: nothing found. No such tree, file or symbol is bad input. Without a question: the named trees."""
    given = [name for name, value in vars(wanted).items() if value is not None]
    if len(given) > 1:
        raise BadInput(f"give one of {', '.join(given)}, not {len(given)}")
    if glob and not (regex or exact):
        raise BadInput("--glob goes with --regex or --exact")
    if not given:
        return _trees(json_lines)
    if wanted.add is not None:
        name, equals, path = wanted.add.partition("=")
        if not equals:
            raise BadInput(f"--add {wanted.add}: give NAME=PATH")
        tree = trees.register(name, path)
        print(f"{tree.name}: {tree.root}")
        return 0
    if wanted.remove is not None:
        trees.forget(wanted.remove)
        return 0
    tree = _tree(where)
    if not (regex or exact or wanted.read is not None or index.built(tree, tree.listing())):
        print(f"kernelpro: indexing {tree.name}, once", file=sys.stderr)
    answer = _answer(wanted, tree, regex, exact, glob, limit)
    if json_lines:
        for row in answer.rows:
            print(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    else:
        print(answer.text)
    return 0 if answer.rows else 1


def _answer(wanted: Wanted, tree: trees.Tree, regex: bool, exact: bool, glob: str, limit: int) -> Answer:
    if wanted.outline is not None:
        return asking.outline(tree, wanted.outline)
    if wanted.read is not None:
        return asking.read(tree, *_span(wanted.read))
    if wanted.definition is not None:
        return asking.definition(tree, wanted.definition, limit)
    if wanted.uses is not None:
        return asking.uses(tree, wanted.uses, limit)
    if regex or exact:
        return asking.grep(tree, wanted.query or "", regex, glob, False, limit)
    return asking.search(tree, wanted.query or "", limit)


def _tree(where: str) -> trees.Tree:
    """A name first; else a folder."""
    if where in trees.known() or where == "cutlass" or not Path(where).expanduser().is_dir():
        return trees.named(where)
    root = Path(where).expanduser().resolve()
    return trees.Tree(root.name or str(root), root)


def _span(given: str) -> tuple[str, int, int]:
    """PATH, PATH:10 or PATH:10-60."""
    if match := re.fullmatch(r"(.+?):(\d{1,9})(?:-(\d{1,9}))?", given):
        return match[1], int(match[2]), int(match[3] or 0)
    return given, 1, 0


def _trees(json_lines: bool) -> int:
    known = trees.known()
    for tree in known.values():
        print(
            json.dumps({"tree": tree.name, "path": str(tree.root)})
            if json_lines
            else f"{tree.name}: {tree.root}"
        )
    if not known and not json_lines:
        print("no tree yet: pip install --no-deps nvidia-cutlass, or kernelpro search --add NAME=PATH")
    return 0 if known else 1
