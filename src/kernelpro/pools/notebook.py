"""What is defined in a notebook, as the text of a file: the statements of its cells that it needs, and no others.

A notebook's cells load data and train; a task needs the class, what the class names, what that names in turn, and so on.
A name is what the last statement that was run has made of it. Calls that change something are not followed.
"""

from __future__ import annotations

import ast
import pickle
import symtable
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType

from kernelpro.records import BadInput

_CALLED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""Statements that read most of their names only when they are called."""
_MAGIC = ("time", "capture", "prun")
"""Of cells, those that run them here."""
_INSIDE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""What they bind is theirs."""


@dataclass(frozen=True)
class Statement:
    place: int
    text: str
    binds: frozenset[str]
    """Names that it defines or changes."""
    reads: frozenset[str]
    waits: bool
    """It does so when it is called."""
    defines: bool
    """A function, a class or a module; nothing is computed."""


def source_of(names: Collection[str]) -> str | None:
    """The text of a file that defines what these names are in the notebook (or IPython) that is running; None where none does.
    Raises BadInput where that would open a file again, or something else that cannot be had twice."""
    main = sys.modules.get("__main__")
    shell = getattr(main, "get_ipython", lambda: None)()
    found = needed(shell.history_manager.input_hist_parsed, names) if shell and shell.history_manager else []
    for name in sorted({name for statement in found if not statement.defines for name in statement.binds}):
        _require_copies(name, getattr(main, name, None))
    return sliced(found) if found else None


def sliced(statements: list[Statement]) -> str:
    return "\n\n".join(statement.text for statement in statements) + "\n"


def needed(cells: list[str], names: Collection[str]) -> list[Statement]:
    """Of cells in the order in which they were run, the statements that these names need; none where one is not defined."""
    statements = list(_statements(cells))
    if not {name for statement in statements for name in statement.binds}.issuperset(names):
        return []
    taken = {s.place: s for s in statements if "*" in s.binds}
    waiting = [(name, len(statements)) for name in names]
    while waiting:
        wanted, before = waiting.pop()
        found = next((s for s in reversed(statements[:before]) if wanted in s.binds), None)
        if found and found.place not in taken:
            taken[found.place] = found
            waiting += [(read, len(statements) if found.waits else found.place) for read in found.reads]
    return [taken[place] for place in sorted(taken)]


def _require_copies(name: str, value: object) -> None:
    """Files, locks and connections are not made again behind somebody's back."""
    if isinstance(value, (FunctionType, ModuleType, type)):
        return
    try:
        pickle.Pickler(_Nowhere()).dump(value)
    except Exception as error:  # whatever a class raises that has no copies
        kind = type(value).__qualname__
        raise BadInput(
            f"{name} ({kind}) is needed and cannot be had again in a worker: {error}; make it where it is used"
        ) from None


class _Nowhere:
    def write(self, data: object) -> int:
        return len(memoryview(data))  # type: ignore[arg-type]


def _statements(cells: list[str]) -> Iterator[Statement]:
    """Those that bind a name."""
    place = 0
    for cell in cells:
        try:
            cell = _without_magic(cell)
            body = ast.parse(cell).body
        except SyntaxError:  # who ran it was told
            continue
        for node in body:
            if binds := frozenset(_bound(node)):
                text = _text(cell, node)
                added = (
                    binds if any(isinstance(n, ast.AugAssign) for n in ast.walk(node)) else frozenset[str]()
                )
                waits = isinstance(node, _CALLED)
                defines = waits or isinstance(node, (ast.Import, ast.ImportFrom))
                yield Statement(place, text, binds, _read(text) | added, waits, defines)
                place += 1


def _without_magic(cell: str) -> str:
    """What stands below `%%time` and the like, which run it as it is."""
    match ast.parse(cell).body:
        case [
            ast.Expr(
                ast.Call(
                    ast.Attribute(attr="run_cell_magic"), [ast.Constant(name), _, ast.Constant(str(text))]
                )
            )
        ]:
            return text if name in _MAGIC else ""
    return cell


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
