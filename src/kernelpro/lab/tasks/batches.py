"""Inputs with another batch size: the first dimension of all inputs that share it, or of one input alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

INDEXING = re.compile("index|gather|scatter|take|put|masked_select")
"""Operators whose indices may refer to the batch."""
_MAX_TENSORS = 4
"""Tensors that a description lists."""


def describe_sizes(leaves: list[torch.Tensor]) -> str:
    """The sizes of inputs as text, such as `64x1024, 1024`."""
    texts = ["x".join(map(str, leaf.shape)) or "scalar" for leaf in leaves]
    more = ["..."] if len(texts) > _MAX_TENSORS else []
    return ", ".join(texts[:_MAX_TENSORS] + more) or "no tensors"


def other_batch(rows: int) -> int:
    """Another batch size: three quarters, and odd where there is a choice, so that tiles do not fit it."""
    return 2 if rows == 1 else rows - max(1, rows // 4) - (rows >= 8 and rows % 8 == 0)


@dataclass(frozen=True)
class Resizing:
    """Which inputs get another batch size, and which."""

    is_resized: tuple[bool, ...]
    rows: int
    """The new size."""

    def apply(self, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs with the new size: fewer rows, or the rows once more."""
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
    """A resizing that the reference accepts, with outputs of another size; None if there is none.

    `run` calls the reference. It may reject inputs by any exception. Afterwards it must still accept its own
    batch size.
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
    """All inputs that share the first one's batch size; then the first alone."""
    first = next((leaf for leaf in leaves if leaf.dim() and leaf.shape[0]), None)
    if first is None:
        return
    rows = first.shape[0]
    shared = tuple(leaf.dim() > 0 and leaf.shape[0] == rows for leaf in leaves)
    yield Resizing(shared, other_batch(rows))
    if sum(shared) > 1:
        yield Resizing(tuple(leaf is first for leaf in leaves), other_batch(rows))
