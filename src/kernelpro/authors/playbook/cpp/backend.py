"""Writing C++ for the CPU: one function, one parallel region, one loop nest for each stage.

cpp_words.py     types, operators, mathematics
cpp_loops.py     a stage row by row, or in strips of neighbouring rows
cpp_products.py  a stage with a matrix product
moves.py     designs to begin with, and moves
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelpro.authors.playbook.codegen import python_module as frame
from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.cpp import moves
from kernelpro.authors.playbook.cpp.loops import Kernel, Rows, Strips, indented
from kernelpro.authors.playbook.cpp.matmul import MICRO, Products
from kernelpro.authors.playbook.cpp.syntax import (
    BFLOAT,
    HALF,
    PRELUDE,
    STORAGE_TYPES,
    CppPrinter,
    identity_element,
    math_functions,
    accumulator_type,
)
from kernelpro.authors.playbook.ir.stages import Program, Stage, Tensor
from kernelpro.authors.playbook.schedule.design import Design

_TITLE = "Written by the playbook in C++."
_FLAGS = ("-fno-math-errno", "-fno-trapping-math")
"""Nobody reads errno or floating-point exceptions, and both stand in the way of vector code."""


def write(program: Program, design: Design) -> str:
    """The candidate's file."""
    pointers = {t.name: frame.argument_name(t) for t in program.tensors}
    kernel = Kernel(program, CppPrinter(design.math == "fast", pointers))
    body: list[str] = []
    for place, stage in enumerate(program.stages):
        body += [f"// stage {place}", *_stage(kernel, stage, design, place)]
    used = [
        t for t in program.tensors if t.role not in ("parameter", "input") or t.name in program.loaded_tensors
    ]
    used += [Tensor(name, (size,), dtype, "temporary") for name, (dtype, size) in kernel.scratch.items()]
    source = "\n".join([_head(kernel, used), *_function(program, used, body)])
    return frame.module_source(
        program, design, _TITLE, _library(source, kernel), _call(used, kernel), kernel.tunables
    )


def _stage(kernel: Kernel, stage: Stage, design: Design, place: int) -> list[str]:
    kind = Products if stage.product else Strips if design.stages[place].order == "strips" else Rows
    lines = kind(kernel, stage, design.stages[place], place).lines()
    if stage.epilogue:
        lines += [
            "#pragma omp single",
            "{",
            *indented([kernel.store(step, {}) for step in stage.epilogue]),
            "}",
        ]
    return lines


def _head(kernel: Kernel, used: Sequence[Tensor]) -> str:
    kinds = {tensor.dtype for tensor in used}
    halves = [text for kind, text in (("float16", HALF), ("bfloat16", BFLOAT)) if kind in kinds]
    blocks = [MICRO] if kernel.blocked else []
    return "\n".join([PRELUDE, *halves, math_functions(kernel.printer.used_functions), *blocks])


def _function(program: Program, used: Sequence[Tensor], body: list[str]) -> list[str]:
    arguments = []
    for tensor in used:
        constant = "const " if tensor.role in ("input", "parameter") else ""
        arguments.append(f"{constant}{STORAGE_TYPES[tensor.dtype]}* __restrict__ {frame.argument_name(tensor)}")
    totals = []
    for total in (total for stage in program.stages for total in stage.totals):
        kind = accumulator_type(total.value.dtype)
        totals.append(f"{kind} {total.name} = {identity_element(total.kind, kind)};")
    inside = ["#pragma omp parallel", "{", *indented(body), "}"]
    return [f'extern "C" void run({", ".join(arguments)}) {{', *indented([*totals, *inside]), "}"]


def _library(source: str, kernel: Kernel) -> str:
    flags = [*(f'"{flag}"' for flag in _FLAGS), *(f'f"-D{name}={{{name}}}"' for name in kernel.tunables)]
    return f'from kernelpro import runtime\n\nlib = runtime.cpp(\n    r"""\n{source}\n""",\n    flags=[{", ".join(flags)}],\n)'


def _call(used: Sequence[Tensor], kernel: Kernel) -> list[str]:
    scratch = [
        f"{name} = torch.empty({size}, dtype=torch.{dtype})" for name, (dtype, size) in kernel.scratch.items()
    ]
    return [*scratch, f"lib.run({', '.join(frame.argument_name(t) for t in used)})"]


BACKEND = Backend("cpp", "cpu", write, moves.seeds, moves.MOVES, moves.fallbacks)
