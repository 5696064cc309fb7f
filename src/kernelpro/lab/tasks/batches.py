"""Inputs with another batch size.

The batch size is the first dimension of all inputs that share it, or of the first input alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

INDEXING = re.compile("index|gather|scatter|take|put|masked_select")
"""Operators whose indices may refer to the batch."""
_MAX_TENSORS = 4
"""How many tensors a description lists."""


def describe_sizes(leaves: list[torch.Tensor]) -> str:
    """The shapes of inputs as text, such as `64x1024, 1024`."""
    texts = ["x".join(map(str, leaf.shape)) or "scalar" for leaf in leaves]
    more = ["..."] if len(texts) > _MAX_TENSORS else []
    return ", ".join(texts[:_MAX_TENSORS] + more) or "no tensors"


def other_batch(rows: int) -> int:
    """Another batch size: about three quarters, and odd for multiples of 8, so that tiles do not fit it."""
    return 2 if rows == 1 else rows - max(1, rows // 4) - (rows >= 8 and rows % 8 == 0)


@dataclass(frozen=True)
class Resizing:
    """Which inputs get another batch size, and its value."""

    is_resized: tuple[bool, ...]
    rows: int
    """The new size."""

    def apply(self, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs with the new batch size: the first rows, or all rows repeated."""
        return [
            _resized(leaf, self.rows) if resized else leaf
            for leaf, resized in zip(leaves, self.is_resized, strict=True)
        ]


def _resized(leaf: torch.Tensor, rows: int) -> torch.Tensor:
    repeats = -(-rows // leaf.shape[0])
    return torch.cat([leaf] * repeats)[:rows].contiguous() if repeats > 1 else leaf[:rows].clone()


def find_resizing(
    run: Callable[[list[torch.Tensor]], list[torch.Tensor]], leaves: list[torch.Tensor]
) -> Resizing | None:
    """A resizing that the reference accepts and that changes the shape of its outputs; None if there is none.

    `run` calls the reference, which may raise any exception for a batch size that it rejects. Afterwards it
    must still accept its own batch size.
    """
    for resizing in _choices(leaves):
        try:
            before = [output.shape for output in run(leaves)]
            resized = [output.shape for output in run(resizing.apply(leaves))]
            after = [output.shape for output in run(leaves)]
        except torch.OutOfMemoryError:
            return None
        except Exception:  # the reference rejects this batch size in its own way
            continue
        if before == after != resized:
            return resizing
    return None


def _choices(leaves: list[torch.Tensor]) -> Iterator[Resizing]:
    """First resize all inputs with the same batch size as the first input; then the first input alone."""
    first = next((leaf for leaf in leaves if leaf.dim() and leaf.shape[0]), None)
    if first is None:
        return
    rows = first.shape[0]
    shared = tuple(leaf.dim() > 0 and leaf.shape[0] == rows for leaf in leaves)
    yield Resizing(shared, other_batch(rows))
    if sum(shared) > 1:
        yield Resizing(tuple(leaf is first for leaf in leaves), other_batch(rows))
