"""Makes torch trace recurrent operators by the shapes of their results alone.

By default torch traces them step by step, which takes minutes for a sequence of 512 steps, although the
resulting graph has each of them as a single operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_Shapes = Callable[..., tuple[torch.Tensor, ...]]


def _results(x: torch.Tensor, states: list[torch.Tensor], bidirectional: bool) -> tuple[torch.Tensor, ...]:
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    return (x.new_empty((*x.shape[:-1], width)), *map(torch.empty_like, states))


def _lstm(x: Any, states: Any, weights: Any, *options: Any) -> tuple[torch.Tensor, ...]:
    if len(weights[0].shape) != 2 or states[0].shape != states[1].shape:
        raise NotImplementedError("projections of LSTMs are not traced")
    return _results(x, list(states), options[4])


def _one_state(x: Any, state: Any, weights: Any, *options: Any) -> tuple[torch.Tensor, ...]:
    return _results(x, [state], options[4])


@contextmanager
def traced_by_shape() -> Iterator[None]:
    """In this context, recurrent operators return empty tensors of the right shape."""
    aten, keys = torch.ops.aten, torch._C.DispatchKey
    operators: dict[Any, _Shapes] = {aten.lstm.input: _lstm, aten.gru.input: _one_state}
    operators |= {aten.rnn_tanh.input: _one_state, aten.rnn_relu.input: _one_state}
    before = {operator: dict(operator.py_kernels) for operator in operators}
    for operator, shapes in operators.items():
        operator.py_kernels.update({keys.CompositeImplicitAutograd: shapes, keys.Autograd: shapes})
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernels in before.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()
