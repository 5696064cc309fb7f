"""`kernelpro code-search`: searches CUTLASS, named source trees, and any folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kernelpro.cli.commands.code_search import CodeSearchOptions
from kernelpro.cli.errors import print_error
from kernelpro.code_search import index, queries, trees
from kernelpro.code_search.queries import SearchAnswer
from kernelpro.records import BadInput

_ACTIONS = {
    "query": "QUERY",
    "outline": "--outline",
    "read": "--read",
    "definition": "--def",
    "uses": "--uses",
    "add": "--add",
    "remove": "--remove",
}
"""The options that select an action, by field."""


def search_code(options: CodeSearchOptions) -> int:
    """Answer one question about a source tree; return 0 if something was found, else 1."""
    actions = [option for name, option in _ACTIONS.items() if getattr(options, name) is not None]
    if len(actions) > 1:
        raise BadInput(f"{' and '.join(actions)} exclude each other: give only one of them")
    if options.glob and not (options.regex or options.exact):
        raise BadInput("--glob needs --regex or --exact")
    if not actions:
        return _list_trees(options.json)
    if options.add is not None:
        name, equals, path = options.add.partition("=")
        if not equals:
            raise BadInput(f"--add {options.add}: give NAME=PATH")
        tree = trees.register(name, path)
        print(f"{tree.name}: {tree.root}")
        return 0
    if options.remove is not None:
        trees.forget(options.remove)
        return 0
    tree = _tree(options.tree)
    needs_index = not (options.regex or options.exact or options.read is not None)
    if needs_index and not index.is_built(tree, tree.listing()):
        print_error(f"indexing {tree.name}, once")
    answer = _answer(options, tree)
    if options.json:
        for row in answer.rows:
            print(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    else:
        print(answer.text)
    return 0 if answer.rows else 1


def _answer(options: CodeSearchOptions, tree: trees.SourceTree) -> SearchAnswer:
    if options.outline is not None:
        return queries.outline(tree, options.outline)
    if options.read is not None:
        return queries.read(tree, *_span(options.read))
    if options.definition is not None:
        return queries.definition(tree, options.definition, options.limit)
    if options.uses is not None:
        return queries.uses(tree, options.uses, options.limit)
    if options.regex or options.exact:
        return queries.grep(tree, options.query or "", options.regex, options.glob, False, options.limit)
    return queries.search(tree, options.query or "", options.limit)


def _tree(where: str) -> trees.SourceTree:
    """The tree with this name, else the folder at this path."""
    if where in trees.known_trees() or where == "cutlass" or not Path(where).expanduser().is_dir():
        return trees.get_tree(where)
    root = Path(where).expanduser().resolve()
    return trees.SourceTree(root.name or str(root), root)


def _span(text: str) -> tuple[str, int, int]:
    """Path, first and last line of PATH, PATH:10 or PATH:10-60."""
    if match := re.fullmatch(r"(.+?):(\d{1,9})(?:-(\d{1,9}))?", text):
        return match[1], int(match[2]), int(match[3] or 0)
    return text, 1, 0


def _list_trees(as_json: bool) -> int:
    known = trees.known_trees()
    for tree in known.values():
        print(
            json.dumps({"tree": tree.name, "path": str(tree.root)})
            if as_json
            else f"{tree.name}: {tree.root}"
        )
    if not known and not as_json:
        print(
            "no source tree yet: pip install --no-deps nvidia-cutlass, "
            "or kernelpro code-search --add NAME=PATH"
        )
    return 0 if known else 1
