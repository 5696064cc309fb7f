"""Writing CUDA C++: one launcher, a kernel or a few for each stage.

cuda_words.py     operators and the functions that kernels share
cuda_turns.py     what a thread does with its pieces of a row, and how they are loaded and stored
cuda_flat.py      element-wise stages
cuda_tiles.py     element-wise stages that transpose
cuda_stages.py    stages with rows: reductions, scans, windows
cuda_sweep.py     one kernel of such a stage; cuda_rows.py and cuda_columns.py: the two ways in which its threads lie;
                  cuda_windows.py: outputs whose windows overlap
cuda_products.py  matrix products and convolutions, on tensor cores or by multiply-add; cuda_operands.py: how their operands
                  are fetched; cuda_product_words.py: the functions that they share
moves.py     designs to begin with, and moves; cuda_product_moves.py: those of products
"""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.playbook.codegen import python_module as frame
from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.cuda import moves
from kernelpro.authors.playbook.cuda.elementwise import is_elementwise, write_elementwise
from kernelpro.authors.playbook.cuda.matmul_prelude import FRAGMENTS, INSTRUCTIONS, TILE
from kernelpro.authors.playbook.cuda.matmul import CudaMatmul, is_matmul
from kernelpro.authors.playbook.cuda.row_stages import write_row_stage
from kernelpro.authors.playbook.cuda.syntax import (
    REDUCE_ACROSS,
    CHEAP_FORMS,
    FAST_FLAGS,
    REDUCE_LANES,
    PRELUDE,
    SCAN_LANES,
    STORED,
    headers,
    indented,
)
from kernelpro.authors.playbook.cuda.transpose import find_transpose, write_transpose
from kernelpro.authors.playbook.cuda.thread_loop import CudaKernel, CudaSourceBuilder
from kernelpro.authors.playbook.schedule.design import Design, StageDesign
from kernelpro.authors.playbook.schedule.masked_loads import masked_loads
from kernelpro.authors.playbook.ir.stages import Program, Stage

_MAX_INT32_ELEMENTS = 2**31 - 2**24
"""Elements that 32 bits number, with room for what the last block has too many."""

_DEVICE_FUNCTIONS = (
    *((f"cheap_{op}(", text) for op, text in CHEAP_FORMS.items()),
    *(("joined<", REDUCE_LANES), ("running<", SCAN_LANES), ("LANES, WIDTH>(", REDUCE_ACROSS)),
    *(("= Tile<", INSTRUCTIONS + TILE), ("fragment<", FRAGMENTS)),
)
"""Functions by what calls them."""


def write(program: Program, design: Design) -> str:
    """The candidate's file."""
    writing = CudaSourceBuilder(program, design.math, {t.name: frame.argument_name(t) for t in program.tensors})
    for place, (stage, how) in enumerate(zip(program.stages, design.stages, strict=True)):
        left: Stage | None = stage
        if is_matmul(stage, how):
            left, how = (
                CudaMatmul(writing, stage, how, place, design).write(),
                replace(how, order="rows", split=1),
            )
        if left:
            _write_stage(writing, left, how, place)
    program = replace(program, tensors=(*program.tensors, *writing.temporaries))
    used = [t.name for t in program.tensors if any(t.name in kernel.tensors for kernel in writing.kernels)]
    source = "\n".join([_head(program, writing), *_kernels(writing), *_launcher(writing, used)])
    fast = [] if design.math == "library" else [f'"{flag}"' for flag in FAST_FLAGS]
    flags = ", ".join([*fast, *(f'f"-D{name}={{{name}}}"' for name in writing.tunables)])
    limits = "".join(f"# tune-if: {limit}\n" for limit in writing.constraints)
    head = f'{limits}from kernelpro import runtime\n\nlib = runtime.cuda(\n    r"""\n{source}\n""",\n    flags=[{flags}],\n)'
    call = [f"lib.run({', '.join(writing.pointer(name) for name in used)})"]
    return frame.module_source(
        program, design, "Written by the playbook in CUDA C++.", head, call, writing.tunables
    )


def _write_stage(writing: CudaSourceBuilder, stage: Stage, how: StageDesign, place: int) -> None:
    writing.load_conditions = masked_loads(stage.expressions)
    if how.order == "tiles" and find_transpose(stage):
        write_transpose(writing, stage, how, place)
    elif is_elementwise(stage):
        write_elementwise(writing, stage, how, place)
    else:
        write_row_stage(writing, stage, how, place)


def _head(program: Program, writing: CudaSourceBuilder) -> str:
    """The functions that are used, and no others."""
    body = "\n".join(line for kernel in writing.kernels for line in kernel.body)
    parts = [headers({t.dtype for t in program.tensors})]
    parts += [
        f"using Int = {'int' if max(t.size for t in program.tensors) < _MAX_INT32_ELEMENTS else 'long long'};",
        "",
        PRELUDE,
    ]
    for word, text in _DEVICE_FUNCTIONS:
        parts += [text] if word in body else []
    return "\n".join(parts)


def _kernels(writing: CudaSourceBuilder) -> list[str]:
    lines = []
    for kernel in writing.kernels:
        lines += [
            f"__global__ void __launch_bounds__({kernel.threads}) {kernel.name}({_parameters(writing, kernel)}) {{"
        ]
        lines += [*indented(kernel.body), "}", ""]
    return lines


def _parameters(writing: CudaSourceBuilder, kernel: CudaKernel) -> str:
    return ", ".join(
        f"{'' if name in kernel.written else 'const '}{STORED[writing.tensors[name].dtype]}* __restrict__ {writing.pointer(name)}"
        for name in kernel.tensors
    )


def _launcher(writing: CudaSourceBuilder, used: list[str]) -> list[str]:
    written = {name for kernel in writing.kernels for name in kernel.written}
    given = [
        f"{'' if name in written else 'const '}{STORED[writing.tensors[name].dtype]}* {writing.pointer(name)}"
        for name in used
    ]
    body = []
    wide = [
        f"size_t({writing.pointer(n)})"
        for n in used
        if n in writing.vectorized and writing.tensors[n].role in ("input", "parameter")
    ]
    if wide:
        body += [f"if (({' | '.join(wide)}) % 16) return cudaErrorMisalignedAddress;"]
    for kernel in writing.kernels:
        if kernel.shared_bytes != "0":
            allowed = f"cudaFuncSetAttribute({kernel.name}, cudaFuncAttributeMaxDynamicSharedMemorySize, {kernel.shared_bytes})"
            body += [
                f"static const cudaError_t {kernel.name}_memory = {allowed};",
                f"if ({kernel.name}_memory) return {kernel.name}_memory;",
            ]
        arguments = ", ".join(writing.pointer(name) for name in kernel.tensors)
        body += [
            f"{kernel.name}<<<{kernel.grid}, {kernel.threads}, {kernel.shared_bytes}, stream>>>({arguments});"
        ]
    return [
        f'extern "C" int run({", ".join([*given, "cudaStream_t stream"])}) {{',
        *indented([*body, "return cudaGetLastError();"]),
        "}",
    ]


BACKEND = Backend("cuda", "cuda", write, moves.seeds, moves.MOVES, moves.fallbacks)
