"""What is defined in a notebook, as the text of a file: the statements of its cells that it needs, and no others.

A notebook's cells load data and train; a task needs the class, what the class names, what that names in turn, and so on.
A name is what the last statement that was run has made of it. Calls that change something are not followed.
"""

from __future__ import annotations

import ast
import symtable
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_CALLED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""Statements that read most of their names only when they are called."""
_INSIDE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""What they bind is theirs."""


@dataclass(frozen=True)
class _Statement:
    place: int
    text: str
    binds: frozenset[str]
    """Names that it defines or changes."""
    reads: frozenset[str]
    waits: bool
    """It does so when it is called."""


def source_of(names: Collection[str]) -> str | None:
    """The text of a file that defines what these names are in the notebook (or IPython) that is running; None where none does."""
    shell = getattr(sys.modules.get("__main__"), "get_ipython", lambda: None)()
    return sliced(shell.history_manager.input_hist_parsed, names) if shell and shell.history_manager else None


def sliced(cells: list[str], names: Collection[str]) -> str | None:
    """Of cells in the order in which they were run, the statements that these names need; None where one is not defined."""
    statements = list(_statements(cells))
    if not {name for statement in statements for name in statement.binds}.issuperset(names):
        return None
    needed = {s.place: s for s in statements if "*" in s.binds}
    waiting = [(name, len(statements)) for name in names]
    while waiting:
        wanted, before = waiting.pop()
        found = next((s for s in reversed(statements[:before]) if wanted in s.binds), None)
        if found and found.place not in needed:
            needed[found.place] = found
            waiting += [(read, len(statements) if found.waits else found.place) for read in found.reads]
    return "\n\n".join(needed[place].text for place in sorted(needed)) + "\n"


def _statements(cells: list[str]) -> Iterator[_Statement]:
    """Those that bind a name."""
    place = 0
    for cell in cells:
        try:
            body = ast.parse(cell).body
        except SyntaxError:  # who ran it was told
            continue
        for node in body:
            if binds := frozenset(_bound(node)):
                text = _text(cell, node)
                added = binds if any(isinstance(n, ast.AugAssign) for n in ast.walk(node)) else frozenset[str]()
                yield _Statement(place, text, binds, _read(text) | added, isinstance(node, _CALLED))
                place += 1


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that it defines, or whose attributes or items it sets."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
    elif isinstance(node, _CALLED):
        yield node.name
    elif isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield node.id
    elif isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        yield from (n.id for n in ast.walk(node.value) if isinstance(n, ast.Name))
    elif not isinstance(node, _INSIDE):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def _read(text: str) -> frozenset[str]:
    """Names of the notebook that it reads; what is local to its functions is not."""
    top = symtable.symtable(text, "cell", "exec")
    found = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    waiting = top.get_children()
    while waiting:
        inner = waiting.pop()
        found |= {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global()}
        waiting += inner.get_children()
    return frozenset(found)


def _text(cell: str, node: ast.stmt) -> str:
    decorators = getattr(node, "decorator_list", ())
    if not decorators:
        return ast.get_source_segment(cell, node) or ""
    return "\n".join(cell.splitlines()[decorators[0].lineno - 1 : node.end_lineno])
