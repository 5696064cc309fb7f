"""Arguments of a call as a task needs them: keywords by position, and a module's constructor arguments."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from typing import Any

import torch

from kernelpro.records import BadInput

_MAX_GUESSES = 64
"""Constructors to try, on the meta device."""


def as_positional(function: Any, named: Mapping[str, Any]) -> list[Any]:
    """Keyword arguments in the order of the function's parameters; defaults fill gaps."""
    parameters = list(inspect.signature(function).parameters.values())
    try:
        bound = inspect.signature(function).bind(**named)
    except TypeError as error:
        raise BadInput(f"inputs: {error}") from None
    if only := [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name in named]:
        raise BadInput(f"inputs: {only[0]} is keyword-only: candidates are called with positional arguments")
    last = max((i for i, p in enumerate(parameters) if p.name in bound.arguments), default=-1)
    return [bound.arguments.get(p.name, p.default) for p in parameters[: last + 1]]


def infer_init_inputs(module: torch.nn.Module) -> list[Any]:
    """The constructor arguments that give a module with the same parameters and attributes.

    Arguments that are attributes of the same name are taken from there; missing integers are looked for among
    the sizes of the parameters. Empty if nothing fits, or if the constructor takes something else.
    """
    cls = type(module)
    try:
        parameters = list(inspect.signature(cls).parameters.values())
    except (TypeError, ValueError):
        return []
    choices: list[list[Any]] = []
    sizes = sorted({size for t in module.state_dict().values() for size in t.shape})
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            break
        value = getattr(module, parameter.name, None)
        is_plain = isinstance(value, (bool, int, float, str)) or (
            isinstance(value, (tuple, list))
            and all(isinstance(item, (bool, int, float, str)) for item in value)
        )
        if is_plain:
            choices.append([value])
        elif parameter.default is not parameter.empty:
            choices.append([parameter.default])
        else:
            choices.append(list(sizes))
    for guess in itertools.islice(itertools.product(*choices), _MAX_GUESSES):
        if _rebuilds(cls, guess, module):
            return _without_defaults(list(guess), parameters)
    return []


def _without_defaults(values: list[Any], parameters: list[inspect.Parameter]) -> list[Any]:
    while values and values[-1] is parameters[len(values) - 1].default:
        values.pop()
    return values


def _rebuilds(cls: Any, init: tuple[Any, ...], module: torch.nn.Module) -> bool:
    try:
        with torch.device("meta"):
            other = cls(*init)
        return bool(_description(other) == _description(module))
    except Exception:  # a constructor with wrong arguments may raise anything
        return False


def _description(module: torch.nn.Module) -> Any:
    """Names and shapes of the state, classes of submodules and their plain attributes."""
    plain = (bool, int, float, str, tuple, type(None))
    attributes = [
        (
            path,
            type(part).__qualname__,
            sorted((k, repr(v)) for k, v in vars(part).items() if isinstance(v, plain)),
        )
        for path, part in module.named_modules()
    ]
    for _, _, values in attributes:
        values[:] = [
            (name, value) for name, value in values if name != "training" and not name.startswith("_")
        ]
    return {name: t.shape for name, t in module.state_dict().items()}, attributes
