"""Errors of outputs y relative to the float64 truth t, in two measures. The worst output counts:

    norm     ||y - t|| / ||t||
    element  max_i |y_i - t_i| / max(|t_i|, rms of the row of t that contains i, rms of t's non-zeros / 16)

For outputs that are not floating point, both measures are the share of mismatches. Each output also has its
own errors: those of one in bfloat16 say nothing about one in float32 beside it. Both sides may be given in
slices of the batch (slicing.py). Everything is computed in pieces, because a large output does not fit into
memory five times in float64.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from kernelpro.lab.measure.slicing import Expected, Scale
from kernelpro.lab.tasks.reference import BITS

_PIECE = 1 << 24
"""Elements that are compared at once: a comparison takes about three times their size in float64."""
_MIN_ROW = 16
"""A row with at least so many elements has a scale of its own."""
_MIN_ROW_SCALE = 1 / 16
"""The least scale of a row, as a share of the rms of the output's non-zeros. Without it, if a ReLU left one
small value in a row, that value would be the scale, and cancellation before the ReLU would cause an unbounded
relative error: torch.compile's own code for batch norm and ReLU was rejected for an error of 8e-8. Zeros do
not count: where min(x + 0.5, 0) left a few values in a million zeros, the same happened with TF32."""


@dataclass(frozen=True)
class Errors:
    """The two errors of one or more outputs."""

    norm: float
    element: float
    where: str = ""
    """The worst element, in words, if requested."""
    outputs: tuple[Errors, ...] = ()
    """Each output's own errors; empty for a single output."""

    @classmethod
    def worst(cls, outputs: Sequence[Errors]) -> Errors:
        """The worst errors over all outputs."""
        overall = functools.reduce(Errors.combine, outputs, Errors(0.0, 0.0))
        return replace(overall, outputs=tuple(outputs) if len(outputs) > 1 else ())

    def combine(self, other: Errors) -> Errors:
        """The worse of both, in each measure and for each output."""
        where = self.where if self.element >= other.element else other.where
        pairs = zip(self.outputs, other.outputs, strict=True) if self.outputs and other.outputs else ()
        outputs = tuple(a.combine(b) for a, b in pairs) or self.outputs or other.outputs
        return Errors(max(self.norm, other.norm), max(self.element, other.element), where, outputs)


def measure_errors(
    outputs: Expected, truth: Expected, locate: bool = False, with_infinities: bool = False
) -> Errors:
    """Errors of outputs that have the right shapes; infinite if only one of output and truth is finite.

    `with_infinities`: for inputs with infinities. There NaN is accepted for infinity, because compensated
    sums turn infinity into NaN. Where the truth is NaN, the task is undefined and any value is right.
    """
    return Errors.worst(
        [comparison.errors(locate, with_infinities) for comparison in _comparisons(outputs, truth)]
    )


def integer_errors(outputs: Expected, truth: Expected) -> Errors:
    """As `measure_errors`, but only of outputs that are not floating point; others count as right."""
    comparisons = list(_comparisons(outputs, truth))
    return Errors.worst(
        [
            Errors(0.0, 0.0) if comparison.scale().is_float else comparison.errors(False, False)
            for comparison in comparisons
        ]
    )


def first_wrong(outputs: Expected, truth: Expected, limit: float, index: int) -> str:
    """Describes the first element in memory order of output `index` whose error is above the limit; empty if
    there is none."""
    return next(itertools.islice(_comparisons(outputs, truth), index, None)).first_above(limit)


def is_finite(truth: Expected) -> bool:
    """Whether all elements are finite."""
    return not any(comparison.scale().masked for comparison in _comparisons(truth, truth))


def has_nan(truth: Expected) -> bool:
    """Whether any element is NaN."""
    comparisons = (part for part in _comparisons(truth, truth) if part.scale().masked)
    return any(bool(piece.right.isnan().any()) for part in comparisons for piece in part.pieces())


def output_elements(truth: Expected) -> list[int]:
    """The number of elements of each output."""
    return [comparison.scale().count for comparison in _comparisons(truth, truth)]


def _comparisons(outputs: Expected, truth: Expected) -> Iterator[_Comparison]:
    """One comparison per output."""
    count = len(truth) if isinstance(truth, list) else truth.count
    return (_Comparison(outputs, truth, index, count) for index in range(count))


@dataclass(frozen=True)
class _Piece:
    """Some rows of an output and of the truth, or a part of one row. A row is the last dimension."""

    first: int
    """The first row."""
    column: int
    """The first column."""
    value: torch.Tensor
    right: torch.Tensor
    row_rms: torch.Tensor | None = None
    """If this is a part of a row: the rms of the whole row."""

    def relative(self, overall: float) -> torch.Tensor:
        """Errors relative to the scales of their rows. `overall`: the scale of rows without one."""
        row, width = self.row_rms, self.right.shape[1]
        if row is None and width < _MIN_ROW:
            row = torch.zeros_like(self.right[:, :1])
        elif row is None:
            row = self.right.norm(dim=-1, keepdim=True) / math.sqrt(width)
        least = torch.where(row > 0, row.clamp_min(_MIN_ROW_SCALE * overall), overall)
        least = least.to(self._dtype).clamp_min_(torch.finfo(self._dtype).tiny)
        scale = self.right.to(self._dtype, copy=True).abs_().clamp_min_(least)
        return torch.div(self.difference, scale, out=scale).abs_()

    @cached_property
    def difference(self) -> torch.Tensor:
        """The differences, computed in float64. They are stored in float32 unless the output is wider, which
        halves the memory traffic."""
        buffer = torch.empty(self.right.shape, dtype=self._dtype, device=self.right.device)
        return torch.sub(self.value, self.right, out=buffer)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float64 if self.value.dtype.itemsize > 4 else torch.float32


class _Comparison:
    """One output and its truth."""

    def __init__(self, outputs: Expected, truth: Expected, index: int, count: int):
        self._outputs, self._truth, self._index = outputs, truth, index
        self._label = f"output {index} " if count > 1 else ""
        self._shape: list[int] = []

    def _slices(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """First row of the batch, output and truth, slice by slice."""
        if isinstance(self._truth, list):
            assert isinstance(self._outputs, list), "both sides have the same slices"
            yield 0, self._outputs[self._index], self._truth[self._index]
            return
        for rows in self._truth.ranges:
            right = self._truth.compute(rows)[self._index]
            if isinstance(self._outputs, list):
                yield rows.start, self._outputs[self._index][rows], right
            else:
                same = self._outputs is self._truth
                yield rows.start, right if same else self._outputs.compute(rows)[self._index], right
            del right  # frees memory for the next one

    def pieces(self, masked: bool = False) -> Iterator[_Piece]:
        """The rows, a few at a time. `masked`: elements where the truth is not finite are set to 0."""
        for start, value, right in self._slices():
            self._shape = list(right.shape)
            width = right.shape[-1] if right.dim() else 1
            rows = right.numel() // max(width, 1)
            before = start * rows // max(1, right.shape[0]) if right.dim() > 1 else 0
            columns = start if right.dim() == 1 else 0
            for first, some, truth in _row_groups(value, right, width):
                for piece in _cut(some, truth, width, masked):
                    yield replace(piece, first=before + first + piece.first, column=columns + piece.column)

    def scale(self) -> Scale:
        """The scale of the truth. For sliced outputs it is cached, so that a check computes the slices only
        once."""
        known = None if isinstance(self._truth, list) else self._truth.scales.get(self._index)
        if known is None:
            known = self._measure_scale()
            if not isinstance(self._truth, list):
                self._truth.scales[self._index] = known
        return known

    def _measure_scale(self) -> Scale:
        mine = _Comparison(self._truth, self._truth, self._index, 1)
        for masked in (False, True):
            norms, nonzeros, count, is_float = list[torch.Tensor](), list[torch.Tensor](), 0, True
            for piece in mine.pieces(masked):
                count, is_float = count + piece.right.numel(), piece.right.is_floating_point()
                norms += [piece.right.norm()] if is_float else []
                nonzeros.append(piece.right.count_nonzero())
            size = float(torch.stack(norms).norm()) if norms else 0.0
            if math.isfinite(size):
                break
        return Scale(size, count, sum(map(int, nonzeros)), masked, is_float)

    def errors(self, locate: bool, with_infinities: bool) -> Errors:
        scale = self.scale()
        if not scale.count:
            return Errors(0.0, 0.0)
        if not scale.is_float:
            wrong = sum(float((piece.value != piece.right).sum()) for piece in self.pieces()) / scale.count
            return Errors(wrong, wrong, f"{self._label}{wrong:.2%} of the elements differ" if wrong else "")
        if scale.masked and (where := self._first_bad(with_infinities)):
            return Errors(math.inf, math.inf, where)
        norms, worst, where = list[torch.Tensor](), list[torch.Tensor](), ""
        largest = -1.0
        for piece in self.pieces(scale.masked):
            relative = piece.relative(scale.rms)
            norms.append(torch.linalg.vector_norm(piece.difference, dtype=torch.float64))
            worst.append(relative.max())
            if locate and not float(worst[-1]) <= largest:
                largest, where = float(worst[-1]), self._worst_of(piece, relative)
        error, element = float(torch.stack(norms).norm()), float(torch.stack(worst).max())
        if not math.isfinite(error) and (where := self._first_bad() or where):
            return Errors(math.inf, math.inf, where)
        if not scale.size:
            return Errors(math.inf, math.inf, where) if error else Errors(0.0, 0.0)
        return Errors(error / scale.size, math.inf if math.isnan(element) else element, where)

    def _first_bad(self, with_infinities: bool = False) -> str:
        """Describes the first value that is finite where the truth is not, or the reverse; empty if there is
        none."""
        for piece in self.pieces():
            value, right = piece.value, piece.right
            undefined = ~torch.isfinite(right) if with_infinities else right.isnan()
            same = (value == right) | (value.isnan() & undefined)
            if with_infinities:
                same |= right.isnan()
            bad = torch.where(torch.isfinite(right), ~torch.isfinite(value), ~same)
            if bool(bad.any()):
                return self._worst_of(piece, bad.double())
        return ""

    def first_above(self, limit: float) -> str:
        """Describes the first element whose error is above the limit; empty if there is none."""
        scale = self.scale()
        overall = scale.rms if math.isfinite(scale.size) and not scale.masked else 1.0
        for piece in self.pieces():
            same = (piece.value == piece.right) | (piece.value.isnan() & piece.right.isnan())
            wrong = ~same if not scale.is_float else ~same & ~(piece.relative(overall) <= limit)
            if bool(wrong.any()):
                row = int(wrong.any(1).nonzero()[0])
                return self._at("first wrong", piece, row, int(wrong[row].nonzero()[0]))
        return ""

    def _worst_of(self, piece: _Piece, weight: torch.Tensor) -> str:
        # a maximum over rows first is four times as fast as one argmax over everything
        row = int(weight.amax(1).argmax())
        return self._at("worst", piece, row, int(weight[row].argmax()))

    def _at(self, which: str, piece: _Piece, row: int, column: int) -> str:
        width = self._shape[-1] if self._shape else 1
        flat, index = (piece.first + row) * width + piece.column + column, list[int]()
        for size in reversed(self._shape[1:]):  # torch.unravel_index imports sympy
            flat, position = divmod(flat, size)
            index.insert(0, position)
        index = [flat, *index] if self._shape else []
        got, expected = float(piece.value[row, column]), float(piece.right[row, column])
        return f"{self._label}{which} at {index}: got {got:.7g}, should be {expected:.7g}"


def _row_groups(
    value: torch.Tensor, right: torch.Tensor, width: int
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Parts of the batch: first row, and output and truth as matrices. Outputs that are not contiguous are
    copied part by part."""
    if right.dim() < 2 or not right.numel():
        yield 0, value.reshape(-1, max(width, 1)), right.reshape(-1, max(width, 1))
        return
    rows = right.numel() // right.shape[0] // width
    step = max(1, _PIECE // (rows * width))
    for first in range(0, right.shape[0], step):
        group = slice(first, first + step)
        yield first * rows, value[group].reshape(-1, width), right[group].reshape(-1, width)


def _cut(value: torch.Tensor, right: torch.Tensor, width: int, masked: bool) -> Iterator[_Piece]:
    """Pieces of matrices: some rows, or parts of a row that is too long."""
    if width <= _PIECE:
        step = max(1, _PIECE // max(width, 1))
        for first in range(0, len(right), step):
            yield _Piece(first, 0, *_widen(value[first : first + step], right[first : first + step], masked))
        return
    for first in range(len(right)):
        parts = [slice(column, column + _PIECE) for column in range(0, width, _PIECE)]
        norms = []
        for part in parts:
            _, truth = _widen(value[first : first + 1, part], right[first : first + 1, part], masked)
            norms += [truth.norm()] if truth.is_floating_point() else []
        row = torch.stack(norms).norm().reshape(1, 1) / math.sqrt(width) if norms else None
        for part in parts:
            some, truth = _widen(value[first : first + 1, part], right[first : first + 1, part], masked)
            yield _Piece(first, part.start, some, truth, row)


def _widen(value: torch.Tensor, right: torch.Tensor, masked: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Both tensors, in types whose difference torch computes in float64."""
    if not right.is_floating_point():
        return value, right
    right = right.double()
    if value.dtype not in BITS:  # torch cannot subtract such a type and float64
        value = value.double()
    if masked:
        finite = torch.isfinite(right)
        value, right = torch.where(finite, value, 0.0), torch.where(finite, right, 0.0)
    return value, right
