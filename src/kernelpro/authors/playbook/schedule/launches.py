"""Whether launches take as long as the kernels: then a CUDA graph launches all of them at once."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Literal

from kernelpro.authors.cuda_graph import MIN_OPERATORS
from kernelpro.authors.playbook.ir.expressions import itemsize
from kernelpro.authors.playbook.ir.stages import Program
from kernelpro.records import Graph, Node

_LAUNCH_SECONDS = 10e-6
_FLOPS, _BANDWIDTH = 200e12, 3e12
"""Rates that kernels of an H200 reach. On slower GPUs, launches matter even less."""
_NOTICEABLE, _DOMINANT = 0.5, 2.0
"""The shares of the kernels' time from which on launch overhead is noticeable, and dominant."""

LaunchOverhead = Literal["negligible", "noticeable", "dominant"]


def launch_overhead(program: Program, graph: Graph) -> LaunchOverhead:
    """The launch overhead of a program, estimated from its launches and the graph's bytes and operations."""
    launches = len(program.stages) + len(program.library_calls)
    inputs = [tensor for tensor in program.tensors if tensor.role == "input"]
    if launches < MIN_OPERATORS or not all(tensor.path.isdigit() for tensor in inputs):
        return "negligible"
    share = launches * _LAUNCH_SECONDS / _kernel_seconds(graph)
    return "dominant" if share > _DOMINANT else "noticeable" if share > _NOTICEABLE else "negligible"


def _kernel_seconds(graph: Graph) -> float:
    nodes = {node.name: node for node in graph.nodes}
    moved = sum(prod(node.shape) * itemsize(node.dtype) for node in graph.nodes)
    return max(sum(_flops(node, nodes) for node in graph.nodes) / _FLOPS, moved / _BANDWIDTH)


def _flops(node: Node, nodes: Mapping[str, Node]) -> int:
    """The operations of a matrix product or a convolution; 0 for other operators."""
    operands = [nodes[arg["value"]] for arg in node.args[:2] if isinstance(arg, dict) and "value" in arg]
    name = node.op.split(".")[1] if "." in node.op else ""
    if len(operands) < 2:
        return 0
    left, right = operands
    if name.startswith("conv"):
        outputs = left if "transpose" in name else node
        return 2 * prod(outputs.shape) * prod(right.shape[1:])
    return 2 * prod(node.shape) * left.shape[-1] if name in ("linear", "matmul", "mm", "bmm") else 0
