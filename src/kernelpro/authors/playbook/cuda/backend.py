"""Writes the candidate: its kernels, and a `run` function that launches the kernels of all stages."""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.playbook.codegen import python_module
from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.cuda import moves
from kernelpro.authors.playbook.cuda.builder import CudaKernel, CudaSourceBuilder
from kernelpro.authors.playbook.cuda.elementwise import write_elementwise
from kernelpro.authors.playbook.cuda.halo_convolution import HaloConvolution
from kernelpro.authors.playbook.cuda.halo_phases import PhasedHaloConvolution
from kernelpro.authors.playbook.cuda.halo_tiles import convolution_of
from kernelpro.authors.playbook.cuda.matmul import CudaMatmul
from kernelpro.authors.playbook.cuda.matmul_prelude import FRAGMENTS, INSTRUCTIONS, TILE
from kernelpro.authors.playbook.cuda.prelude import (
    APPROXIMATE_FUNCTIONS,
    FAST_FUNCTIONS,
    PRELUDE,
    REDUCE_ACROSS,
    REDUCE_LANES,
    SCAN_LANES,
)
from kernelpro.authors.playbook.cuda.row_stages import write_row_stage
from kernelpro.authors.playbook.cuda.syntax import FAST_FLAGS, STORAGE_TYPES, headers, indented
from kernelpro.authors.playbook.cuda.transpose import find_transpose, write_transpose
from kernelpro.authors.playbook.cuda.warpgroup_matmul import WarpgroupMatmul, fits_warpgroups
from kernelpro.authors.playbook.cuda.warpgroup_prelude import COPIES, INSTRUCTIONS_OF
from kernelpro.authors.playbook.ir.stages import Program, Stage
from kernelpro.authors.playbook.schedule.contractions import find_contraction, is_matmul
from kernelpro.authors.playbook.schedule.design import Design, StageDesign
from kernelpro.authors.playbook.schedule.masked_loads import masked_loads
from kernelpro.authors.playbook.schedule.passes import is_elementwise

_MAX_INT32_ELEMENTS = 2**31 - 2**24
"""Smaller tensors are indexed with 32 bits; the margin covers threads of the last block beyond the end."""

_DEVICE_FUNCTIONS = (
    *((f"fast_{op}(", text) for op, text in FAST_FUNCTIONS.items()),
    *((f"approx_{op}(", text) for op, text in APPROXIMATE_FUNCTIONS.items()),
    *(("reduce_lanes<", REDUCE_LANES), ("scan_lanes<", SCAN_LANES), ("LANES, WIDTH>(", REDUCE_ACROSS)),
    *(("= Tile<", INSTRUCTIONS), ("async_copy<", INSTRUCTIONS)),
    *(("= Tile<", TILE), ("load_shared(", TILE), ("load_fragment<", FRAGMENTS)),
    *(("copy_tile(", COPIES), *((f"wgmma_{kind}(", text) for kind, text in INSTRUCTIONS_OF.items())),
)
"""Device functions, with the text of a call to them."""


def write(program: Program, design: Design) -> str:
    """The candidate's source file. Raises NoProposal."""
    pointers = {tensor.name: python_module.argument_name(tensor) for tensor in program.tensors}
    builder = CudaSourceBuilder(program, design.math, pointers)
    groups: list[list[CudaKernel]] = [builder.kernels]
    calls: list[list[str]] = []
    for number, (stage, stage_design) in enumerate(zip(program.stages, design.stages, strict=True)):
        if library_lines := python_module.library_lines(program, number):
            calls.append(library_lines)
            builder.kernels = []
            groups.append(builder.kernels)
        remaining: Stage | None = stage
        if is_matmul(stage, stage_design):
            matmul = _matmul_class(stage, stage_design, design.precision)
            remaining = matmul(builder, stage, stage_design, number, design.precision).write()
            stage_design = replace(stage_design, order="rows", split=1)
        if remaining:
            _write_stage(builder, remaining, stage_design, number)
    builder.kernels = [kernel for group in groups for kernel in group]
    program = replace(program, tensors=(*program.tensors, *builder.temporaries))
    launchers, call = _launchers(builder, program, groups, calls)
    source = "\n".join([_header(program, builder), *_kernels(builder), *launchers])
    flags = [] if design.math == "library" else [f'"{flag}"' for flag in FAST_FLAGS]
    flags += [f'f"-D{name}={{{name}}}"' for name in builder.tunables]
    constraints = "".join(f"# tune-if: {constraint}\n" for constraint in builder.constraints)
    library = f'lib = runtime.cuda(\n    r"""\n{source}\n""",\n    flags=[{", ".join(flags)}],\n)'
    kernels = f"{constraints}from kernelpro import runtime\n\n{library}"
    call += python_module.library_lines(program, len(program.stages))
    title = "Written by the playbook in CUDA C++."
    return python_module.module_source(program, design, title, kernels, call, builder.tunables)


def _matmul_class(stage: Stage, design: StageDesign, precision: str) -> type[CudaMatmul]:
    """Who writes a product: the design may ask for what its operands or precision exclude."""
    if design.halo and (conv := convolution_of(stage, precision)):
        return PhasedHaloConvolution if conv.outputs > 1 else HaloConvolution
    contraction = find_contraction(stage)
    assert contraction, "is_matmul comes first"
    fits = design.wgmma and fits_warpgroups(contraction, design, precision)
    return WarpgroupMatmul if fits else CudaMatmul


def _write_stage(builder: CudaSourceBuilder, stage: Stage, design: StageDesign, number: int) -> None:
    python_module.require_whole_stores([stage])
    builder.load_conditions = masked_loads(stage.expressions)
    if design.order == "tiles" and find_transpose(stage):
        write_transpose(builder, stage, design, number)
    elif is_elementwise(stage):
        write_elementwise(builder, stage, design, number)
    else:
        write_row_stage(builder, stage, design, number)


def _header(program: Program, builder: CudaSourceBuilder) -> str:
    """Includes, the index type, and the device functions that the kernels call."""
    body = "\n".join(line for kernel in builder.kernels for line in kernel.body)
    largest = max(tensor.size for tensor in program.tensors)
    integer = "int" if largest < _MAX_INT32_ELEMENTS else "long long"
    functions = dict.fromkeys(text for call, text in _DEVICE_FUNCTIONS if call in body)
    includes = headers({tensor.dtype for tensor in program.tensors})
    return "\n".join([includes, f"using Int = {integer};", "", PRELUDE, *functions])


def _kernels(builder: CudaSourceBuilder) -> list[str]:
    lines = []
    for kernel in builder.kernels:
        arguments = [f"const __grid_constant__ CUtensorMap {map.name}" for map in kernel.maps]
        arguments += [_argument(builder, name, kernel.written, " __restrict__") for name in kernel.tensors]
        signature = f"__launch_bounds__({kernel.threads}) {kernel.name}({', '.join(arguments)})"
        lines += [f"__global__ void {signature} {{", *indented(kernel.body), "}", ""]
    return lines


def _argument(builder: CudaSourceBuilder, tensor: str, written: set[str], qualifier: str = "") -> str:
    """The declaration of a pointer to a tensor."""
    const = "" if tensor in written else "const "
    return f"{const}{STORAGE_TYPES[builder.tensors[tensor].dtype]}*{qualifier} {builder.pointer(tensor)}"


def _launchers(
    builder: CudaSourceBuilder, program: Program, groups: list[list[CudaKernel]], calls: list[list[str]]
) -> tuple[list[str], list[str]]:
    """A host function for each group of kernels without a library call between them, and the Python lines
    that call them."""
    source, lines = list[str](), list[str]()
    for number, group in enumerate(groups):
        lines += calls[number - 1] if number else []
        if group:
            name = "run" if len(groups) == 1 else f"run{number}"
            used = [t.name for t in program.tensors if any(kernel.uses(t.name) for kernel in group)]
            source += _launcher(builder, name, group, used)
            lines.append(f"lib.{name}({', '.join(builder.pointer(tensor) for tensor in used)})")
    return source, lines


def _launcher(builder: CudaSourceBuilder, name: str, kernels: list[CudaKernel], used: list[str]) -> list[str]:
    """A host function, which checks alignment, requests dynamic shared memory and launches the kernels."""
    written = {tensor for kernel in kernels for tensor in kernel.written}
    arguments = [_argument(builder, tensor, written) for tensor in used]
    body = []
    aligned = [
        f"size_t({builder.pointer(tensor)})"
        for tensor in used
        if tensor in builder.vectorized and builder.tensors[tensor].role in ("input", "parameter")
    ]
    if aligned:
        body += [f"if (({' | '.join(aligned)}) % 16) return cudaErrorMisalignedAddress;"]
    for kernel in kernels:
        body += _launch(builder, kernel)
    return [
        f'extern "C" int {name}({", ".join([*arguments, "cudaStream_t stream"])}) {{',
        *indented([*body, "return cudaGetLastError();"]),
        "}",
    ]


def _launch(builder: CudaSourceBuilder, kernel: CudaKernel) -> list[str]:
    name, lines = kernel.name, list[str]()
    if kernel.shared_bytes != "0":
        attribute = "cudaFuncAttributeMaxDynamicSharedMemorySize"
        lines += [
            f"static const cudaError_t {name}_memory = "
            f"cudaFuncSetAttribute({name}, {attribute}, {kernel.shared_bytes});",
            f"if ({name}_memory) return {name}_memory;",
        ]
    for map in kernel.maps:
        lines += [
            f"CUtensorMap {map.name};",
            f"if (const int error = encode_map(&{map.name}, {map.arguments})) return error;",
        ]
    pointers = [builder.pointer(tensor) for tensor in kernel.tensors]
    arguments = ", ".join([*(map.name for map in kernel.maps), *pointers])
    configuration = f"{kernel.grid}, {kernel.threads}, {kernel.shared_bytes}, stream"
    return [*lines, f"{name}<<<{configuration}>>>({arguments});"]


BACKEND = Backend("cuda", "cuda", write, moves.seeds, moves.MOVES, moves.fallbacks)
