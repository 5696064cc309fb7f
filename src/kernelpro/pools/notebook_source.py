"""Extracts definitions of a notebook as the text of a file: the statements that they need, and no others.

A notebook's cells also load data and train. A task needs only its class, the names to which the class refers,
the names to which those refer, and so on. A name refers to the last executed statement that bound it. Calls
that mutate objects are not followed.
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

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""Statements that read most of their names only when the defined object is called."""
_RUNNING_MAGICS = ("time", "capture", "prun")
"""Cell magics that run the cell in this process."""
_OWN_SCOPE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Nodes with a scope of their own: the names that they bind are not bound in the cell."""


@dataclass(frozen=True)
class Statement:
    """A statement of a cell that binds names."""

    index: int
    text: str
    binds: frozenset[str]
    """Names that it defines or changes."""
    reads: frozenset[str]
    """Global names that it reads."""
    deferred: bool
    """Whether it reads its names when it is called, not when it is executed."""
    defines: bool
    """Whether it binds a function, a class or a module and computes nothing."""


def source_of(names: Collection[str]) -> str | None:
    """The text of a file that defines these names as the running notebook or IPython does; None without one.

    Raises BadInput if the file would recreate a value that cannot be copied, such as an open file.
    """
    main = sys.modules.get("__main__")
    shell = getattr(main, "get_ipython", lambda: None)()
    history = getattr(shell, "history_manager", None)
    statements = required_statements(history.input_hist_parsed, names) if history else []
    computed = {name for statement in statements if not statement.defines for name in statement.binds}
    for name in sorted(computed):
        _require_picklable(name, getattr(main, name, None))
    return join_statements(statements) if statements else None


def join_statements(statements: list[Statement]) -> str:
    """The text of a file with these statements."""
    return "\n\n".join(statement.text for statement in statements) + "\n"


def required_statements(cells: list[str], names: Collection[str]) -> list[Statement]:
    """The statements that these names need, in order; none if a name is not defined. `cells`: in execution
    order."""
    statements = list(_statements(cells))
    if not {name for statement in statements for name in statement.binds}.issuperset(names):
        return []
    required = {s.index: s for s in statements if "*" in s.binds}
    unresolved = [(name, len(statements)) for name in names]
    while unresolved:
        name, before = unresolved.pop()
        statement = next((s for s in reversed(statements[:before]) if name in s.binds), None)
        if statement and statement.index not in required:
            required[statement.index] = statement
            end = len(statements) if statement.deferred else statement.index
            unresolved += [(read, end) for read in statement.reads]
    return [required[index] for index in sorted(required)]


def _require_picklable(name: str, value: object) -> None:
    """Raise BadInput for values such as files, locks and connections, which must not be created twice."""
    if isinstance(value, (FunctionType, ModuleType, type)):
        return
    try:
        pickle.Pickler(_NullWriter()).dump(value)
    except Exception as error:  # a class may raise anything
        kind = type(value).__qualname__
        raise BadInput(
            f"{name} ({kind}) is referenced and cannot be copied to a worker: {error}; "
            "create it where it is used"
        ) from None


class _NullWriter:
    def write(self, data: object) -> int:
        return len(memoryview(data))  # type: ignore[arg-type]


def _statements(cells: list[str]) -> Iterator[Statement]:
    """The statements that bind a name."""
    index = 0
    for cell in cells:
        try:
            cell = _without_magic(cell)
            body = ast.parse(cell).body
        except SyntaxError:  # IPython has reported it
            continue
        for node in body:
            if binds := frozenset(_bound_names(node)):
                text = _statement_text(cell, node)
                augmented = (
                    binds if any(isinstance(n, ast.AugAssign) for n in ast.walk(node)) else frozenset[str]()
                )
                deferred = isinstance(node, _DEFINITIONS)
                defines = deferred or isinstance(node, (ast.Import, ast.ImportFrom))
                yield Statement(index, text, binds, _read_names(text) | augmented, deferred, defines)
                index += 1


def _without_magic(cell: str) -> str:
    """The cell without a first-line magic such as `%%time`, which runs the cell unchanged. Empty for other
    cell magics."""
    match ast.parse(cell).body:
        case [
            ast.Expr(
                ast.Call(
                    ast.Attribute(attr="run_cell_magic"), [ast.Constant(name), _, ast.Constant(str(text))]
                )
            )
        ]:
            return text if name in _RUNNING_MAGICS else ""
    return cell


def _bound_names(node: ast.AST) -> Iterator[str]:
    """The names that a node binds, and those whose attributes or items it sets."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
    elif isinstance(node, _DEFINITIONS):
        yield node.name
    elif isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield node.id
    elif isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        yield from (n.id for n in ast.walk(node.value) if isinstance(n, ast.Name))
    elif not isinstance(node, _OWN_SCOPE):
        for child in ast.iter_child_nodes(node):
            yield from _bound_names(child)


def _read_names(text: str) -> frozenset[str]:
    """The global names that a statement reads."""
    top = symtable.symtable(text, "cell", "exec")
    names = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    scopes = top.get_children()
    while scopes:
        inner = scopes.pop()
        names |= {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global()}
        scopes += inner.get_children()
    return frozenset(names)


def _statement_text(cell: str, node: ast.stmt) -> str:
    decorators = getattr(node, "decorator_list", ())
    if not decorators:
        return ast.get_source_segment(cell, node) or ""
    return "\n".join(cell.splitlines()[decorators[0].lineno - 1 : node.end_lineno])
