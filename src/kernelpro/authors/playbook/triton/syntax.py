"""Triton syntax: types, operators, masked loads and stores, reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.codegen import python_module
from kernelpro.authors.playbook.codegen.printer import Names, Printer
from kernelpro.authors.playbook.ir.expressions import FLOATING, Expr, itemsize
from kernelpro.authors.playbook.ir.indices import Atom, IndexExpr, IndirectIndex, LoopVar, variable
from kernelpro.authors.playbook.ir.stages import Guard, Program
from kernelpro.authors.playbook.schedule.design import APPROXIMABLE_FUNCTIONS
from kernelpro.authors.playbook.schedule.masked_loads import Predicate, maximum_over

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_BUILTINS = {
    op: f"tl.{op}" for op in ("exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos", "floor", "ceil", "abs")
}
_FUNCTIONS = {op: f"{op}_" for op in ("tanh", "expm1", "log1p", "round", "trunc", "pow", "fmod")}
_FAST = {"exp": "exp_", "log": "log_", "div": "divide"}
_APPROXIMATE = {op: f"{op}_" for op in APPROXIMABLE_FUNCTIONS}
_FAST_BY_MODE: dict[str, dict[str, str]] = {"library": {}, "fast": _FAST, "approximate": _FAST | _APPROXIMATE}
"""By math mode: the functions of functions.py that replace Triton's own for float32."""
_COMBINE_FUNCTIONS = {"prod": "multiply", "max": "maximum", "min": "minimum"}
"""Functions for tl.reduce and tl.associative_scan; `tl.max` and `tl.min` would drop NaN."""
_SMALLEST = {"int64": -(2**63), "int32": -(2**31), "int8": -128, "uint8": 0, "bool": False}
_LARGEST = {"int64": 2**63 - 1, "int32": 2**31 - 1, "int8": 127, "uint8": 255, "bool": True}
_PROMOTED_DTYPES = ("int8", "uint8", "bool")
"""Types that `tl.max` and `tl.min` promote to 32 bits."""


def compute_type(dtype: str) -> str:
    """The Triton type in which values of a dtype are computed."""
    return "tl.float32" if dtype in ("float16", "bfloat16") else storage_type(dtype)


def storage_type(dtype: str) -> str:
    """The Triton type of a dtype's elements in memory."""
    return "tl.int1" if dtype == "bool" else f"tl.{dtype}"


def accumulator_dtype(kind: str, value: Expr) -> str:
    """The dtype of a reduction's accumulator. Indices within a row need 64 bits only in sums and products."""
    return "int32" if kind in ("max", "min") and _is_index(value) else value.dtype


def _is_index(value: Expr) -> bool:
    """Whether an int64 value is an index within a row, or selects one: the kernel computes these in 32
    bits."""
    if value.dtype != "int64":
        return False
    if value.op in ("select", "min", "max"):
        return all(_is_index(arg) for arg in value.args[-2:])
    return value.op == "index" or (value.op == "const" and abs(value.data) < 2**31)


def _to_int64(text: str) -> str:
    return f"tl.cast({text}, tl.int64)"


def scratch_dtype(kind: str, value: Expr) -> str:
    """The torch dtype of a reduction's partial results in memory."""
    return compute_type(accumulator_dtype(kind, value)).removeprefix("tl.")


def identity_element(kind: str, dtype: str) -> str:
    """The identity element of a reduction."""
    floating = dtype in FLOATING
    if kind in ("sum", "prod"):
        value = 0 if kind == "sum" else 1
        return f"{value}.0" if floating else str(value)
    if floating:
        return f'float("{"-" if kind == "max" else ""}inf")'
    return str((_SMALLEST if kind == "max" else _LARGEST)[dtype])


def initial_value(kind: str, dtype: str, shape: str) -> str:
    """A tile of identity elements."""
    return f"tl.full({shape}, {identity_element(kind, dtype)}, {compute_type(dtype)})"


def combine(kind: str, a: str, b: str) -> str:
    """The expression that combines two partial results of a reduction."""
    if kind in ("sum", "prod"):
        return f"{a} {'+' if kind == 'sum' else '*'} {b}"
    return extremum(kind, a, b)


def extremum(kind: str, a: str, b: str) -> str:
    """The larger or smaller of two values. NaN propagates, as in torch; Triton's default drops it."""
    return f"tl.{kind}imum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)"


class TritonPrinter(Printer):
    """Prints expressions that compute a whole tile."""

    def __init__(self, program: Program, math_mode: str):
        self._tensors = {tensor.name: tensor for tensor in program.tensors}
        self._fast_functions = _FAST_BY_MODE[math_mode]
        self.loop_indices: dict[LoopVar, IndexExpr] = {}
        """The index along each loop of the stage, in terms of the tile's axes."""
        self.masks: dict[LoopVar, str] = {}
        """The names of masks, for axes that may run beyond the last element."""
        self.load_conditions: dict[Expr, Predicate] = {}
        """Loads of which a mask discards some elements, each with the predicate under which it is needed."""
        self.products: dict[str, tuple[IndexExpr, int]] = {}
        """For matrix products that were stored to memory: the row index, and the number of columns."""
        self.functions: set[str] = set()
        """Functions of functions.py that the printed code calls."""
        self.pointers: dict[str, None] = {}
        """Pointers that the current kernel uses, in order of first use."""

    def constant(self, value: float | int | bool, dtype: str) -> str:
        """A literal."""
        if dtype == "bool":
            return "True" if value else "False"
        if dtype not in FLOATING:
            return str(value)
        if not math.isfinite(value) or (dtype != "float64" and abs(value) > 3.4028235e38):
            return f'float("{"nan" if value != value else "inf" if value > 0 else "-inf"}")'
        return repr(float(value))

    def declare(self, name: str, dtype: str, text: str) -> str:
        """An assignment; Triton needs no types."""
        return f"{name} = {text}"

    def must_be_named(self, node: Expr) -> bool:
        """Loads always get a variable, so that each is printed once."""
        return node.op == "load" or (node.op == "product" and node.data[0] in self.products)

    # --- loads and stores -------------------------------------------------------------------------

    def index(self, index: IndexExpr, names: Names | None = None) -> str:
        """An index as text. It adds the terms of each tile axis first, so that few operations work on the
        whole tile."""
        index = self.resolve(index)
        parts = [super(TritonPrinter, self).index(terms, names) for terms in self._by_axes(index)]
        parts = [f"({part})" if len(parts) > 1 and " + " in part else part for part in parts]
        if index.constant or not parts:
            parts.append(str(index.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def _by_axes(self, index: IndexExpr) -> list[IndexExpr]:
        """The terms of an index, by the axes along which they vary."""
        groups: dict[frozenset[LoopVar], list[tuple[Atom, int]]] = {}
        for atom, factor in index.terms:
            groups.setdefault(self._tile_axes(atom), []).append((atom, factor))
        return [IndexExpr(tuple(terms)) for terms in groups.values()]

    def resolve(self, index: IndexExpr) -> IndexExpr:
        """The index in terms of the tile's axes."""
        return index.substitute(self.loop_indices)

    def _tile_axes(self, atom: Atom) -> frozenset[LoopVar]:
        if isinstance(atom, LoopVar):
            return frozenset({atom})
        if isinstance(atom, IndirectIndex):
            return frozenset(
                var for loop in atom.value.variables for var in self.loop_indices[loop].variables
            )
        return frozenset(axis for inner, _ in atom.dividend.terms for axis in self._tile_axes(inner))

    def divide(self, text: str, by: int, quotient: bool) -> str:
        """Integer quotient or remainder."""
        return f"(({text}) {'//' if quotient else '%'} {by})"

    def mask(self, index: IndexExpr, names: Names, size: int) -> str:
        """The mask of an access to a tensor of `size` elements; empty if none is needed."""
        resolved = self.resolve(index)
        checks = self._bounds_checks(self.index(index, names), resolved.bounds, size)
        return " & ".join(self._axis_masks(resolved) + checks)

    def guard_conditions(self, guards: Sequence[Guard]) -> list[str]:
        """The comparisons of the guards, without those that are always true.

        An index that varies along several axes is not printed as a sum: its terms along the first axis are
        compared with bounds that vary along the others. This needs fewer operations for the whole tile. It
        also avoids a defect of ptxas (12.8 to 13.0): from the test of a sum minus a constant, LLVM makes
        packed 16-bit additions, and where only one half is used, ptxas adds 0 instead of -1.
        """
        checks = []
        for guard in guards:
            index, (low, high) = self.resolve(guard.index), guard.index.bounds
            first, *others = self._by_axes(index) or [IndexExpr()]
            rest = "".join(f" - ({self.index(other)})" for other in others)
            text = f"({self.index(first)})"
            checks += [f"({text} >= {-index.constant}{rest})"] if low < 0 else []
            checks += [f"({text} < {guard.size - index.constant}{rest})"] if high >= guard.size else []
        return checks

    def _bounds_checks(self, text: str, bounds: tuple[int, int], size: int) -> list[str]:
        checks = [f"({text} >= 0)"] if bounds[0] < 0 else []
        return [*checks, f"({text} < {size})"] if bounds[1] >= size else checks

    def load(self, tensor: str, index: str, dtype: str) -> str:
        """An unmasked load."""
        self.pointers[tensor] = None
        return f"tl.load({tensor} + {index})"

    def raw_load(self, node: Expr, names: Names, conditions: Sequence[str] = ()) -> str:
        """A load in the tensor's dtype; 0 where a condition does not hold."""
        tensor = self._tensors[node.data[0]]
        pointer = python_module.argument_name(tensor)
        return self._masked_load(pointer, node.data[1], names, tensor.size, node.dtype, conditions)

    def guarded_load(self, node: Expr, names: Names, conditions: Sequence[str]) -> str:
        """Like `raw_load`, for conditions that already keep the index within the tensor."""
        pointer = python_module.argument_name(self._tensors[node.data[0]])
        text = self.load(pointer, self.index(node.data[1], names), node.dtype)
        mask = " & ".join([*conditions, *self._axis_masks(self.resolve(node.data[1]))])
        return f"{text[:-1]}, mask={mask}, other=0)"

    def _axis_masks(self, resolved: IndexExpr) -> list[str]:
        axes = {axis for atom, _ in resolved.terms for axis in self._tile_axes(atom)}
        return [text for axis, text in self.masks.items() if axis in axes]

    def _masked_load(
        self,
        pointer: str,
        index: IndexExpr,
        names: Names,
        size: int,
        dtype: str,
        conditions: Sequence[str] = (),
    ) -> str:
        text = self.load(pointer, self.index(index, names), dtype)
        mask = " & ".join([*conditions, self.mask(index, names, size)]).removesuffix(" & ")
        return f"{text[:-1]}, mask={mask}, other=0)" if mask else text

    def text(self, node: Expr, names: Names) -> str:
        """An expression; loads of 16-bit types are converted to float32."""
        if node in names:
            return names[node]
        if node.op == "load":
            text = self.raw_load(node, names, self._load_condition(node))
            return f"{text}.to(tl.float32)" if node.dtype in ("float16", "bfloat16") else text
        return super().text(node, names)

    def _load_condition(self, node: Expr) -> list[str]:
        """The mask of elements that are needed, rounded to 16 bytes: a finer one would break
        vectorization."""
        resolved, vector = self.resolve(node.data[1]), 16 // itemsize(node.dtype)
        axes = (atom for atom, factor in resolved.terms if isinstance(atom, LoopVar) and factor == 1)
        axis = next(axes, None)
        if axis is None:
            return []
        first = variable(LoopVar(f"({axis.name} // {vector} * {vector})", axis.extent))
        bounds = [
            maximum_over(self.resolve(index), axis, first, first + (vector - 1))
            for index in self.load_conditions.get(node, ())
        ]
        return sorted(
            f"({super(TritonPrinter, self).index(bound)} >= 0)" for bound in bounds if bound is not None
        )

    def reference(self, node: Expr, names: Names) -> str:
        """The variable of a reduction or total, or a load of a stored matrix product."""
        if node.op == "product":
            name, column = node.data
            row, columns = self.products[name]
            size = (row.bounds[1] + 1) * columns
            return self._masked_load(name, row * columns + column, names, size, "float32")
        return str(node.data)

    def store(
        self, tensor: str, index: IndexExpr, text: str, names: Names, guards: Sequence[Guard] = ()
    ) -> str:
        """The statement that stores a tile, except where a guard fails."""
        pointer = python_module.argument_name(self._tensors[tensor])
        if guards:
            masks = self._axis_masks(self.resolve(index)) + self.guard_conditions(guards)
            return self.store_to(pointer, self.index(index, names), text, " & ".join(masks))
        mask = self.mask(index, names, self._tensors[tensor].size)
        return self.store_to(pointer, self.index(index, names), text, mask)

    def store_to(self, pointer: str, index: str, text: str, mask: str = "") -> str:
        """The statement that stores a tile to a pointer, with or without a mask."""
        self.pointers[pointer] = None
        return f"tl.store({pointer} + {index}, {text}{f', mask={mask}' if mask else ''})"

    # --- reductions -------------------------------------------------------------------------------

    def reduce(self, kind: str, text: str, dtype: str, axis: int | None = None, keep: bool = False) -> str:
        """The reduction of the whole tile, or along `axis`; `keep`: the axis stays, with one element."""
        keep_dims = ", keep_dims=True" if keep else ""
        if kind == "prod" or (kind != "sum" and dtype in (*FLOATING, *_PROMOTED_DTYPES)):
            return f"tl.reduce({text}, {axis}, {self._combine_function(kind)}{keep_dims})"
        return f"tl.{kind}({text}{'' if axis is None else f', {axis}'}{keep_dims})"

    def reduce_operand(self, kind: str, value: Expr, names: Names) -> str:
        """The operand of a reduction or scan: sums and products of indices need 64 bits."""
        text = self.text(value, names)
        return _to_int64(text) if kind in ("sum", "prod") and _is_index(value) else text

    def scan(self, kind: str, text: str, axis: int) -> str:
        """The inclusive scan along `axis`."""
        if kind in ("sum", "prod"):
            return f"tl.cum{kind}({text}, {axis})"
        return f"tl.associative_scan({text}, {axis}, {self._combine_function(kind)})"

    def _combine_function(self, kind: str) -> str:
        self.functions.add(_COMBINE_FUNCTIONS[kind])
        return _COMBINE_FUNCTIONS[kind]

    # --- operators --------------------------------------------------------------------------------

    def operator(self, op: str, args: list[str], node: Expr) -> str:
        """An operator, a function of tl, or one of functions.py."""
        if op == "cast":
            return self._cast(args[0], node)
        if node.dtype == "int64" and not _is_index(node):
            narrow = [_is_index(arg) and arg.op != "const" for arg in node.args]
            args = [_to_int64(text) if cast else text for text, cast in zip(args, narrow, strict=True)]
        if op == "select":
            return f"tl.where({', '.join(args)})"
        if op in ("max", "min"):
            return extremum(op, *args) if node.dtype in FLOATING else f"tl.{op}imum({', '.join(args)})"
        if node.dtype == "bool":  # 1-bit sums and products would overflow
            op = {"add": "or", "mul": "and"}.get(op, op)
        if op in self._fast_functions and compute_type(node.dtype) == "tl.float32":
            return self._call(self._fast_functions[op], args, node)
        if op in _INFIX:
            return f"({args[0]} {_INFIX[op]} {args[1]})"
        if op == "fmod" and node.dtype not in FLOATING:
            return f"({args[0]} % {args[1]})"
        if op in _COMPARISONS:
            return f"({args[0]} {_COMPARISONS[op]} {args[1]})"
        if op in ("neg", "not"):
            return f"(-{args[0]})" if op == "neg" else f"({args[0]} == 0)"
        float32_only = op in _FUNCTIONS and op not in ("round", "trunc", "fmod")
        unsupported = float32_only and node.dtype == "float64"
        if unsupported or (node.dtype not in FLOATING and op != "abs"):
            raise NoProposal(f"the playbook has no {op} of {node.dtype} for Triton")
        if op in _FUNCTIONS:
            return self._call(_FUNCTIONS[op], args, node)
        return f"{_BUILTINS[op]}({self._as_tensor(args[0], node.args[0])})"

    def _call(self, function: str, args: list[str], node: Expr) -> str:
        self.functions.add(function)
        return f"{function}({', '.join([self._as_tensor(args[0], node.args[0]), *args[1:]])})"

    def _as_tensor(self, text: str, node: Expr) -> str:
        """Wraps constants: functions take tensors only."""
        return f"tl.full([], {text}, {compute_type(node.dtype)})" if node.op == "const" else text

    def _cast(self, text: str, node: Expr) -> str:
        (source,) = node.args
        if node.dtype == "bool":
            return f"({text} != 0)"
        if compute_type(source.dtype) == compute_type(node.dtype):
            return text
        if source.op == "index":
            return f"tl.cast({text}, {compute_type(node.dtype)})"
        return f"{text if text.isidentifier() else f'({text})'}.to({compute_type(node.dtype)})"
