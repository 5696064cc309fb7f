"""Converts the arguments of a call to the form that tasks need: keyword arguments by position, and the
constructor arguments of a module."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernelpro.records import BadInput

_MAX_GUESSES = 64
"""Maximum number of argument combinations with which a constructor is tried, on the meta device."""


def positional_sets(function: Any, input_sets: Sequence[Any]) -> tuple[list[list[Any]], list[str]]:
    """The inputs of each shape by position, and the names of those at the end that are keyword-only."""
    positional: list[list[Any]] = []
    names: list[list[str]] = []
    for inputs in input_sets:
        is_named = isinstance(inputs, Mapping)
        values, keyword_only = as_positional(function, inputs) if is_named else (list(inputs), [])
        if not is_named:
            _check_positional(function, values)
        positional.append(values)
        names.append(keyword_only)
    if any(other != names[0] for other in names) or len({len(values) for values in positional}) > 1:
        raise BadInput("inputs: all shapes must give the same arguments")
    return positional, names[0]


def _check_positional(function: Any, values: list[Any]) -> None:
    """Raise BadInput if a function cannot be called with these positional arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C
        return
    try:
        signature.bind(*values)
    except TypeError as error:
        called = f"{getattr(function, '__name__', 'the function')}({', '.join(signature.parameters)})"
        raise BadInput(f"inputs: {error}; give the arguments of {called}, such as inputs=(x,)") from None


def as_positional(function: Any, named: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """Keyword arguments in the order of the function's parameters; defaults fill gaps. Candidates get all
    arguments by position. The second value names those at the end that the function takes as keywords
    only."""
    parameters = list(inspect.signature(function).parameters.values())
    try:
        bound = inspect.signature(function).bind(**named)
    except TypeError as error:
        raise BadInput(f"inputs: {error}") from None
    given = {p.name for p in parameters if p.name in bound.arguments}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    last = max((i for i, p in enumerate(positional) if p.name in given), default=-1)
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name in given]
    if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name in given for p in parameters):
        raise BadInput("inputs: give arguments by position for a function that takes *args or **kwargs")
    values = [bound.arguments.get(p.name, p.default) for p in (*positional[: last + 1], *keywords)]
    return values, [p.name for p in keywords]


def infer_init_inputs(module: torch.nn.Module) -> list[Any]:
    """Guess constructor arguments that create a module with the same parameters and attributes.

    An argument with the name of an attribute gets the attribute's value, another one its default. For an
    argument without either, every size of the parameters is tried. Empty if no guess fits.
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
    """What is compared: names and shapes of the state, and classes and plain attributes of the submodules."""
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
