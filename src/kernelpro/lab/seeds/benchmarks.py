"""A hook that runs before torch's compiler measures on the device to choose between configurations."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

_METHODS = ("benchmark", "benchmark_gpu", "benchmark_gpu_with_cuda_graph")


def call_before_benchmarks(hook: Callable[[], None]) -> None:
    """Make the compiler of this process call `hook` before each of its measurements."""
    from torch._inductor.runtime import benchmarking

    def preceded(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def measure(*arguments: Any, **options: Any) -> Any:
            hook()
            return method(*arguments, **options)

        return measure

    for name in _METHODS:
        if hasattr(benchmarking.benchmarker, name):
            setattr(benchmarking.benchmarker, name, preceded(getattr(benchmarking.benchmarker, name)))
