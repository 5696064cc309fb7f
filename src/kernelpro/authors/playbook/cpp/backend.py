"""The C++ backend for CPUs: one function with one parallel region, in which each stage is one loop nest."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.codegen.python_module import (
    argument_name,
    library_lines,
    module_source,
    require_whole_stores,
)
from kernelpro.authors.playbook.cpp import moves
from kernelpro.authors.playbook.cpp.composites import use_composites
from kernelpro.authors.playbook.cpp.contraction import ContractionNest
from kernelpro.authors.playbook.cpp.functions import with_dependencies
from kernelpro.authors.playbook.cpp.loop_nest import CppKernel, LoopNest, indented
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
from kernelpro.authors.playbook.schedule.design import Design, StageDesign

_TITLE = "Written by the playbook in C++."
_FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-funroll-loops")
"""Kernels use neither errno nor floating-point exceptions, which both prevent vectorization. Unrolling lets
more operations overlap: on a Neoverse N1, GELU took 9 % less time, and its tanh approximation 19 % less."""


def write(program: Program, design: Design) -> str:
    """The candidate's source file. Raises NoProposal."""
    require_whole_stores(program.stages)
    program = use_composites(program) if design.math == "fast" else program
    pointers = {t.name: argument_name(t) for t in program.tensors}
    kernel = CppKernel(program, CppPrinter(design.math == "fast", pointers))
    groups, calls = _stage_groups(program)
    bodies = [
        [line for n in group for line in (f"// stage {n}", *_stage(kernel, program.stages[n], design, n))]
        for group in groups
    ]
    loaded = program.loaded_tensors
    used = [t for t in program.tensors if t.role in ("output", "temporary") or t.name in loaded]
    used += [Tensor(name, (size,), dtype, "temporary") for name, (dtype, size) in kernel.scratch.items()]
    functions, lines = list[str](), _allocations(kernel)
    for number, (group, body) in enumerate(zip(groups, bodies, strict=True)):
        lines += calls[number]
        if group:
            name = "run" if len(groups) == 1 else f"run{number}"
            words = set(re.findall(r"\w+", "\n".join(body)))
            needed = [t for t in used if len(groups) == 1 or argument_name(t) in words]
            functions += _function(name, [program.stages[n] for n in group], needed, body)
            lines.append(f"lib.{name}({', '.join(argument_name(t) for t in needed)})")
    lines += library_lines(program, len(program.stages))
    source = "\n".join([_prelude(kernel, used), *functions])
    return module_source(program, design, _TITLE, _library(source, kernel), lines, kernel.tunables)


def _stage_groups(program: Program) -> tuple[list[list[int]], list[list[str]]]:
    """Groups of stages without a library call between them, and the lines of library calls before each
    group."""
    groups: list[list[int]] = [[]]
    calls: list[list[str]] = [[]]
    for number in range(len(program.stages)):
        if lines := library_lines(program, number):
            groups.append([])
            calls.append(lines)
        groups[-1].append(number)
    return groups, calls


def _stage(kernel: CppKernel, stage: Stage, design: Design, number: int) -> list[str]:
    stage_design = design.stages[number]
    lines = _nest_class(stage, stage_design)(kernel, stage, stage_design, number).lines()
    if stage.epilogue:
        stores = [kernel.store(step, {}) for step in stage.epilogue]
        lines += ["#pragma omp single", "{", *indented(stores), "}"]
    return lines


def _nest_class(stage: Stage, design: StageDesign) -> type[LoopNest]:
    if stage.product:
        return MatmulNest
    if design.packed:
        return ContractionNest
    return StripNest if design.order == "strips" else RowNest


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


def _function(name: str, stages: Sequence[Stage], used: Sequence[Tensor], body: list[str]) -> list[str]:
    arguments = []
    for tensor in used:
        const = "const " if tensor.role in ("input", "parameter", "library") else ""
        arguments.append(f"{const}{STORAGE_TYPES[tensor.dtype]}* __restrict__ {argument_name(tensor)}")
    totals = []
    for total in (total for stage in stages for total in stage.totals):
        ctype = accumulator_type(total.value.dtype)
        totals.append(f"{ctype} {total.name} = {identity_element(total.kind, ctype)};")
    region = ["#pragma omp parallel", "{", *indented(body), "}"]
    return [f'extern "C" void {name}({", ".join(arguments)}) {{', *indented([*totals, *region]), "}"]


def _library(source: str, kernel: CppKernel) -> str:
    flags = [*(f'"{flag}"' for flag in _FLAGS), *(f'f"-D{name}={{{name}}}"' for name in kernel.tunables)]
    return (
        f'from kernelpro import runtime\n\nlib = runtime.cpp(\n    r"""\n{source}\n""",\n'
        f"    flags=[{', '.join(flags)}],\n)"
    )


def _allocations(kernel: CppKernel) -> list[str]:
    return [
        f"{name} = torch.empty({size}, dtype=torch.{dtype})" for name, (dtype, size) in kernel.scratch.items()
    ]


BACKEND = Backend("cpp", "cpu", write, moves.seeds, moves.MOVES, moves.fallbacks)
