"""The forms of a task: the programs that the playbook can schedule, by name.

own             the playbook writes everything; first on a CPU if its convolutions are likely to be faster
library         torch computes large products, convolutions and attention; the rest is fused around the calls
implicit_gemm   as library, but the playbook writes convolutions as tiled products; only in Triton
channel_rows    as implicit_gemm, but reductions over channels are fused into tiles that have all channels;
                only in Triton, and only if there are such reductions
joint_phases    as own, but one product computes all phases of a transposed convolution with a stride; only in
                CUDA, and only if there is such a convolution
transposed      as own, but right operands of products are stored transposed first; only in Triton, and only
                if half of a product is masked, so that no library call computes it
channels_last   as library, with the channels of convolutions innermost in memory
plain, plain_library   as own and library, without algebra: fallbacks for tasks on which algebra fails
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.algebra.simplify import simplify
from kernelpro.authors.playbook.fusion.formulas import use_cheaper_formulas
from kernelpro.authors.playbook.fusion.fuser import fuse
from kernelpro.authors.playbook.graph.library import LibraryForm
from kernelpro.authors.playbook.ir.stages import MAX_SHARED_BYTES, Program
from kernelpro.authors.playbook.schedule.contractions import reduces_rows_of_tile
from kernelpro.records import Graph, Node, Target

PLAIN_FORMS = ("plain", "plain_library")
TRITON_FORMS = ("implicit_gemm", "channel_rows", "transposed")
"""Forms whose stages only the Triton backend writes well."""
CUDA_FORMS = ("joint_phases",)
"""Forms whose stages only the CUDA backend writes well."""
_FEW_CHANNELS = 16
"""Input channels up to which a tiled product beats the library's pointwise convolution."""
_MANY_POSITIONS, _MANY_CHANNELS = 1024, 32
"""Output positions of an image, and output channels of a group, from which on blocks suit a CPU."""
_PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention")
_MAX_STAGES = 120
"""More stages take minutes to write and compile, and kernel launches dominate their time."""


def programs_of(graph: Graph, target: Target, max_shared_bytes: int = MAX_SHARED_BYTES) -> dict[str, Program]:
    """The programs of a task by form, the most promising first. Raises NoProposal, with the reasons, if there
    are none. `max_shared_bytes`: the most shared memory of a block on the device."""
    simplified, rewrites = simplify(graph)
    forms: list[tuple[str, Graph, LibraryForm]] = [("library", simplified, "library")]
    if target == "cuda":
        forms += [("channels_last", simplified, "channels_last")]
        forms.insert(
            0 if _suits_tiles(simplified) else len(forms), ("implicit_gemm", simplified, "implicit_gemm")
        )
        if any(map(_has_phases, simplified.nodes)):
            forms.insert(0, ("joint_phases", simplified, "joint_phases"))
        if any(_operator(node).startswith("conv") for node in simplified.nodes):
            forms.insert(0, ("channel_rows", simplified, "channel_rows"))
        if _masks_product(simplified):
            forms += [("transposed", simplified, "transposed")]
    own: LibraryForm = "own" if target == "cuda" else "phases"
    forms.insert(0 if target == "cpu" and _suits_blocks(simplified) else len(forms), ("own", simplified, own))
    if rewrites:
        forms += [("plain_library", graph, "library"), ("plain", graph, own)]
    programs: dict[str, Program] = {}
    reasons: dict[str, None] = {}
    for name, source, form in forms:
        try:
            program = _program(source, form)
        except NoProposal as reason:
            reasons[str(reason)] = None
            continue
        if program is not None and not any(_same(program, other) for other in programs.values()):
            programs[name] = program if name in PLAIN_FORMS else replace(program, rewrites=rewrites)
    if not programs:
        raise NoProposal(
            "; ".join(reasons) or "torch's library calls leave nothing for the playbook to write"
        )
    if target == "cuda":
        programs = {name: _on_gpu(program, max_shared_bytes) for name, program in programs.items()}
    return _with_channel_rows_in_place(programs)


def _on_gpu(program: Program, max_shared_bytes: int) -> Program:
    program = use_cheaper_formulas(program)
    return replace(
        program, stages=tuple(replace(stage, max_shared_bytes=max_shared_bytes) for stage in program.stages)
    )


def _with_channel_rows_in_place(programs: dict[str, Program]) -> dict[str, Program]:
    """The programs with `channel_rows` first if it never writes a convolution's result to memory, and second
    if it does: then its other convolutions may be slower than the library's."""
    stages = programs["channel_rows"].stages if "channel_rows" in programs else ()
    if len(programs) < 2 or all(reduces_rows_of_tile(stage) for stage in stages if stage.product):
        return programs
    rows, first, *rest = programs.items()
    return dict([first, rows, *rest])


def _program(graph: Graph, form: LibraryForm) -> Program | None:
    """The program of a graph; None if the form is pointless: without library calls, or without stages."""
    program = fuse(graph, form)
    if len(program.stages) > _MAX_STAGES:
        raise NoProposal(f"the playbook would need {len(program.stages)} kernels; its limit is {_MAX_STAGES}")
    if form in ("own", "phases", "joint_phases", "transposed"):
        return program
    if form == "channel_rows":
        return program if any(map(reduces_rows_of_tile, program.stages)) else None
    if form == "implicit_gemm":
        return program if _convolutions(program) < _convolutions(fuse(graph, "library")) else None
    return program if program.library_calls and program.stages else None


def _suits_tiles(graph: Graph) -> bool:
    """Whether tiled products are likely to be faster than the library's convolutions.

    Measured on an H200: 2 to 6 times faster in three dimensions, 1.4 times in one dimension and with up to 16
    channels, up to 1.5 times in two dimensions. Not faster for pointwise convolutions of more channels, nor
    for transposed convolutions with a stride.
    """
    nodes = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        name = _operator(node)
        if not name.startswith("conv"):
            continue
        source = nodes[node.args[0]["value"]]
        if _has_phases(node):
            return False
        is_pointwise = prod(nodes[node.args[1]["value"]].shape[2:]) == 1
        if len(source.shape) == 4 and source.shape[1] > _FEW_CHANNELS and is_pointwise:
            return False
    return True


def _has_phases(node: Node) -> bool:
    """Whether it is a transposed convolution with a stride."""
    is_transposed = _operator(node).startswith("conv_transpose")
    return is_transposed and any(s != 1 for s in _numbers(node, 3, "stride"))


def _suits_blocks(graph: Graph) -> bool:
    """Whether the playbook's blocked convolutions are likely to be as fast as the library's on a CPU.

    Measured on two x86 cores with AVX-512 (benchmarks/results/cpu-examples.md): with many output positions
    and channels. Depthwise convolutions are never library calls.
    """
    nodes, found = {node.name: node for node in graph.nodes}, False
    for node in graph.nodes:
        if _operator(node) in _PRODUCTS:
            return False
        if not _operator(node).startswith("conv") or nodes[node.args[1]["value"]].shape[1] == 1:
            continue
        found, (groups, *_) = True, _numbers(node, 6, "groups")
        if prod(node.shape[2:]) < _MANY_POSITIONS or node.shape[1] // groups < _MANY_CHANNELS:
            return False
    return found


def _masks_product(graph: Graph) -> bool:
    """Whether only a triangle of a product is needed."""
    nodes = {node.name: node for node in graph.nodes}
    masks = [node for node in graph.nodes if _operator(node) in ("triu", "tril")]
    return any(_operator(nodes[mask.args[0]["value"]]) in ("matmul", "mm", "bmm") for mask in masks)


def _operator(node: Node) -> str:
    return node.op.split(".")[1] if "." in node.op else ""


def _numbers(node: Node, position: int, name: str) -> list[int]:
    value = node.kwargs.get(name, node.args[position] if position < len(node.args) else 1)
    return [value] if isinstance(value, int) else list(value or [1])


def _convolutions(program: Program) -> int:
    """The number of convolutions that torch computes."""
    return sum(call.op.startswith("conv") for call in program.library_calls)


def _same(one: Program, other: Program) -> bool:
    """Whether two programs make the same library calls around the same number of stages."""
    return bool(one.library_calls) and (one.library_calls, one.tensors) == (
        other.library_calls,
        other.tensors,
    )
