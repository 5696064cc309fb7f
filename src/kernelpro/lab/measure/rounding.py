"""Rounds tensors, and the operands of matrix products, to fewer significant bits."""

from __future__ import annotations

import re
from typing import Any

import torch

from kernelpro.lab.operator_mode import OperatorMode

_PIECE = 1 << 23
"""Elements that are rounded at once: rounding needs three times their size in float64."""
_SIGNIFICANT = 53
"""Significant bits of a float64."""


def round_to_bits(tensor: torch.Tensor, bits: int, toward_zero: bool = False) -> torch.Tensor:
    """The tensor with `bits` significant bits: rounded to nearest, or truncated as tensor cores do with
    float32 operands."""
    result = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    source, target = tensor.flatten(), result.view(-1)
    dropped = _SIGNIFICANT - bits
    for first in range(0, tensor.numel(), _PIECE):
        raw = source[first : first + _PIECE].to(torch.float64, copy=True).view(torch.int64)
        if dropped and not toward_zero:  # add a half, or a little less where the last kept bit is even
            raw += ((raw >> dropped) & 1).add_((1 << (dropped - 1)) - 1)
        raw &= -(1 << dropped)
        target[first : first + _PIECE] = raw.view(torch.float64)
    return result


class MatrixRounding(OperatorMode):
    """Rounds the operands of matrix products and convolutions: emulates TF32 or bfloat16 units on any
    device."""

    _OPERATORS = re.compile(
        r"_?(add|b|badd|addb)?mm|_addmm_activation|(add)?mv|v?dot|linear|.*(conv|rnn|lstm|gru|attention).*"
    )

    _EXPONENTIALS = re.compile(r".*(softmax|attention|logsumexp).*|exp")
    _ORDERS = frozenset({"topk", "sort", "argsort", "kthvalue", "median", "nanmedian", "mode"})

    def __init__(self, bits: int, toward_zero: bool):
        super().__init__()  # type: ignore[no-untyped-call]
        self._bits, self._toward_zero = bits, toward_zero
        self.products = 0
        self.exponentials = 0
        """Softmax and what contains it."""
        self.leaves_ties_open = False
        """Some operator may return equal values in any order."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.split("::")[-1]
        self.exponentials += bool(self._EXPONENTIALS.fullmatch(name))
        self.leaves_ties_open |= name in self._ORDERS and not (kwargs or {}).get("stable")
        if self._OPERATORS.fullmatch(name):
            self.products += 1
            args = torch.utils._pytree.tree_map(self._round, args)
        return function(*args, **(kwargs or {}))

    def _round(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return round_to_bits(value, self._bits, self._toward_zero)
        return value
