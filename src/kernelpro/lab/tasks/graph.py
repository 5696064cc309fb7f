"""A task's operator graph, traced by torch.export and written as plain data."""

from __future__ import annotations

import io
import math
import operator
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from kernelpro.lab import tree
from kernelpro.lab.tasks.parameters import constant_of
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import BadInput, Graph, Node

GETITEM = "getitem"
"""Takes one value out of an operator that gives several; such an operator's own dtype is `tuple`."""
_REASON = 200


def operator_graph(reference: Reference, seed: int) -> Graph:
    """The operators of one call in the task's own mode, at the shapes of its inputs.

    Composite operators stay whole (`aten.layer_norm`, `aten.linear`); a reference that works in place is rewritten so
    that every value is computed once. Inputs are found by their path: `0`, or `1.mask` inside the second argument.
    Constants that are neither parameter nor buffer become `aten.full` where all their elements are equal.
    Raises BadInput with one line for what cannot be traced or written down.
    """
    name = reference.task.name
    form, leaves = reference.inputs(seed)
    arguments = tuple(tree.unpack(form, leaves))
    program = _exported(reference, arguments)
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    places = iter(_places(arguments))
    state = {name for name, tensor in reference.state().items() if tensor.is_floating_point()}
    nodes = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            spec = kinds[node.name]
            if spec.kind is InputKind.USER_INPUT:
                place = next(places)
                if isinstance(value, torch.Tensor):
                    nodes.append(_leaf(node.name, "input", value, place))
            elif not node.users and spec.target not in state:
                continue
            elif spec.target in state:
                nodes.append(_leaf(node.name, "parameter", value, str(spec.target)))
            else:
                nodes.append(_constant(node.name, _value(program, str(spec.target)), str(spec.target), name))
        elif node.op == "call_function" and (
            node.users or value is not None
        ):  # what gives nothing only checks something
            nodes.append(_operation(node, name))
    outputs = [
        spec.arg.name for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT
    ]
    single = bool(program.call_spec.out_spec and program.call_spec.out_spec.is_leaf())
    known = {node.name for node in nodes}
    if not (single or _is_flat(program)) or not known.issuperset(outputs):
        raise BadInput(f"task {name}: it returns something other than a tensor or a tuple of tensors")
    return Graph(_needed(nodes, outputs), tuple(outputs), single)


def _needed(nodes: list[Node], outputs: list[str]) -> tuple[Node, ...]:
    """Without operators that no output is made of, such as the running statistics of a norm in training."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if node.op in ("input", "parameter") or node.name in wanted:
            kept.append(node)
            wanted.update(_named([*node.args, *node.kwargs.values()]))
    return tuple(reversed(kept))


def _named(arguments: list[Any]) -> Iterator[str]:
    for argument in arguments:
        if isinstance(argument, dict) and "value" in argument:
            yield str(argument["value"])
        elif isinstance(argument, list):
            yield from _named(argument)


def _exported(reference: Reference, arguments: tuple[Any, ...]) -> ExportedProgram:
    try:
        with (
            torch.no_grad(),
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")  # and what it prints of a graph that it cannot trace
            program = torch.export.export(reference.model(), arguments, strict=False)
            if any(_writes(node) for node in program.graph.nodes):
                program = program.run_decompositions({})
    except Exception as error:  # torch.export raises whatever the model and its own passes raise
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise BadInput(
            f"task {reference.task.name}: its operators cannot be traced: {reason[:_REASON]}"
        ) from None
    return program


def _writes(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _places(value: Any, path: str = "") -> Iterator[str]:
    """Where torch.export finds each flattened input, in its order."""
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _places(item, f"{path}.{index}" if path else str(index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _places(item, f"{path}.{key}")
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
    args, kwargs = _plain(node.args, task), _plain(node.kwargs, task)
    if isinstance(value, torch.Tensor):
        if not all(isinstance(size, int) for size in value.shape):
            raise BadInput(f"task {task}: the shape that {op} gives depends on the values of its inputs")
        return Node(node.name, op, _shape(value), _dtype(value), args=tuple(args), kwargs=kwargs)
    if isinstance(value, (list, tuple)) and op != GETITEM:
        return Node(node.name, op, (), "tuple", args=tuple(args), kwargs=kwargs)
    raise BadInput(f"task {task}: {op} gives a {type(value).__name__}, not a tensor")


def _value(program: ExportedProgram, target: str) -> torch.Tensor:
    found = program.constants.get(target)
    return found if isinstance(found, torch.Tensor) else program.state_dict[target]


def _constant(name: str, value: torch.Tensor, target: str, task: str) -> Node:
    flat = value.flatten()
    same = constant_of(value) if value.is_floating_point() else None
    if same is None and flat.numel() and bool((flat == flat[0]).all()):
        same = flat[0].item()
    if same is None:
        why = "is a constant tensor that is neither a parameter nor a persistent buffer (register_buffer makes it one)"
        raise BadInput(f"task {task}: {target} {why}")
    return Node(
        name, "aten.full.default", _shape(value), _dtype(value), args=(list(value.shape), _plain(same, task))
    )


def _shape(value: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(size) for size in value.shape)


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _plain(value: Any, task: str) -> Any:
    """An argument as JSON; numbers that JSON has no word for are `inf`, `-inf` and `nan`."""
    if isinstance(value, torch.fx.Node):
        return {"value": value.name}
    if isinstance(value, (list, tuple)):
        return [_plain(item, task) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item, task) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    raise BadInput(f"task {task}: an operator takes a {type(value).__name__}, which no operator graph holds")
