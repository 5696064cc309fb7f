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

_SECONDS, _MIN_CALLS, _MAX_CALLS = 0.1, 3, 20
"""Calls go on for so long; the best of them counts."""
_OVERHEAD_CALLS = 50


class _OperatorCall(NamedTuple):
    name: str
    has_scalar: bool
    """Whether one of its arguments is a plain number."""
    seconds: float


class _OperatorTimer(Watcher):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_OperatorCall] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begun = time.perf_counter()
        result = function(*args, **(kwargs or {}))
        spent = time.perf_counter() - begun
        name = function._overloadpacket.__name__
        if not function.is_view and not name.startswith("empty"):
            self.calls.append(
                _OperatorCall(name, any(isinstance(value, (int, float)) for value in args), spent)
            )
        return result


def measure_operators(call: Callable[[], object]) -> list[dict[str, Any]]:
    """By name, longest first: `name`, `count` and `ms` of one call, the fastest of several."""
    overhead_calls = _time_operators(_call_on_scalars)
    overhead = {
        scaled: statistics.median(one.seconds for one in overhead_calls if one.has_scalar is scaled)
        for scaled in (False, True)
    }
    best, begun, calls = _time_operators(call), time.perf_counter(), 1
    while calls < _MIN_CALLS or (calls < _MAX_CALLS and time.perf_counter() - begun < _SECONDS):
        best, calls = (
            min(best, _time_operators(call), key=lambda run: sum(one.seconds for one in run)),
            calls + 1,
        )
    by_name: dict[str, dict[str, Any]] = {}
    for one in best:
        entry = by_name.setdefault(one.name, {"name": one.name, "count": 0, "ms": 0.0})
        entry["count"] += 1
        entry["ms"] += 1e3 * max(0.0, one.seconds - overhead[one.has_scalar])
    return sorted(by_name.values(), key=lambda entry: -entry["ms"])


def _time_operators(call: Callable[[], object]) -> list[_OperatorCall]:
    timer = _OperatorTimer()
    with timer:
        call()
    return timer.calls


def _call_on_scalars() -> None:
    one = torch.ones(1)
    for _ in range(_OVERHEAD_CALLS):
        torch.neg(one)
        torch.add(one, 2)
