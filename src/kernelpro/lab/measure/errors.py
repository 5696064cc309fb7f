"""Errors of outputs against the float64 truth, relative to scale, in two measures, the worst over all
outputs:

    norm     ||y - t|| / ||t||
    element  max_i |y_i - t_i| / max(|t_i|, rms of the row of t that i lies in, rms of t / 16)

Outputs that are not floating point count by their share of mismatches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kernelpro.lab.measure.oracle import Outputs
from kernelpro.lab.tasks.reference import BITS

_PIECE = 1 << 26
"""Elements that are compared at once."""
_MIN_ROW = 16
"""Elements from which on a row has a scale of its own."""
_MIN_ROW_SCALE = 1 / 16
"""The least scale of a row, as a share of the whole output's rms. Where a ReLU leaves one small value of a
row, that value would be the scale, and cancellation before the ReLU an error without bound: torch.compile's
own code for batch norm and ReLU was refused for an error of 8e-8."""


@dataclass(frozen=True)
class Errors:
    """The two errors of one or more outputs."""

    norm: float
    element: float
    where: str = ""
    """The worst element, in words, if requested."""

    def combine(self, other: Errors) -> Errors:
        """The worse of both, in each measure."""
        where = self.where if self.element >= other.element else other.where
        return Errors(max(self.norm, other.norm), max(self.element, other.element), where)


def measure_errors(outputs: Outputs, truth: Outputs, locate: bool = False) -> Errors:
    """Errors of outputs that have the right shapes. Infinite where one is not finite and the other is."""
    worst = Errors(0.0, 0.0)
    for index, (output, right) in enumerate(zip(outputs, truth, strict=True)):
        worst = worst.combine(
            _measure_one(output, right, locate, f"output {index} " if len(truth) > 1 else "")
        )
    return worst


def _measure_one(output: torch.Tensor, right: torch.Tensor, locate: bool, label: str) -> Errors:
    if not right.numel():
        return Errors(0.0, 0.0)
    if not right.is_floating_point():
        share = float((output != right).double().mean())
        return Errors(share, share, f"{label}{share:.2%} of the elements differ" if share else "")
    pieces = _Pieces(output, right, label)
    error, size = pieces.norms()
    if not (math.isfinite(error) and math.isfinite(size)):
        if where := pieces.first_bad():
            return Errors(math.inf, math.inf, where)
        pieces.finite = True
        error, size = pieces.norms()
    if not size:
        return Errors(math.inf, math.inf, pieces.worst(1.0, locate)[1]) if error else Errors(0.0, 0.0)
    return Errors(error / size, *pieces.worst(size / math.sqrt(right.numel()), locate))


def first_wrong(outputs: Outputs, truth: Outputs, limit: float) -> str:
    """The first element in memory order whose error is above the limit, in words; empty where there is
    none."""
    for index, (output, right) in enumerate(zip(outputs, truth, strict=True)):
        if right.numel() and (
            where := _Pieces(output, right, f"output {index} " if len(truth) > 1 else "").first_above(limit)
        ):
            return where
    return ""


class _Pieces:
    """An output and the truth, a few rows at a time: a large output does not fit into memory five times in
    float64.

    The truth is float64, and so is everything computed from both.
    """

    def __init__(self, output: torch.Tensor, right: torch.Tensor, label: str):
        self._label, self._shape = label, right.shape
        width = right.shape[-1] if right.dim() else 1
        self._output, self._right = output.reshape(-1, width), right.reshape(-1, width)
        self._step = max(1, _PIECE // width)
        self.finite = False
        """Elements where the truth is not finite count as 0."""

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        for first in range(0, len(self._right), self._step):
            rows = slice(first, first + self._step)
            value, right = self._output[rows], self._right[rows].double()
            if value.dtype not in BITS:  # torch has no difference of such a type and float64
                value = value.double()
            if self.finite:
                value, right = (torch.where(torch.isfinite(right), part, 0.0) for part in (value, right))
            yield first, value, right

    def norms(self) -> tuple[float, float]:
        """The norms of the difference and of the truth."""
        norms = [torch.stack([(value - right).norm(), right.norm()]).tolist() for _, value, right in self]
        return math.hypot(*(error for error, _ in norms)), math.hypot(*(size for _, size in norms))

    def first_bad(self) -> str:
        """The first value that is finite where the truth is not, or the reverse; empty where there is
        none."""
        for first, value, right in self:
            same = (value == right) | (value.isnan() & right.isnan())
            bad = torch.where(torch.isfinite(right), ~torch.isfinite(value), ~same)
            if bool(bad.any()):
                return self._place(first, value, right, bad.double())
        return ""

    def worst(self, overall: float, locate: bool) -> tuple[float, str]:
        """The largest error relative to the scale of its row, and its location.

        `overall`: the scale where a row has none.
        """
        worst, where = -1.0, ""
        for first, value, right in self:
            relative = _relative(value, right, overall)
            if not (largest := float(relative.max())) <= worst:
                worst = math.inf if math.isnan(largest) else largest
                where = self._place(first, value, right, relative) if locate else ""
        return worst, where

    def first_above(self, limit: float) -> str:
        """The first element whose error is above the limit, in words."""
        size = self.norms()[1]
        overall = size / math.sqrt(self._right.numel()) if math.isfinite(size) and size else 1.0
        for first, value, right in self:
            same = (value == right) | (value.isnan() & right.isnan())
            wrong = ~same & ~(_relative(value, right, overall) <= limit)
            if bool(wrong.any()):
                row = int(wrong.any(1).nonzero()[0])
                return self._at("first wrong", first, row, int(wrong[row].nonzero()[0]), value, right)
        return ""

    def _place(self, first: int, value: torch.Tensor, right: torch.Tensor, weight: torch.Tensor) -> str:
        # a maximum over rows first is four times as fast as one argmax over everything
        row = int(weight.amax(1).argmax())
        return self._at("worst", first, row, int(weight[row].argmax()), value, right)

    def _at(
        self, which: str, first: int, row: int, column: int, value: torch.Tensor, right: torch.Tensor
    ) -> str:
        flat, index = (first + row) * right.shape[1] + column, list[int]()
        for size in reversed(self._shape):  # torch.unravel_index imports sympy
            flat, position = divmod(flat, size)
            index.insert(0, position)
        got, expected = float(value[row, column]), float(right[row, column])
        return f"{self._label}{which} at {index}: got {got:.7g}, should be {expected:.7g}"


def _relative(value: torch.Tensor, right: torch.Tensor, overall: float) -> torch.Tensor:
    """Errors relative to the scale of their rows; `overall`: the scale where a row has none."""
    width = right.shape[1]
    row = (
        right.norm(dim=-1, keepdim=True) / math.sqrt(width)
        if width >= _MIN_ROW
        else torch.zeros_like(right[:, :1])
    )
    scale = right.abs()
    torch.maximum(scale, torch.where(row > 0, row.clamp_min(_MIN_ROW_SCALE * overall), overall), out=scale)
    return (value - right).abs_().div_(scale)
