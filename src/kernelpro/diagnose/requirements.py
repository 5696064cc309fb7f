"""The data that a diagnostic uses, found in the bytecode of `analyze` and of the functions that it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from kernelpro.diagnose.diagnostic import Diagnostic

_ATTRIBUTES = ("timeline", "code", "power", "cpu")
"""Attributes of a context or a profile that hold optional data. A diagnostic may have a fallback without
them."""


def required_data(diagnostic: Diagnostic) -> tuple[str, ...]:
    """`timeline`, `code` (machine code), `power`, `cpu` (the CPU profile), `lines` (stalls by line)."""
    used = set(_names_used(diagnostic.analyze, set()))
    return tuple(name for name in _ATTRIBUTES if name in used) + ("lines",) * diagnostic.sample_lines


def _names_used(function: Callable[..., Any], visited: set[Any]) -> Iterator[str]:
    """Names that a function uses, and those of the functions it calls in its module and in this package."""
    if not isinstance(function, FunctionType) or function in visited:
        return
    visited.add(function)
    for name in _names_in(function.__code__):
        yield name
        callee = function.__globals__.get(name)
        module = getattr(callee, "__module__", None)
        if callable(callee) and (
            module == function.__module__ or str(module).startswith("kernelpro.diagnose.")
        ):
            yield from _names_used(callee, visited)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
