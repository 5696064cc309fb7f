"""The torch operators of a call on the CPU: their names, counts and compute times.

The fixed overhead of an operator (dispatch, this timer, allocation of the result) is measured as the time of
an operator on a single number, and subtracted. It is larger if an argument is a Python number. So most of the
time of many operators on little data counts as host time, not as library time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kernelpro.lab.operator_mode import OperatorMode
from kernelpro.records.cpu_profile import OperatorTime

_SECONDS, _MIN_CALLS, _MAX_CALLS = 0.1, 3, 20
"""Time limit, minimum and maximum number of the timed calls. The best time counts."""
_OVERHEAD_CALLS = 50


class _OperatorCall(NamedTuple):
    name: str
    has_scalar: bool
    """Whether an argument is a Python number."""
    seconds: float


class _OperatorTimer(OperatorMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_OperatorCall] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        started = time.perf_counter()
        result = function(*args, **(kwargs or {}))
        spent = time.perf_counter() - started
        name = function._overloadpacket.__name__
        if not function.is_view and not name.startswith("empty"):
            self.calls.append(
                _OperatorCall(name, any(isinstance(value, (int, float)) for value in args), spent)
            )
        return result


def measure_operators(call: Callable[[], object]) -> tuple[OperatorTime, ...]:
    """Return the operators of one call by name, longest first. Each time is the least of several calls."""
    overhead_calls = _time_operators(_call_on_scalars)
    overhead = {
        has_scalar: statistics.median(op.seconds for op in overhead_calls if op.has_scalar is has_scalar)
        for has_scalar in (False, True)
    }
    best, started, calls = _time_operators(call), time.perf_counter(), 1
    while calls < _MIN_CALLS or (calls < _MAX_CALLS and time.perf_counter() - started < _SECONDS):
        run = _time_operators(call)
        calls += 1
        if [op.name for op in run] == [op.name for op in best]:
            best = [min(pair, key=lambda op: op.seconds) for pair in zip(best, run, strict=True)]
        else:
            best = min(best, run, key=lambda ops: sum(op.seconds for op in ops))
    times: dict[str, list[float]] = {}
    for op in best:
        times.setdefault(op.name, []).append(1e3 * max(0.0, op.seconds - overhead[op.has_scalar]))
    operators = [OperatorTime(name, len(ms), sum(ms)) for name, ms in times.items()]
    return tuple(sorted(operators, key=lambda operator: -operator.ms))


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
