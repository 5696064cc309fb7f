"""A task's operator graph, traced by torch.export, as plain data."""

from __future__ import annotations

import io
import math
import operator
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from kernelpro.lab import garbage, tree
from kernelpro.lab.tasks.batches import Resizing
from kernelpro.lab.tasks.parameters import constant_of
from kernelpro.lab.tasks.recurrent_shapes import traced_by_shape
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import BadInput, Graph, Node

TRACER_MODULE = "torch.export._trace"
"""The module that the first trace imports, with torch's compilers; that takes seconds."""
GETITEM = "getitem"
"""Selects one result of an operator that returns several. The dtype of such an operator is `tuple`."""
_MAX_REASON = 200


def operator_graph(reference: Reference, seed: int, resizing: Resizing | None = None) -> Graph:
    """The operators of one call in the task's own mode, at its own batch size or that of `resizing`.

    Composite operators stay whole (`aten.layer_norm`, `aten.linear`). A reference that works in place is
    functionalized. Inputs are named by their path: `0`, or `1.mask` for an entry of the second argument.
    Constants that are neither parameters nor buffers become `aten.full` if all their elements are equal.
    Raises BadInput if the task cannot be traced or a value cannot be represented.
    """
    name = reference.task.name
    form, leaves = reference.inputs(seed)
    leaves = resizing.apply(leaves) if resizing else leaves
    arguments = tuple(tree.unflatten(form, leaves))
    program = _export(reference, arguments)
    input_specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    input_paths = iter(_input_paths(arguments))
    state = {name for name, tensor in reference.state().items() if tensor.is_floating_point()}
    nodes = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            spec = input_specs[node.name]
            if spec.kind is InputKind.USER_INPUT:
                place = next(input_paths)
                if isinstance(value, torch.Tensor):
                    nodes.append(_leaf(node.name, "input", value, place))
            elif not node.users and spec.target not in state:
                continue
            elif spec.target in state:
                nodes.append(_leaf(node.name, "parameter", value, str(spec.target)))
            else:
                nodes.append(
                    _constant(node.name, _constant_value(program, str(spec.target)), str(spec.target), name)
                )
        elif node.op == "call_function" and (node.users or value is not None):  # others are assertions
            nodes.append(_operation(node, name))
    outputs = [
        spec.arg.name for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT
    ]
    single = bool(program.call_spec.out_spec and program.call_spec.out_spec.is_leaf())
    node_names = {node.name for node in nodes}
    if not (single or _is_flat(program)) or not node_names.issuperset(outputs):
        raise BadInput(f"task {name}: it returns something other than a tensor or a tuple of tensors")
    return Graph(_drop_unused(nodes, outputs), tuple(outputs), single)


def _drop_unused(nodes: list[Node], outputs: list[str]) -> tuple[Node, ...]:
    """Drop operators that no output depends on, such as the running statistics of a norm in training."""
    used = set(outputs)
    remaining = []
    for node in reversed(nodes):
        if node.op in ("input", "parameter") or node.name in used:
            remaining.append(node)
            used.update(_value_names([*node.args, *node.kwargs.values()]))
    return tuple(reversed(remaining))


def _value_names(arguments: list[Any]) -> Iterator[str]:
    for argument in arguments:
        if isinstance(argument, dict) and "value" in argument:
            yield str(argument["value"])
        elif isinstance(argument, list):
            yield from _value_names(argument)


def _export(reference: Reference, arguments: tuple[Any, ...]) -> ExportedProgram:
    try:
        with (
            torch.no_grad(),
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
            garbage.paused(),  # the first call imports torch's compilers
            traced_by_shape(),
        ):
            warnings.simplefilter("ignore")  # torch.export also prints graphs that it cannot trace
            program = torch.export.export(reference.model(), arguments, strict=False)
            if any(_is_mutating(node) for node in program.graph.nodes):
                program = program.run_decompositions({})
    except Exception as error:  # the model and the passes of torch.export may raise anything
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise BadInput(
            f"task {reference.task.name}: its operators cannot be traced: {reason[:_MAX_REASON]}"
        ) from None
    return program


def _is_mutating(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _input_paths(value: Any, path: str = "") -> Iterator[str]:
    """The path of each flattened input, in the order of torch.export."""
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _input_paths(item, f"{path}.{index}" if path else str(index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _input_paths(item, f"{path}.{key}")
    else:
        yield path


def _is_flat(program: ExportedProgram) -> bool:
    spec = program.call_spec.out_spec
    return bool(spec and spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children()))


def _leaf(name: str, op: str, value: torch.Tensor, where: str) -> Node:
    strides = () if value.is_contiguous() else tuple(int(s) for s in value.stride())
    return Node(name, op, _shape(value), _dtype(value), strides, where=where)


def _operation(node: torch.fx.Node, task: str) -> Node:
    op = GETITEM if node.target is operator.getitem else str(node.target)
    value = node.meta.get("val")
    args, kwargs = _to_json(node.args, task), _to_json(node.kwargs, task)
    if isinstance(value, torch.Tensor):
        if not all(isinstance(size, int) for size in value.shape):
            raise BadInput(f"task {task}: the output shape of {op} depends on the values of its inputs")
        return Node(node.name, op, _shape(value), _dtype(value), args=tuple(args), kwargs=kwargs)
    if isinstance(value, (list, tuple)) and op != GETITEM:
        return Node(node.name, op, (), "tuple", args=tuple(args), kwargs=kwargs)
    raise BadInput(f"task {task}: {op} returns a {type(value).__name__}, not a tensor")


def _constant_value(program: ExportedProgram, target: str) -> torch.Tensor:
    constant = program.constants.get(target)
    return constant if isinstance(constant, torch.Tensor) else program.state_dict[target]


def _constant(name: str, value: torch.Tensor, target: str, task: str) -> Node:
    with unset_fake_temporarily():  # constants have values even where everything else is fake
        flat = value.flatten()
        fill_value = constant_of(value) if value.is_floating_point() else None
        if fill_value is None and flat.numel() and bool((flat == flat[0]).all()):
            fill_value = flat[0].item()
    if fill_value is None:
        raise BadInput(
            f"task {task}: {target} is a constant tensor but neither a parameter nor a persistent buffer: "
            "use register_buffer"
        )
    return Node(
        name,
        "aten.full.default",
        _shape(value),
        _dtype(value),
        args=(list(value.shape), _to_json(fill_value, task)),
    )


def _shape(value: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(size) for size in value.shape)


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _to_json(value: Any, task: str) -> Any:
    """An argument as JSON; non-finite numbers become the strings `inf`, `-inf` and `nan`."""
    if isinstance(value, torch.fx.Node):
        return {"value": value.name}
    if isinstance(value, (list, tuple)):
        return [_to_json(item, task) for item in value]
    if isinstance(value, dict):
        return {str(key): _to_json(item, task) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    raise BadInput(
        f"task {task}: an operator takes a {type(value).__name__}, which an operator graph cannot hold"
    )
