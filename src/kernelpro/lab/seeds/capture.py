"""Runs torch.compile once on a task, captures the code, and finds where each argument of the code comes from.

The compiler lifts parameters and constants out of the module and reorders them. Therefore the calls of the
compiled graph are recorded: each argument is the input, parameter, buffer or attribute with the same memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kernelpro.lab import tree
from kernelpro.lab.tasks.reference import Reference

MODES = {"compile": "default", "max_autotune": "max-autotune-no-cudagraphs"}
"""The compiled baselines, with torch.compile's `mode` for each."""
_MAX_CONSTANT_ELEMENTS = 64
"""Number of elements of the largest constant that is written into the candidate."""


class NoSeed(Exception):
    """The compiler's code cannot become a candidate; the message is one line."""


@dataclass(frozen=True)
class CapturedGraph:
    """The compiler's code and how `forward` calls it."""

    code: str
    parameters: tuple[str, ...]
    """The parameters of `forward`, in order."""
    arguments: tuple[str, ...]
    """The arguments of the code: expressions over `self` and the parameters of `forward`."""
    result: str
    """What `forward` returns: an expression over the code's `outputs`, `self` and the parameters."""
    constants: dict[str, str] = field(default_factory=dict)
    """Constant tensors of the code, as expressions."""
    attributes: tuple[str, ...] = ()
    """Arguments that are plain tensor attributes, which `Module.to` does not move."""
    weights: dict[str, str] = field(default_factory=dict)
    """If the state is loaded by name: the shape and dtype of each weight, as text."""
    kernel_configs: dict[str, dict[str, int]] = field(default_factory=dict)
    """The configuration that the compiler chose for each Triton kernel: block sizes, warps, stages."""


@dataclass
class GraphCall:
    """One call of a compiled graph."""

    graph: Any
    inputs: list[Any]
    outputs: list[Any]


def capture(reference: Reference, variant: str) -> CapturedGraph:
    """Compile and call the task's model. Raises NoSeed."""
    form, leaves = reference.inputs(0)
    values = tree.unflatten(form, leaves)
    model = reference.model()
    with recording_graph_calls() as graph_calls, torch.no_grad():
        try:
            result = torch.compile(model, fullgraph=True, mode=MODES[variant])(*values)
        except Exception as error:  # the compiler may raise anything
            raise NoSeed(_first_line(error)) from None
    return capture_from_calls(reference, model, values, result, graph_calls)


def capture_from_calls(
    reference: Reference, model: nn.Module, values: list[Any], result: Any, graph_calls: list[GraphCall]
) -> CapturedGraph:
    """Map the arguments and results of the recorded graph to the model. Raises NoSeed.

    The candidate loads the parameters and buffers of a live module by name. It needs the module's class only
    if the code takes other tensors.
    """
    if reference.task.form == "module":
        try:
            return _describe(model, values, result, graph_calls, by_name=True)
        except NoSeed:
            if not reference.can_rebuild_from_init_inputs():
                raise
    return _describe(model, values, result, graph_calls, by_name=False)


def _describe(
    model: nn.Module, values: list[Any], result: Any, calls: list[GraphCall], by_name: bool
) -> CapturedGraph:
    if len(calls) != 1:
        raise NoSeed(f"the compiler split the model into {len(calls)} graphs instead of one")
    (call,) = calls
    parameters = _parameters(model, len(values))
    named = _named_tensors(model, by_name)
    loose = {} if by_name else _attribute_tensors(model)
    known = _inputs(values, parameters) | loose | {_tensor_key(tensor): text for text, _, tensor in named}
    arguments = tuple(_expression(value, known) for value in call.inputs)
    outputs = {
        _tensor_key(value): f"outputs[{i}]"
        for i, value in enumerate(call.outputs)
        if isinstance(value, torch.Tensor)
    }
    weights = named if by_name and any(text in arguments for text, _, _ in named) else []
    return CapturedGraph(
        code=call.graph.source_code,
        parameters=parameters,
        arguments=arguments,
        result=_result(result, known | outputs),
        constants={name: _constant(name, value) for name, value in (call.graph.constants or {}).items()},
        attributes=tuple(dict.fromkeys(text for text in arguments if text in loose.values())),
        weights={name: f"{tuple(tensor.shape)}, {tensor.dtype}" for _, name, tensor in weights},
        kernel_configs=_chosen_configs(call.graph),
    )


@contextmanager
def recording_graph_calls() -> Iterator[list[GraphCall]]:
    """Record the calls of compiled graphs with their inputs and outputs."""
    from torch._inductor.output_code import CompiledFxGraph

    recorded: list[GraphCall] = []
    original_call = CompiledFxGraph.__call__

    def recording_call(graph: Any, inputs: Any) -> Any:
        arguments = list(inputs)  # the code clears its argument list
        outputs = original_call(graph, inputs)
        recorded.append(GraphCall(graph, arguments, list(outputs)))
        return outputs

    CompiledFxGraph.__call__ = recording_call  # type: ignore[method-assign,assignment]
    try:
        yield recorded
    finally:
        CompiledFxGraph.__call__ = original_call  # type: ignore[method-assign]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reason = next(
        (line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")), lines[0]
    )
    return f"torch.compile does not trace the model as one graph: {reason[:200]}"


def _chosen_configs(graph: Any) -> dict[str, dict[str, int]]:
    """The configuration of each kernel. After a call, each Triton kernel of a graph has exactly one."""
    from torch._inductor.codecache import PyCodeCache

    configs: dict[str, dict[str, int]] = {}
    for module in PyCodeCache.modules:
        if getattr(module, "key", None) != graph.cache_key:
            continue
        for name, kernel in vars(module).items():
            launchers = getattr(kernel, "launchers", ())
            if isinstance(launchers, list) and len(launchers) == 1:
                launch_config = launchers[0].config
                configs[name] = {
                    **launch_config.kwargs,
                    "num_warps": launch_config.num_warps,
                    "num_stages": launch_config.num_stages,
                }
    return configs


# --- names for tensors -----------------------------------------------------------------------------------

_TensorKey = tuple[Any, ...]


def _tensor_key(tensor: torch.Tensor) -> _TensorKey:
    """Equal for tensors with the same dtype, address, shape and strides."""
    return (tensor.dtype, tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))


def _expression(value: Any, known: dict[_TensorKey, str]) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if (expression := known.get(_tensor_key(value))) is None:
        raise NoSeed(
            f"the compiler's code takes a tensor of shape {tuple(value.shape)} that is neither an input nor "
            "part of the module"
        )
    return expression


def _parameters(model: nn.Module, count: int) -> tuple[str, ...]:
    """Names for the inputs: the parameter names of the reference's `forward`, if it has enough."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in kinds]
    return tuple(names[:count]) if len(names) >= count else tuple(f"input_{i}" for i in range(count))


def _inputs(values: list[Any], names: tuple[str, ...]) -> dict[_TensorKey, str]:
    expressions: dict[_TensorKey, str] = {}

    def visit(value: Any, text: str) -> None:
        if isinstance(value, torch.Tensor):
            expressions[_tensor_key(value)] = text
        elif isinstance(value, (list, tuple, dict)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                visit(item, f"{text}[{key!r}]")

    for value, name in zip(values, names, strict=True):
        visit(value, name)
    return expressions


def _named_tensors(model: nn.Module, by_name: bool) -> list[tuple[str, str, torch.Tensor]]:
    """Expression, name and tensor of parameters and buffers; `by_name`: only those in the state dict."""
    owned = dict(model.named_buffers()) | dict(model.named_parameters())
    kept = model.state_dict().keys() if by_name else owned.keys()
    return [(_path(name, by_name), name, tensor) for name, tensor in owned.items() if name in kept]


def _attribute_tensors(model: nn.Module) -> dict[_TensorKey, str]:
    return {
        _tensor_key(value): f"{_path(place)}.{name}"
        for place, part in model.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Tensor)
    }


def _path(name: str, plain: bool = False) -> str:
    """`blocks.0.norm.weight` as Python: `self.blocks[0].norm.weight`; `plain`: without subscripts."""
    text = "self"
    for part in filter(None, name.split(".")):
        if part.isidentifier():
            text += f".{part}"
        elif plain:
            text = f"getattr({text}, {part!r})"
        else:
            text += f"[{part}]" if part.isdigit() else f"[{part!r}]"
    return text


def _result(value: Any, known: dict[_TensorKey, str]) -> str:
    if isinstance(value, torch.Tensor):
        if (expression := known.get(_tensor_key(value))) is None:
            raise NoSeed("an output of the model is not an output of the compiled graph")
        return expression
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_result(item, known)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        items = ", ".join(_result(item, known) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items},)"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise NoSeed(f"the model returns a {type(value).__name__}")


def _constant(name: str, value: Any) -> str:
    if not isinstance(value, torch.Tensor) or value.numel() > _MAX_CONSTANT_ELEMENTS:
        raise NoSeed(f"the compiler's code contains a constant that is too large ({name})")
    return f"torch.tensor({value.tolist()}, dtype={value.dtype}, device={value.device.type!r})"
