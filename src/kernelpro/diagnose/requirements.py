"""What a tool looks at, read off its code: which facts of the scene its `look`, and what that calls, ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from kernelpro.diagnose.diagnostic import Diagnostic

_FACTS = {"timeline": "timeline", "code": "code", "mix": "code", "power": "power", "cpu": "cpu"}
"""Names by which a scene or a profile gives a fact. A tool may do with less; what it lacked is in `skipped`."""


def required_data(tool: Diagnostic) -> tuple[str, ...]:
    """`timeline`, `code` (machine code), `power`, `cpu` (the CPU's profile), and `lines` (stalls by source line)."""
    asked = {_FACTS[name] for name in _names(tool.analyze, set()) if name in _FACTS}
    return tuple(fact for fact in dict.fromkeys(_FACTS.values()) if fact in asked) + ("lines",) * tool.sample_lines


def _names(look: Callable[..., Any], seen: set[Any]) -> Iterator[str]:
    """Names that a function uses, and those that its neighbours and ours which it calls use."""
    if not isinstance(look, FunctionType) or look in seen:
        return
    seen.add(look)
    for name in _of(look.__code__):
        yield name
        called = look.__globals__.get(name)
        home = getattr(called, "__module__", None)
        if callable(called) and (home == look.__module__ or str(home).startswith("kernelpro.diagnose.")):
            yield from _names(called, seen)


def _of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _of(inner)
