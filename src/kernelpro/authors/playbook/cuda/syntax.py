"""CUDA syntax: how types, operators and math functions differ from C++."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import STORAGE_TYPES as CPP_STORAGE_TYPES
from kernelpro.authors.playbook.cpp.syntax import CppPrinter, arithmetic_type
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar
from kernelpro.authors.playbook.schedule.design import APPROXIMABLE_FUNCTIONS

STORAGE_TYPES = {**CPP_STORAGE_TYPES, "float16": "__half", "bfloat16": "__nv_bfloat16"}
"""The CUDA type of a tensor's elements, by dtype."""
REDUCE_OPERATORS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min"}
"""The prelude's operator struct for each kind of reduction."""
_FLOAT = {"abs": "fabsf", "round": "rintf", "pow": "powf", "fmod": "fmodf"}
_DOUBLE = {"abs": "fabs", "round": "rint"}
_FAST = {"exp": "__expf", "log": "__logf", "div": "__fdividef", "tanh": "fast_tanh"}
"""Functions for float in a few instructions, accurate to a few ulp."""
_APPROXIMATE = {op: f"approx_{op}" for op in APPROXIMABLE_FUNCTIONS}
FAST_FLAGS = ("-ftz=true", "-prec-sqrt=false")
"""nvcc flags for fast math. Without -ftz=true, the intrinsics spend half of their instructions on
denormals."""


def identity_element(kind: str, ctype: str) -> str:
    """The identity element of a reduction."""
    return f"{REDUCE_OPERATORS[kind]}::identity<{ctype}>()"


def combine(kind: str, a: str, b: str) -> str:
    """The expression that combines two partial results of a reduction."""
    return f"{REDUCE_OPERATORS[kind]}::combine({a}, {b})"


class CudaPrinter(CppPrinter):
    """Prints expressions for one thread. Loop variables are replaced by the thread's own indices."""

    def __init__(self, math_mode: str, pointers: Mapping[str, str]):
        self.pointers = dict(pointers)
        super().__init__(False, self.pointers)
        self._fast_functions = {"library": {}, "fast": _FAST, "approximate": _FAST | _APPROXIMATE}[math_mode]
        self.loop_indices: Mapping[LoopVar, IndexExpr] = {}
        """The thread's index along each loop."""
        self.constants: frozenset[LoopVar] = frozenset()
        """Variables of `loop_indices` that are constants after unrolling. They come last in the text of an
        index, so that they become a constant offset from a common address."""
        self.row_suffix = ""
        """Appended to the names of per-row values."""

    def index(self, index: IndexExpr, names: Names | None = None) -> str:
        """The text of an index, with the thread's indices in place of loop variables."""
        return self.resolved(self.resolve(index), names)

    def resolved(self, index: IndexExpr, names: Names | None = None) -> str:
        """The text of an index in the thread's variables."""
        last = IndexExpr(tuple(term for term in index.terms if term[0] in self.constants))
        first = index - last
        if not last.terms or not first.terms:
            return super().index(index, names)
        return f"{super().index(first, names)} + ({super().index(last)})"

    def resolve(self, index: IndexExpr) -> IndexExpr:
        """The index with the thread's indices in place of loop variables."""
        return index.substitute(self.loop_indices)

    def pointer(self, tensor: str) -> str:
        """The kernel argument that points to a tensor."""
        return self.pointers[tensor]

    def load(self, tensor: str, index: str, dtype: str) -> str:
        """The text of a load, converted to the type in which its dtype is computed."""
        text = f"{self.pointers[tensor]}[{index}]"
        return f"float({text})" if dtype in ("float16", "bfloat16") else text

    def store(self, tensor: str, index: str, tensor_dtype: str, text: str, dtype: str) -> str:
        """A statement that writes `text` to an element of a tensor."""
        return f"{self.pointers[tensor]}[{index}] = {STORAGE_TYPES[tensor_dtype]}({text});"

    def operator(self, op: str, args: list[str], node: Expr) -> str:
        """CUDA's functions and intrinsics; everything else as in C++."""
        kind = arithmetic_type(node.dtype)
        if op in ("max", "min"):  # casts: integer literals are printed without a suffix
            return f"{'maximum' if op == 'max' else 'minimum'}({', '.join(f'{kind}({arg})' for arg in args)})"
        if kind not in ("float", "double") or op in ("cast", "neg", "not"):
            return super().operator(op, args, node)
        arguments = ", ".join(args)
        if kind == "float" and op in self._fast_functions:
            return f"{self._fast_functions[op]}({arguments})"
        if op in _LIBRARY_FUNCTIONS:
            return (
                f"{_FLOAT.get(op, f'{op}f')}({arguments})"
                if kind == "float"
                else f"{_DOUBLE.get(op, op)}({arguments})"
            )
        return super().operator(op, args, node)

    def reference(self, node: Expr, names: Names) -> str:
        """The variable of a reduction or total."""
        return f"{node.data}{self.row_suffix}" if node.op == "row" else str(node.data)


_LIBRARY_FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "trunc"),
    *("abs", "round", "pow", "fmod"),
)


def headers(dtypes: set[str]) -> str:
    """The #include lines that the dtypes need."""
    includes = ["#include <cuda_bf16.h>"] if "bfloat16" in dtypes else []
    includes += ["#include <cuda_fp16.h>"] if "float16" in dtypes else []
    return "\n".join(["#include <cmath>", "#include <cstdint>", "#include <cstring>", *includes])


def indented(lines: Iterable[str]) -> list[str]:
    """The lines, indented; #pragma and other directives stay in column 0."""
    return [line if line.startswith("#") else "    " + line for line in lines]
