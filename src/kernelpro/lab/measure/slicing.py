"""Computes a reference's outputs in slices of the batch, for tasks that do not fit into memory in float64.

Whether a reference allows this is tested, never assumed. `find_slicing` runs it in the task's own type, cuts
inputs along their first dimension, and requires:

 1. A slice alone gives the same rows as the whole call (tested on the first, a middle and the last slice). So
    the reference depends neither on the batch size nor on the position in the batch.
 2. The outputs of a slice do not change when all other rows change. Batch normalization in train mode, and
    sums or maxima over the batch, fail this test.
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
"""The largest relative difference, in units of the type's rounding: another batch size may change the order
of sums. If outputs depend on other rows, which are tripled and reversed, they change far more."""


@dataclass(frozen=True)
class Slicing:
    """How a task's inputs are cut. `is_cut`: which inputs are cut, along their first dimension."""

    rows: int
    is_cut: tuple[bool, ...]

    def ranges(self, slices: int) -> list[slice]:
        """Ranges of at most `slices` slices of about the same size."""
        step = -(-self.rows // min(slices, self.rows))
        return [slice(first, min(first + step, self.rows)) for first in range(0, self.rows, step)]

    def cut(self, leaves: list[torch.Tensor], rows: slice) -> list[torch.Tensor]:
        """The inputs of one slice."""
        return [leaf[rows] if cut else leaf for leaf, cut in zip(leaves, self.is_cut, strict=True)]


@dataclass(frozen=True)
class Scale:
    """The size of an output. Errors are relative to it."""

    size: float
    """Its norm."""
    count: int
    """Its number of elements."""
    nonzeros: int
    """Its number of elements that are not 0."""
    masked: bool
    """Some elements are not finite; the norm excludes them."""
    is_float: bool

    @property
    def rms(self) -> float:
        """The root mean square of the elements that are not 0; 1 if all are."""
        return self.size / math.sqrt(self.nonzeros) if self.size else 1.0


@dataclass
class SlicedOutputs:
    """Outputs that are computed slice by slice, each time they are read."""

    ranges: list[slice]
    compute: Callable[[slice], Outputs]
    count: int
    """The number of outputs."""
    scales: dict[int, Scale] = field(default_factory=dict)
    """Scales by output, once known."""


Expected = Outputs | SlicedOutputs
"""The outputs of a call, at once or in slices."""


def find_slicing(run: Callable[[list[torch.Tensor]], Outputs], leaves: list[torch.Tensor]) -> Slicing | None:
    """How the inputs can be cut; None if they cannot. `run` calls the reference in the task's own type."""
    outputs = run(leaves)
    counts = {leaf.shape[0] if leaf.dim() else 0 for leaf in outputs}
    rows = counts.pop()
    if counts or rows < 2:
        return None
    ranges = Slicing(rows, ()).ranges(_TEST_SLICES)
    tested = [ranges[len(ranges) // 2], ranges[0], ranges[-1]]
    known = [[leaf[part].clone() for leaf in outputs] for part in tested]
    del outputs  # memory is scarce for large tasks
    for is_cut in _choices(leaves, rows):
        slicing = Slicing(rows, is_cut)
        if _is_valid(slicing, run, leaves, tested, known):
            return slicing
    return None


def _choices(leaves: list[torch.Tensor], rows: int) -> Iterator[tuple[bool, ...]]:
    """Which inputs to cut: all that have `rows` rows, then each of them alone, since a matrix product, for
    example, allows only its left operand to be cut."""
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
