"""Outputs of a reference computed in slices of the batch, for tasks that do not fit into memory in float64.

Slicing is never assumed. `find_slicing` runs the reference in the task's own type and requires, for inputs
that are cut along their first dimension:

 1. the outputs for a slice alone are those of the whole call in its rows (the first, a middle and the last
    slice): the reference depends neither on the size of the batch nor on the position in it;
 2. the outputs for a slice do not change when all other rows do: batch normalization in train mode, a sum or
    a maximum over the batch fail here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from kernelpro.lab.tasks.reference import BITS

Outputs = list[torch.Tensor]
_TEST_SLICES = 8
_MAX_DIFFERENCE = 32.0
"""In units of the type's rounding: another batch size may choose another order of sums. A dependence on other
rows, which are tripled and reversed, changes far more."""


@dataclass(frozen=True)
class Slicing:
    """How a task's inputs are cut: `is_cut` says which of them, each along its first dimension."""

    rows: int
    is_cut: tuple[bool, ...]

    def ranges(self, slices: int) -> list[slice]:
        """So many slices of about the same size, fewer where there are fewer rows."""
        step = -(-self.rows // min(slices, self.rows))
        return [slice(first, min(first + step, self.rows)) for first in range(0, self.rows, step)]

    def cut(self, leaves: list[torch.Tensor], rows: slice) -> list[torch.Tensor]:
        """The inputs of one slice."""
        return [leaf[rows] if cut else leaf for leaf, cut in zip(leaves, self.is_cut, strict=True)]


@dataclass(frozen=True)
class Scale:
    """The size of an output: what its errors are relative to."""

    size: float
    """Its norm."""
    count: int
    """Its elements."""
    masked: bool
    """Some elements are not finite; the norm leaves them out."""
    is_float: bool

    @property
    def rms(self) -> float:
        """The root of its mean square; 1 where all elements are 0."""
        return self.size / math.sqrt(self.count) if self.size else 1.0


@dataclass
class SlicedOutputs:
    """Outputs that are computed one slice of the batch at a time, each time they are read."""

    ranges: list[slice]
    compute: Callable[[slice], Outputs]
    count: int
    """How many outputs there are."""
    scales: dict[int, Scale] = field(default_factory=dict)
    """By output, once known."""


Expected = Outputs | SlicedOutputs
"""The outputs of a call, at once or in slices."""


def find_slicing(run: Callable[[list[torch.Tensor]], Outputs], leaves: list[torch.Tensor]) -> Slicing | None:
    """How the inputs can be cut; None where they cannot. `run` calls the reference in the task's own type."""
    outputs = run(leaves)
    counts = {leaf.shape[0] if leaf.dim() else 0 for leaf in outputs}
    rows = counts.pop()
    if counts or rows < 2:
        return None
    ranges = Slicing(rows, ()).ranges(_TEST_SLICES)
    tested = [ranges[len(ranges) // 2], ranges[0], ranges[-1]]
    known = [[leaf[part].clone() for leaf in outputs] for part in tested]
    del outputs  # large tasks have little memory
    for is_cut in _choices(leaves, rows):
        slicing = Slicing(rows, is_cut)
        if _is_valid(slicing, run, leaves, tested, known):
            return slicing
    return None


def _choices(leaves: list[torch.Tensor], rows: int) -> Iterator[tuple[bool, ...]]:
    """All inputs with so many rows together, then each alone: of a product, only the left matrix is cut."""
    fitting = [leaf.dim() > 0 and leaf.shape[0] == rows for leaf in leaves]
    if any(fitting):
        yield tuple(fitting)
    if sum(fitting) > 1:
        for index, fits in enumerate(fitting):
            if fits:
                yield tuple(number == index for number in range(len(leaves)))


def _is_valid(
    slicing: Slicing,
    run: Callable[[list[torch.Tensor]], Outputs],
    leaves: list[torch.Tensor],
    tested: list[slice],
    known: list[Outputs],
) -> bool:
    try:
        for rows, outputs in zip(tested, known, strict=True):
            if not _are_close(run(slicing.cut(leaves, rows)), outputs):
                return False
        kept, outputs = tested[0], known[0]
        changed = [
            _change_others(leaf, kept) if cut else leaf
            for leaf, cut in zip(leaves, slicing.is_cut, strict=True)
        ]
        return _are_close([leaf[kept] for leaf in run(changed)], outputs)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError):  # shapes that do not fit together
        return False


def _change_others(leaf: torch.Tensor, kept: slice) -> torch.Tensor:
    changed = leaf.flip(0)
    if leaf.is_floating_point():
        changed *= 3
    changed[kept] = leaf[kept]
    return changed


def _are_close(a: Outputs, b: Outputs) -> bool:
    return len(a) == len(b) and all(_is_close(x, y) for x, y in zip(a, b, strict=True))


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype not in BITS:
        return torch.equal(a, b)
    difference, size = float((a - b).double().norm()), float(b.double().norm())
    return difference <= _MAX_DIFFERENCE * 2.0 ** -BITS[a.dtype] * size
