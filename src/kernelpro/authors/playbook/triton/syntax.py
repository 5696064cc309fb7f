"""Triton's words: types, operators, masked loads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.codegen import python_module as frame
from kernelpro.authors.playbook.codegen.printer import Names, Printer
from kernelpro.authors.playbook.schedule.design import APPROXIMABLE_FUNCTIONS
from kernelpro.authors.playbook.schedule.masked_loads import Predicate, maximum_over
from kernelpro.authors.playbook.ir.expressions import FLOATING, Expr, itemsize
from kernelpro.authors.playbook.ir.indices import Atom, IndexExpr, IndirectIndex, LoopVar, variable
from kernelpro.authors.playbook.ir.stages import Program

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|"}
_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_CALLS = {
    op: f"tl.{op}" for op in ("exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos", "floor", "ceil", "abs")
}
_OWN = {op: f"{op}_" for op in ("tanh", "expm1", "log1p", "round", "trunc", "pow", "fmod")}
_FAST = {"exp": "exp_", "log": "log_", "div": "divided"}
_CHEAP = {op: f"{op}_" for op in APPROXIMABLE_FUNCTIONS}
_FAST_BY_MODE: dict[str, dict[str, str]] = {"library": {}, "fast": _FAST, "approximate": _FAST | _CHEAP}
"""Functions of triton_functions.py that stand for Triton's own, in float32, by a design's mathematics."""
_COMBINE_FUNCTIONS = {"prod": "multiplied", "max": "larger", "min": "smaller"}
"""Functions that make one number of two."""
_SMALLEST = {"int64": -(2**63), "int32": -(2**31), "int8": -128, "uint8": 0, "bool": False}
_LARGEST = {"int64": 2**63 - 1, "int32": 2**31 - 1, "int8": 127, "uint8": 255, "bool": True}
_PROMOTED_DTYPES = ("int8", "uint8", "bool")
"""Types of which `tl.max` and `tl.min` make 32 bits."""


def compute_type(dtype: str) -> str:
    """The type in which arithmetic is done."""
    return "tl.float32" if dtype in ("float16", "bfloat16") else storage_type(dtype)


def storage_type(dtype: str) -> str:
    return "tl.int1" if dtype == "bool" else f"tl.{dtype}"


def accumulator_dtype(kind: str, value: Expr) -> str:
    """The type in which a reduction's results are held: places within a row need no 64 bits, unless they are added up."""
    return "int32" if kind in ("max", "min") and _is_index(value) else value.dtype


def _is_index(value: Expr) -> bool:
    """A place within a row, or a choice between some: an int64 that is printed in 32 bits, as indices are."""
    if value.dtype != "int64":
        return False
    if value.op in ("select", "min", "max"):
        return all(_is_index(arg) for arg in value.args[-2:])
    return value.op == "index" or (value.op == "const" and abs(value.data) < 2**31)


def _to_int64(place: str) -> str:
    return f"tl.cast({place}, tl.int64)"


def scratch_dtype(kind: str, value: Expr) -> str:
    """How parts of a reduction lie in memory between two kernels."""
    return compute_type(accumulator_dtype(kind, value)).removeprefix("tl.")


def identity(kind: str, dtype: str) -> str:
    """What a reduction begins with."""
    floating = dtype in FLOATING
    if kind in ("sum", "prod"):
        value = 0 if kind == "sum" else 1
        return f"{value}.0" if floating else str(value)
    if floating:
        return f'float("{"-" if kind == "max" else ""}inf")'
    return str((_SMALLEST if kind == "max" else _LARGEST)[dtype])


def initial_value(kind: str, dtype: str, shape: str) -> str:
    """Nothing reduced so far."""
    return f"tl.full({shape}, {identity(kind, dtype)}, {compute_type(dtype)})"


def combine(kind: str, a: str, b: str) -> str:
    if kind in ("sum", "prod"):
        return f"{a} {'+' if kind == 'sum' else '*'} {b}"
    return f"tl.{kind}imum({a}, {b})"


class TritonPrinter(Printer):
    """Prints for one tile. `places` says where in the tile each loop of the stage runs, in terms of the tile's own
    variables; `masks` names the mask of those of them that run beyond their end."""

    def __init__(self, program: Program, math_mode: str):
        self._tensors = {tensor.name: tensor for tensor in program.tensors}
        self._fast_functions = _FAST_BY_MODE[math_mode]
        self.loop_indices: dict[LoopVar, IndexExpr] = {}
        self.masks: dict[LoopVar, str] = {}
        self.load_conditions: dict[Expr, Predicate] = {}
        """Loads that are needed somewhere only."""
        self.products: dict[str, tuple[IndexExpr, int]] = {}
        """Products that lie in memory: the number of the row, and how many columns it has."""
        self.functions: set[str] = set()
        """Of triton_functions.py, those that were printed."""
        self.pointers: dict[str, None] = {}
        """Pointers that were printed since somebody cleared it."""

    def constant(self, value: float | int | bool, dtype: str) -> str:
        if dtype == "bool":
            return "True" if value else "False"
        if dtype not in FLOATING:
            return str(value)
        if not math.isfinite(value) or (dtype != "float64" and abs(value) > 3.4028235e38):
            return f'float("{"nan" if value != value else "inf" if value > 0 else "-inf"}")'
        return repr(float(value))

    def declare(self, name: str, dtype: str, text: str) -> str:
        return f"{name} = {text}"

    def must_be_named(self, node: Expr) -> bool:
        return node.op == "load" or (node.op == "product" and node.data[0] in self.products)

    # --- places in memory --------------------------------------------------------------------------------------

    def index(self, index: IndexExpr, names: Names | None = None) -> str:
        """Terms that belong to the same side of the tile are added up first: as little as can be is done for all of it."""
        groups: dict[frozenset[LoopVar], list[tuple[Atom, int]]] = {}
        index = self.resolve(index)
        for atom, factor in index.terms:
            groups.setdefault(self._tile_axes(atom), []).append((atom, factor))
        parts = [super(TritonPrinter, self).index(IndexExpr(tuple(terms)), names) for terms in groups.values()]
        parts = [f"({part})" if len(parts) > 1 and " + " in part else part for part in parts]
        if index.constant or not parts:
            parts.append(str(index.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def resolve(self, index: IndexExpr) -> IndexExpr:
        return index.substitute(self.loop_indices)

    def _tile_axes(self, atom: Atom) -> frozenset[LoopVar]:
        if isinstance(atom, LoopVar):
            return frozenset({atom})
        if isinstance(atom, IndirectIndex):
            return frozenset(var for own in atom.value.variables for var in self.loop_indices[own].variables)
        return frozenset(side for inner, _ in atom.dividend.terms for side in self._tile_axes(inner))

    def divide(self, text: str, by: int, quotient: bool) -> str:
        return f"(({text}) {'//' if quotient else '%'} {by})"

    def mask(self, index: IndexExpr, names: Names, size: int) -> str:
        """Which elements of the tile have an element there; empty: all."""
        placed = self.resolve(index)
        sides = {side for atom, _ in placed.terms for side in self._tile_axes(atom)}
        parts = [text for side, text in self.masks.items() if side in sides]
        low, high = placed.bounds
        text = self.index(index, names)
        parts += [f"({text} >= 0)"] if low < 0 else []
        parts += [f"({text} < {size})"] if high >= size else []
        return " & ".join(parts)

    def load(self, tensor: str, index: str, dtype: str) -> str:
        self.pointers[tensor] = None
        return f"tl.load({tensor} + {index})"

    def raw_load(self, node: Expr, names: Names, within: Sequence[str] = ()) -> str:
        """A load as it lies in memory; 0 where one of the conditions `within` does not hold."""
        tensor = self._tensors[node.data[0]]
        return self._masked_load(frame.argument_name(tensor), node.data[1], names, tensor.size, node.dtype, within)

    def _masked_load(
        self, pointer: str, index: IndexExpr, names: Names, size: int, dtype: str, within: Sequence[str] = ()
    ) -> str:
        text = self.load(pointer, self.index(index, names), dtype)
        mask = " & ".join([*within, self.mask(index, names, size)]).removesuffix(" & ")
        return f"{text[:-1]}, mask={mask}, other=0)" if mask else text

    def text(self, node: Expr, names: Names) -> str:
        if node in names:
            return names[node]
        if node.op == "load":
            text = self.raw_load(node, names, self._load_condition(node))
            return f"{text}.to(tl.float32)" if node.dtype in ("float16", "bfloat16") else text
        return super().text(node, names)

    def _load_condition(self, node: Expr) -> list[str]:
        """Where a load is, by whole accesses of 16 bytes: what differs within one would make many of it."""
        placed, each = self.resolve(node.data[1]), 16 // itemsize(node.dtype)
        side = next((atom for atom, factor in placed.terms if isinstance(atom, LoopVar) and factor == 1), None)
        if side is None:
            return []
        first = LoopVar(f"({side.name} // {each} * {each})", side.extent)
        ends = (variable(first), variable(first) + (each - 1))
        found = [maximum_over(self.resolve(index), side, *ends) for index in self.load_conditions.get(node, ())]
        return sorted(
            f"({super(TritonPrinter, self).index(index)} >= 0)" for index in found if index is not None
        )

    def reference(self, node: Expr, names: Names) -> str:
        if node.op == "product":
            name, column = node.data
            row, columns = self.products[name]
            size = (row.bounds[1] + 1) * columns
            return self._masked_load(name, row * columns + column, names, size, "float32")
        return str(node.data)

    def store(self, tensor: str, index: IndexExpr, text: str, names: Names, extra: str = "") -> str:
        held = self._tensors[tensor]
        pointer = frame.argument_name(held)
        self.pointers[pointer] = None
        mask = " & ".join(part for part in (self.mask(index, names, held.size), extra) if part)
        return f"tl.store({pointer} + {self.index(index, names)}, {text}{f', mask={mask}' if mask else ''})"

    # --- reductions --------------------------------------------------------------------------------------------

    def reduce(self, kind: str, text: str, dtype: str, axis: int | None = None, keep: bool = False) -> str:
        """One number of the whole tile, or of each of its lines along `axis`; `keep`: that side stays, one element long."""
        kept = ", keep_dims=True" if keep else ""
        if kind == "prod" or (kind != "sum" and dtype in _PROMOTED_DTYPES):
            return f"tl.reduce({text}, {axis}, {self._combine_function(kind)}{kept})"
        return f"tl.{kind}({text}{'' if axis is None else f', {axis}'}{kept})"

    def reduce_operand(self, kind: str, value: Expr, names: Names) -> str:
        """What an element gives to a reduction or a scan."""
        text = self.text(value, names)
        return _to_int64(text) if kind in ("sum", "prod") and _is_index(value) else text

    def scan(self, kind: str, text: str, axis: int) -> str:
        """What each element and all before it along `axis` make."""
        if kind in ("sum", "prod"):
            return f"tl.cum{kind}({text}, {axis})"
        return f"tl.associative_scan({text}, {axis}, {self._combine_function(kind)})"

    def _combine_function(self, kind: str) -> str:
        self.functions.add(_COMBINE_FUNCTIONS[kind])
        return _COMBINE_FUNCTIONS[kind]

    # --- operators ---------------------------------------------------------------------------------------------

    def operator(self, op: str, args: list[str], node: Expr) -> str:
        if op == "cast":
            return self._cast(args[0], node)
        if node.dtype == "int64" and not _is_index(node):
            places = [_is_index(arg) and arg.op != "const" for arg in node.args]
            args = [_to_int64(text) if place else text for text, place in zip(args, places, strict=True)]
        if op == "select":
            return f"tl.where({', '.join(args)})"
        if op in ("max", "min"):
            return f"tl.{op}imum({', '.join(args)})"
        if node.dtype == "bool":  # one bit, which would overflow
            op = {"add": "or", "mul": "and"}.get(op, op)
        if op in self._fast_functions and compute_type(node.dtype) == "tl.float32":
            return self._call(self._fast_functions[op], args, node)
        if op in _INFIX:
            return f"({args[0]} {_INFIX[op]} {args[1]})"
        if op == "fmod" and node.dtype not in FLOATING:
            return f"({args[0]} % {args[1]})"
        if op in _COMPARED:
            return f"({args[0]} {_COMPARED[op]} {args[1]})"
        if op in ("neg", "not"):
            return f"(-{args[0]})" if op == "neg" else f"({args[0]} == 0)"
        wide = node.dtype == "float64" and op in _OWN and op not in ("round", "trunc", "fmod")
        if wide or (node.dtype not in FLOATING and op != "abs"):
            raise NoProposal(f"{op} of {node.dtype}: the playbook has none for Triton")
        if op in _OWN:
            return self._call(_OWN[op], args, node)
        return f"{_CALLS[op]}({self._as_tensor(args[0], node.args[0])})"

    def _call(self, function: str, args: list[str], node: Expr) -> str:
        self.functions.add(function)
        return f"{function}({', '.join([self._as_tensor(args[0], node.args[0]), *args[1:]])})"

    def _as_tensor(self, text: str, node: Expr) -> str:
        """Functions take no plain numbers."""
        return f"tl.full([], {text}, {compute_type(node.dtype)})" if node.op == "const" else text

    def _cast(self, text: str, node: Expr) -> str:
        (source,) = node.args
        if node.dtype == "bool":
            return f"({text} != 0)"
        if compute_type(source.dtype) == compute_type(node.dtype):
            return text
        if source.op == "index":
            return f"tl.cast({text}, {compute_type(node.dtype)})"
        return (
            f"{text}.to({compute_type(node.dtype)})"
            if text.isidentifier()
            else f"({text}).to({compute_type(node.dtype)})"
        )
