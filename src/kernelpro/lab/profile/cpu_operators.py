"""Torch's operators in a call on the CPU: which, how often, and how long they compute.

What an operator costs before it computes anything (dispatch, our watching, the result's memory) is what one on a single number
takes, more where one of its arguments is a plain number, and is not counted: many operators on little data are the host's work,
not the library's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kernelpro.lab.watcher import Watcher

_SECONDS, _FEWEST, _MOST = 0.1, 3, 20
"""Calls go on for so long; the best of them counts."""
_TRIES = 50


class _Done(NamedTuple):
    name: str
    scaled: bool
    """Whether one of its arguments is a plain number."""
    seconds: float


class _Clock(Watcher):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[_Done] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begun = time.perf_counter()
        result = function(*args, **(kwargs or {}))
        spent = time.perf_counter() - begun
        name = function._overloadpacket.__name__
        if not function.is_view and not name.startswith("empty"):
            self.done.append(_Done(name, any(isinstance(value, (int, float)) for value in args), spent))
        return result


def observe(call: Callable[[], object]) -> list[dict[str, Any]]:
    """By name, longest first: `name`, `count` and `ms` of one call, the fastest of several."""
    small = _watched(_small)
    least = {
        scaled: statistics.median(one.seconds for one in small if one.scaled is scaled)
        for scaled in (False, True)
    }
    best, begun, calls = _watched(call), time.perf_counter(), 1
    while calls < _FEWEST or (calls < _MOST and time.perf_counter() - begun < _SECONDS):
        best, calls = min(best, _watched(call), key=lambda run: sum(one.seconds for one in run)), calls + 1
    found: dict[str, dict[str, Any]] = {}
    for one in best:
        entry = found.setdefault(one.name, {"name": one.name, "count": 0, "ms": 0.0})
        entry["count"] += 1
        entry["ms"] += 1e3 * max(0.0, one.seconds - least[one.scaled])
    return sorted(found.values(), key=lambda entry: -entry["ms"])


def _watched(call: Callable[[], object]) -> list[_Done]:
    clock = _Clock()
    with clock:
        call()
    return clock.done


def _small() -> None:
    one = torch.ones(1)
    for _ in range(_TRIES):
        torch.neg(one)
        torch.add(one, 2)
