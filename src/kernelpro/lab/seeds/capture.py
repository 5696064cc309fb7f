"""torch.compile run once on a task: the code it made, and where each argument of that code comes from.

The compiler lifts parameters and constants out of the module, orders them as it likes, and hides that mapping. So the
compiled graph is watched while it runs: an argument is whatever input, parameter, buffer or attribute has its memory.
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
"""Baselines that compile, and the mode that each is."""
_MOST_CONSTANTS = 64
"""Elements of a constant that is written into the candidate."""


class NoSeed(Exception):
    """The compiler's code cannot be had as a candidate; the message says why, in one line."""


@dataclass(frozen=True)
class Captured:
    code: str
    parameters: tuple[str, ...]
    """Of `forward`, in order."""
    arguments: tuple[str, ...]
    """What the code is called with: expressions over `self` and the parameters of `forward`."""
    result: str
    """What `forward` returns: an expression over `outputs`, which the code gives, and the same."""
    constants: dict[str, str] = field(default_factory=dict)
    """Tensors that the code finds in its module, as expressions."""
    loose: tuple[str, ...] = ()
    """Of the arguments, tensors that are plain attributes: a module does not move them."""
    weights: dict[str, str] = field(default_factory=dict)
    """Where they are given by name alone: each with its shape and type as text."""
    settings: dict[str, dict[str, int]] = field(default_factory=dict)
    """Block sizes and the like that Triton kernels run with, of all those that the compiler tried."""


@dataclass
class Seen:
    graph: Any
    inputs: list[Any]
    outputs: list[Any]


def capture(reference: Reference, variant: str) -> Captured:
    """Compile and call the task's model; raises NoSeed."""
    form, leaves = reference.inputs(0)
    values = tree.unpack(form, leaves)
    model = reference.model()
    with watching() as seen, torch.no_grad():
        try:
            result = torch.compile(model, fullgraph=True, mode=MODES[variant])(*values)
        except Exception as error:  # whatever a compiler raises, it has nothing to offer
            raise NoSeed(_first_line(error)) from None
    return described(reference, model, values, result, seen)


def described(
    reference: Reference, model: nn.Module, values: list[Any], result: Any, seen: list[Seen]
) -> Captured:
    """Where the arguments and results of the graph come from that was seen in this call of the model; raises NoSeed.

    Of a live module parameters and buffers are known by name; its class is needed only for what has no name of that kind.
    """
    if reference.task.form == "module":
        try:
            return _described(model, values, result, seen, by_name=True)
        except NoSeed:
            if not reference.is_made_of_init_inputs():
                raise
    return _described(model, values, result, seen, by_name=False)


def _described(model: nn.Module, values: list[Any], result: Any, seen: list[Seen], by_name: bool) -> Captured:
    if len(seen) != 1:
        raise NoSeed(f"the compiler made {len(seen)} graphs of the model, not one")
    (once,) = seen
    parameters = _parameters(model, len(values))
    named = _named(model, by_name)
    loose = {} if by_name else _loose(model)
    known = _inputs(values, parameters) | loose | {_key(tensor): text for text, _, tensor in named}
    arguments = tuple(_expression(value, known) for value in once.inputs)
    outputs = {
        _key(value): f"outputs[{i}]"
        for i, value in enumerate(once.outputs)
        if isinstance(value, torch.Tensor)
    }
    weights = named if by_name and any(text in arguments for text, _, _ in named) else []
    return Captured(
        code=once.graph.source_code,
        parameters=parameters,
        arguments=arguments,
        result=_result(result, known | outputs),
        constants={name: _constant(name, value) for name, value in (once.graph.constants or {}).items()},
        loose=tuple(dict.fromkeys(text for text in arguments if text in loose.values())),
        weights={name: f"{tuple(tensor.shape)}, {tensor.dtype}" for _, name, tensor in weights},
        settings=_settings(once.graph),
    )


@contextmanager
def watching() -> Iterator[list[Seen]]:
    """Every call of a compiled graph, with what went in and what came out."""
    from torch._inductor.output_code import CompiledFxGraph

    seen: list[Seen] = []
    plain = CompiledFxGraph.__call__

    def watched(graph: Any, inputs: Any) -> Any:
        given = list(inputs)  # the code clears the list that it is given
        outputs = plain(graph, inputs)
        seen.append(Seen(graph, given, list(outputs)))
        return outputs

    CompiledFxGraph.__call__ = watched  # type: ignore[method-assign,assignment]
    try:
        yield seen
    finally:
        CompiledFxGraph.__call__ = plain  # type: ignore[method-assign]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    why = next(
        (line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")), lines[0]
    )
    return f"torch.compile makes no single graph of the model: {why[:200]}"


def _settings(graph: Any) -> dict[str, dict[str, int]]:
    """By kernel. A compiled graph has been called, and so each of its Triton kernels has settled for one of its configurations."""
    from torch._inductor.codecache import PyCodeCache

    found: dict[str, dict[str, int]] = {}
    for module in PyCodeCache.modules:
        if getattr(module, "key", None) != graph.cache_key:
            continue
        for name, kernel in vars(module).items():
            launchers = getattr(kernel, "launchers", ())
            if isinstance(launchers, list) and len(launchers) == 1:
                chosen = launchers[0].config
                found[name] = {
                    **chosen.kwargs,
                    "num_warps": chosen.num_warps,
                    "num_stages": chosen.num_stages,
                }
    return found


# --- names for tensors -----------------------------------------------------------------------------------

_Key = tuple[Any, ...]


def _key(tensor: torch.Tensor) -> _Key:
    """Tensors that are the same: type, place in memory, shape, strides."""
    return (tensor.dtype, tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))


def _expression(value: Any, known: dict[_Key, str]) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if (found := known.get(_key(value))) is None:
        raise NoSeed(
            f"the compiler's code takes a tensor of shape {tuple(value.shape)} that is no input and not in the module"
        )
    return found


def _parameters(model: nn.Module, count: int) -> tuple[str, ...]:
    """Names for the inputs: those of the reference's own forward, where it has so many."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in kinds]
    return tuple(names[:count]) if len(names) >= count else tuple(f"input_{i}" for i in range(count))


def _inputs(values: list[Any], names: tuple[str, ...]) -> dict[_Key, str]:
    found: dict[_Key, str] = {}

    def visit(value: Any, text: str) -> None:
        if isinstance(value, torch.Tensor):
            found[_key(value)] = text
        elif isinstance(value, (list, tuple, dict)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                visit(item, f"{text}[{key!r}]")

    for value, name in zip(values, names, strict=True):
        visit(value, name)
    return found


def _named(model: nn.Module, by_name: bool) -> list[tuple[str, str, torch.Tensor]]:
    """Buffers and parameters: as expressions over `self`, by name, themselves. Buffers that do not persist are given to nobody."""
    owned = dict(model.named_buffers()) | dict(model.named_parameters())
    kept = model.state_dict().keys() if by_name else owned.keys()
    return [(_path(name, by_name), name, tensor) for name, tensor in owned.items() if name in kept]


def _loose(model: nn.Module) -> dict[_Key, str]:
    return {
        _key(value): f"{_path(place)}.{name}"
        for place, part in model.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Tensor)
    }


def _path(name: str, plain: bool = False) -> str:
    """`blocks.0.norm.weight` as Python: self.blocks[0].norm.weight; `plain`: where `blocks` is a module without items."""
    text = "self"
    for part in filter(None, name.split(".")):
        if part.isidentifier():
            text += f".{part}"
        elif plain:
            text = f"getattr({text}, {part!r})"
        else:
            text += f"[{part}]" if part.isdigit() else f"[{part!r}]"
    return text


def _result(value: Any, known: dict[_Key, str]) -> str:
    if isinstance(value, torch.Tensor):
        if (found := known.get(_key(value))) is None:
            raise NoSeed("an output of the model is not one of the compiled graph")
        return found
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_result(item, known)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        items = ", ".join(_result(item, known) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items},)"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise NoSeed(f"the model returns a {type(value).__name__}")


def _constant(name: str, value: Any) -> str:
    if not isinstance(value, torch.Tensor) or value.numel() > _MOST_CONSTANTS:
        raise NoSeed(f"the compiler's code holds a constant that is too large to be written down ({name})")
    return f"torch.tensor({value.tolist()}, dtype={value.dtype}, device={value.device.type!r})"
