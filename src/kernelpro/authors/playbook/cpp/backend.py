"""The C++ backend for CPUs: one function with one parallel region, in which each stage is one loop nest."""

from __future__ import annotations

from collections.abc import Sequence

from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.codegen.python_module import argument_name, module_source
from kernelpro.authors.playbook.cpp import moves
from kernelpro.authors.playbook.cpp.composites import use_composites
from kernelpro.authors.playbook.cpp.functions import with_dependencies
from kernelpro.authors.playbook.cpp.loop_nest import CppKernel, indented
from kernelpro.authors.playbook.cpp.matmul import MatmulNest
from kernelpro.authors.playbook.cpp.prelude import (
    BFLOAT16_CONVERSIONS,
    HALF_TYPE,
    MULTIPLY_TILE,
    PRELUDE,
)
from kernelpro.authors.playbook.cpp.rows import RowNest
from kernelpro.authors.playbook.cpp.strips import StripNest
from kernelpro.authors.playbook.cpp.syntax import (
    STORAGE_TYPES,
    CppPrinter,
    accumulator_type,
    identity_element,
)
from kernelpro.authors.playbook.ir.stages import Program, Stage, Tensor
from kernelpro.authors.playbook.schedule.design import Design

_TITLE = "Written by the playbook in C++."
_FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-funroll-loops")
"""errno and floating-point exceptions are not used, and both prevent vectorization. Unrolling lets more
operations overlap: GELU took 9 % less time on a Neoverse N1, its approximation by tanh 19 %."""


def write(program: Program, design: Design) -> str:
    """The candidate's source file."""
    program = use_composites(program) if design.math == "fast" else program
    pointers = {t.name: argument_name(t) for t in program.tensors}
    kernel = CppKernel(program, CppPrinter(design.math == "fast", pointers))
    body: list[str] = []
    for number, stage in enumerate(program.stages):
        body += [f"// stage {number}", *_stage(kernel, stage, design, number)]
    loaded = program.loaded_tensors
    used = [t for t in program.tensors if t.role not in ("parameter", "input") or t.name in loaded]
    used += [Tensor(name, (size,), dtype, "temporary") for name, (dtype, size) in kernel.scratch.items()]
    source = "\n".join([_prelude(kernel, used), *_function(program, used, body)])
    return module_source(
        program, design, _TITLE, _library(source, kernel), _call(used, kernel), kernel.tunables
    )


def _stage(kernel: CppKernel, stage: Stage, design: Design, number: int) -> list[str]:
    stage_design = design.stages[number]
    nest = MatmulNest if stage.product else StripNest if stage_design.order == "strips" else RowNest
    lines = nest(kernel, stage, stage_design, number).lines()
    if stage.epilogue:
        stores = [kernel.store(step, {}) for step in stage.epilogue]
        lines += ["#pragma omp single", "{", *indented(stores), "}"]
    return lines


def _prelude(kernel: CppKernel, used: Sequence[Tensor]) -> str:
    dtypes = {tensor.dtype for tensor in used}
    parts = [
        PRELUDE,
        *([HALF_TYPE] if "float16" in dtypes else []),
        *([BFLOAT16_CONVERSIONS] if "bfloat16" in dtypes else []),
        "\n".join(with_dependencies(kernel.printer.used_functions)),
        *([MULTIPLY_TILE] if kernel.multiplies_tiles else []),
    ]
    return "\n".join(parts)


def _function(program: Program, used: Sequence[Tensor], body: list[str]) -> list[str]:
    arguments = []
    for tensor in used:
        const = "const " if tensor.role in ("input", "parameter") else ""
        arguments.append(f"{const}{STORAGE_TYPES[tensor.dtype]}* __restrict__ {argument_name(tensor)}")
    totals = []
    for total in (total for stage in program.stages for total in stage.totals):
        ctype = accumulator_type(total.value.dtype)
        totals.append(f"{ctype} {total.name} = {identity_element(total.kind, ctype)};")
    region = ["#pragma omp parallel", "{", *indented(body), "}"]
    return [f'extern "C" void run({", ".join(arguments)}) {{', *indented([*totals, *region]), "}"]


def _library(source: str, kernel: CppKernel) -> str:
    flags = [*(f'"{flag}"' for flag in _FLAGS), *(f'f"-D{name}={{{name}}}"' for name in kernel.tunables)]
    return (
        f'from kernelpro import runtime\n\nlib = runtime.cpp(\n    r"""\n{source}\n""",\n'
        f"    flags=[{', '.join(flags)}],\n)"
    )


def _call(used: Sequence[Tensor], kernel: CppKernel) -> list[str]:
    allocations = [
        f"{name} = torch.empty({size}, dtype=torch.{dtype})" for name, (dtype, size) in kernel.scratch.items()
    ]
    return [*allocations, f"lib.run({', '.join(argument_name(t) for t in used)})"]


BACKEND = Backend("cpp", "cpu", write, moves.seeds, moves.MOVES, moves.fallbacks)
