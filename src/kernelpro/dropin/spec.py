"""What was judged, as plain data: a kernel serves a call only if the call fits this description."""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import io
import tokenize
import types
from dataclasses import dataclass, field
from typing import Any

import torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format)
_DEPTH = 4
"""Objects in objects beyond this depth are described by their type alone."""


@dataclass(frozen=True)
class KernelSpec:
    """What was judged. All values are Python literals."""

    name: str
    """The class or function that the kernel replaces."""
    digest: str
    """Identifies kernel and task; part of the operator's name."""
    target: str
    """`cuda` or `cpu`."""
    training: bool
    """The mode in which the kernel was judged."""
    inputs: Any
    """See `signature`."""
    outputs: Any
    state: dict[str, Any]
    """Shape and dtype of each parameter and buffer, by name."""
    settings: dict[str, str]
    """What else the forward pass read, see `reads.py`."""
    init: Any = ()
    """Positional arguments of the kernel's constructor."""
    limit: float = 1e-2
    """Largest relative error of an output."""
    noun: str = "kernel"
    """What messages call the winner: `kernel`, or `torch.compile's code`."""
    parameter_names: tuple[str, ...] = ()
    """Names of the positional parameters of the forward pass."""
    keyword_only: tuple[str, ...] = ()
    """Names of the last inputs, which the forward pass takes as keywords only; the kernel takes them by
    position."""
    constants: dict[str, Any] = field(default_factory=dict)
    """For a KernelBench task: the arguments and constants of `get_inputs` that give this shape."""
    ranges: dict[str, Any] = field(default_factory=dict)
    """Ranges of values of the example inputs and the state, to draw new ones for a self-test."""


def call_with_constants(module: types.ModuleType, function: Any, constants: dict[str, Any]) -> Any:
    """Call a function with those constants that are parameters of it; the others replace constants of its
    file during the call."""
    parameters = inspect.signature(function).parameters
    before = {name: vars(module)[name] for name in constants if name not in parameters}
    vars(module).update({name: constants[name] for name in before})
    try:
        return function(**{name: value for name, value in constants.items() if name in parameters})
    finally:
        vars(module).update(before)


def map_tensors(value: Any, change: Any) -> Any:
    """`value` with `change` applied to every tensor in its lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        items = [map_tensors(item, change) for item in value]
        if isinstance(value, tuple):
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return items
    return {key: map_tensors(item, change) for key, item in value.items()} if type(value) is dict else value


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors in nested lists, tuples and dicts."""
    leaves: list[torch.Tensor] = []
    map_tensors(value, leaves.append)
    return leaves


def signature(value: Any) -> Any:
    """Shape, dtype and strides of every tensor, and the description of everything else."""
    if isinstance(value, torch.Tensor):
        strides = tuple(value.stride()) if value.layout is torch.strided else None
        return "tensor", tuple(value.shape), str(value.dtype).removeprefix("torch."), strides
    if isinstance(value, (list, tuple)):
        return "tuple" if isinstance(value, tuple) else "list", tuple(map(signature, value))
    if type(value) is dict:
        return "dict", tuple((key, signature(item)) for key, item in value.items())
    return "value", describe(value)


def state_signature(module: torch.nn.Module) -> dict[str, Any]:
    """Shape and dtype of each parameter and buffer of a module."""
    return {name: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in named_state(module)}


def named_state(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, those that are not persistent included; tied ones once."""
    return [*module.named_parameters(), *module.named_buffers()]


def describe(value: Any, depth: int = _DEPTH) -> str:
    """A description of a value that is the same in every process and Python version."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return f"tensor {tuple(value.shape)} {value.dtype}"
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [describe(item, depth - 1) for item in value] if depth else ["..."]
        ordered = sorted(items) if isinstance(value, (set, frozenset)) else items
        return f"{type(value).__name__}({', '.join(ordered)})"
    if isinstance(value, dict):
        pairs = (
            [f"{describe(k, depth - 1)}: {describe(v, depth - 1)}" for k, v in value.items()] if depth else []
        )
        return f"{type(value).__name__}({', '.join(pairs)})"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__.rpartition('.')[2]}"
    if isinstance(value, functools.partial):
        return f"partial({describe(value.func)}, {describe(value.args)}, {describe(value.keywords)})"
    if isinstance(value, (types.FunctionType, types.MethodType)):
        is_library = str(value.__module__).partition(".")[0] == "torch"
        text = "" if is_library else f" #{code_digest(value.__code__)}"
        return f"function {value.__qualname__}{text}"
    if isinstance(value, type) or (callable(value) and not hasattr(value, "__dict__")):
        return f"{'class' if isinstance(value, type) else 'function'} {getattr(value, '__qualname__', value)}"
    name = type(value).__qualname__
    if isinstance(value, torch.nn.Module) or not depth or not hasattr(value, "__dict__"):
        return f"a {name}"
    fields = sorted(vars(value).items())
    return f"{name}({', '.join(f'{key}={describe(item, depth - 1)}' for key, item in fields)})"


def code_digest(code: types.CodeType) -> str:
    """A hash of a function's source without comments and layout; of its constants if there is no source."""
    try:
        source = inspect.getsource(code)
        tokens = tokenize.generate_tokens(io.StringIO(inspect.cleandoc(source)).readline)
        skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        text = "".join(token.string for token in tokens if token.type not in skipped)
    except (OSError, TypeError, tokenize.TokenError, SyntaxError):
        text = f"{code.co_names} {[c for c in code.co_consts if isinstance(c, _PLAIN)]}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def relative_error(output: Any, expected: Any) -> float:
    """Largest ||output - expected|| / ||expected|| over the outputs; the share of mismatches for integer
    outputs. Infinite if structure, shapes or dtypes differ."""
    if _structure(output) != _structure(expected):
        return float("inf")
    largest = 0.0
    for a, b in zip(tensors_of(output), tensors_of(expected), strict=True):
        same = (a == b) | ((a != a) & (b != b))
        if b.is_floating_point() or b.is_complex():
            wide = torch.complex128 if b.is_complex() else torch.float64
            size = b[b.isfinite()].to(wide).norm().clamp_min(1e-30)
            error = float(torch.where(same, 0.0, a.to(wide) - b.to(wide)).norm() / size)
        else:
            error = 1.0 - float(same.double().mean()) if b.numel() else 0.0
        largest = max(largest, error if error == error else float("inf"))
    return largest


def _structure(value: Any) -> Any:
    """The signature without strides."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_structure(item) for item in value]
    return {key: _structure(item) for key, item in value.items()} if type(value) is dict else type(value)
