"""How far from the oracle an answer may be: derived for each task and distribution, never a constant.

Errors are relative to scale, in two measures, the worst over all outputs:
    norm     ||y - t|| / ||t||
    element  max_i |y_i - t_i| / max(|t_i|, rms of the row of t that i lies in, rms of t / 16)
Outputs that are not floating count by their share of mismatches.

With `allowed` the error of the reference at the allowed precision (never below the rounding of the
output type and of a plain sum in it, and for TF32 never below TF32 operands emulated in the oracle), and `lower` the error
at the next lower precision, the limit on the norm is
    min(32 * allowed, sqrt(allowed * lower))
as far from refusing an honest kernel as from accepting a cheaper precision. Where the two cannot
be told apart, it is 4 * `allowed`, and the verdict says so: where `lower` < 4 * `allowed`, or
< 2 * `allowed` if the output has so many elements that its norm hardly varies. The limit on elements
is looser, because a maximum has a long tail: twice the factor of the norm, at least 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kernelpro.lab import tree
from kernelpro.lab.judge.oracle import Oracle, Outputs, rounded
from kernelpro.lab.tasks.inputs import AS_GIVEN, DISTRIBUTIONS
from kernelpro.lab.tasks.reference import BITS
from kernelpro.records import BadInput

FACTOR = 32.0
"""Sums in another order, fused operations and fast intrinsics stay within a few ulp; 32 leaves them
room and is still 2^8 below half precision."""
UNSEPARATED = 4.0
_SEPARABLE = 4.0
_SEPARABLE_MANY, _MANY = 2.0, 1024
_NEXT_LOWER = {53: 24, 24: 11, 11: 8, 8: 4}
SAMPLES = {"spikes": 6, "mild spikes": 6}
"""Inputs on which the reference's own error is looked at, the worst of which counts. Where few values are large, it depends on
where they meet: of attention the largest error on an element differs by a factor of 1000 from one draw to the next, and an
honest kernel was refused on one draw in seven. So candidates are also asked about the first of these inputs, and no others."""
_PIECE = 1 << 26
"""Elements that are compared at once."""
_ROW = 16
"""Elements from which on a row has a scale of its own."""
_LEAST_SCALE = 1 / 16
"""Of the whole output's rms: what a row's scale is at least. Where a ReLU leaves one small value of a row, its scale would be that
value, and what cancelled before the ReLU an error without bound: torch.compile's own code for batch norm and ReLU was refused
for 8e-8."""
_ILL_CONDITIONED = 0.02
"""A distribution whose allowed error is above 2 % says nothing about a kernel and is left out."""


@dataclass(frozen=True)
class Errors:
    norm: float
    element: float
    where: str = ""
    """The worst element, in words, if that was asked for."""

    def worst(self, other: Errors) -> Errors:
        where = self.where if self.element >= other.element else other.where
        return Errors(max(self.norm, other.norm), max(self.element, other.element), where)


def measure(outputs: Outputs, truth: Outputs, located: bool = False) -> Errors:
    """Errors of outputs that have the right shapes. Infinite where one is not finite and the other is."""
    worst = Errors(0.0, 0.0)
    for index, (output, right) in enumerate(zip(outputs, truth, strict=True)):
        worst = worst.worst(
            _measure_one(output, right, located, f"output {index} " if len(truth) > 1 else "")
        )
    return worst


def _measure_one(output: torch.Tensor, right: torch.Tensor, located: bool, label: str) -> Errors:
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
        return Errors(math.inf, math.inf, pieces.worst(1.0, located)[1]) if error else Errors(0.0, 0.0)
    return Errors(error / size, *pieces.worst(size / math.sqrt(right.numel()), located))


def first_wrong(outputs: Outputs, truth: Outputs, limit: float) -> str:
    """The first element, in the order of memory, whose error is above the limit, in words; empty where none is."""
    for index, (output, right) in enumerate(zip(outputs, truth, strict=True)):
        if right.numel() and (
            where := _Pieces(output, right, f"output {index} " if len(truth) > 1 else "").first_above(limit)
        ):
            return where
    return ""


class _Pieces:
    """An output and what is right, a few rows at a time: all at once, a large output would not fit five times over in float64.

    What is right is float64, so that what is computed from both is."""

    def __init__(self, output: torch.Tensor, right: torch.Tensor, label: str):
        self._label, self._shape = label, right.shape
        width = right.shape[-1] if right.dim() else 1
        self._output, self._right = output.reshape(-1, width), right.reshape(-1, width)
        self._step = max(1, _PIECE // width)
        self.finite = False
        """Both count as 0 where neither is finite."""

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        for first in range(0, len(self._right), self._step):
            value, right = (
                self._output[first : first + self._step],
                self._right[first : first + self._step].double(),
            )
            if (
                value.dtype not in BITS
            ):  # of these the difference from float64 is float64; of others there is none
                value = value.double()
            if self.finite:
                value, right = (torch.where(torch.isfinite(right), rows, 0.0) for rows in (value, right))
            yield first, value, right

    def norms(self) -> tuple[float, float]:
        """Of the difference, and of what is right."""
        found = [torch.stack([(value - right).norm(), right.norm()]).tolist() for _, value, right in self]
        return math.hypot(*(error for error, _ in found)), math.hypot(*(size for _, size in found))

    def first_bad(self) -> str:
        """Where a value is not finite, and should be; or is, and should not."""
        for first, value, right in self:
            same = (value == right) | (value.isnan() & right.isnan())
            bad = torch.where(torch.isfinite(right), ~torch.isfinite(value), ~same)
            if bool(bad.any()):
                return self._place(first, value, right, bad.double())
        return ""

    def worst(self, overall: float, located: bool) -> tuple[float, str]:
        """The largest error relative to the scale of its row, and where it is; `overall`: the scale where a row has none."""
        worst, where = -1.0, ""
        for first, value, right in self:
            relative = _relative(value, right, overall)
            if not (largest := float(relative.max())) <= worst:
                worst = math.inf if math.isnan(largest) else largest
                where = self._place(first, value, right, relative) if located else ""
        return worst, where

    def first_above(self, limit: float) -> str:
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
        row = int(
            weight.amax(1).argmax()
        )  # a maximum over rows is four times as fast as one argmax over everything
        return self._at("worst", first, row, int(weight[row].argmax()), value, right)

    def _at(
        self, which: str, first: int, row: int, column: int, value: torch.Tensor, right: torch.Tensor
    ) -> str:
        place, index = (first + row) * right.shape[1] + column, list[int]()
        for size in reversed(self._shape):  # torch.unravel_index imports sympy first
            place, here = divmod(place, size)
            index.insert(0, here)
        return f"{self._label}{which} at {index}: got {float(value[row, column]):.7g}, should be {float(right[row, column]):.7g}"


def _relative(value: torch.Tensor, right: torch.Tensor, overall: float) -> torch.Tensor:
    """Errors relative to the scale of their rows; `overall`: the scale where a row has none."""
    width = right.shape[1]
    row = (
        right.norm(dim=-1, keepdim=True) / math.sqrt(width)
        if width >= _ROW
        else torch.zeros_like(right[:, :1])
    )
    scale = right.abs()
    torch.maximum(scale, torch.where(row > 0, row.clamp_min(_LEAST_SCALE * overall), overall), out=scale)
    return (value - right).abs_().div_(scale)


@dataclass(frozen=True)
class Limit:
    norm: float
    element: float
    separates: bool

    def excess(self, errors: Errors) -> float:
        """How many times the limit the errors are: above 1 the answer is wrong."""
        ratios = [_ratio(errors.norm, self.norm), _ratio(errors.element, self.element)]
        return max(ratios)


def _ratio(error: float, limit: float) -> float:
    if math.isnan(error):
        return math.inf
    return 0.0 if error == 0 else math.inf if limit == 0 else error / limit


class Tolerance:
    """Limits for every wanted distribution that the task can bear; `dropped` says which it cannot and why."""

    def __init__(self, oracle: Oracle, precision: str, seed: int, wanted: tuple[str, ...] = DISTRIBUTIONS):
        self.seed = seed
        self.limits: dict[str, Limit] = {}
        self.dropped: dict[str, str] = {}
        self._products = -1
        """Matrix products of the reference; -1: not counted yet. Without any, nothing is emulated."""
        bits = {"fp32": 24, "tf32": 11}.get(precision, BITS.get(oracle.reference.dtype(), 24))
        for distribution in wanted:
            tries = [distribution, "mild spikes"] if distribution == "spikes" else [distribution]
            reason = ""
            for name in tries:
                limit, reason = self._derive(oracle, precision, bits, name, seed)
                if limit:
                    self.limits[name] = limit
                    break
            else:
                self.dropped[distribution] = reason

    def _derive(
        self, oracle: Oracle, precision: str, bits: int, distribution: str, seed: int
    ) -> tuple[Limit | None, str]:
        form, leaves = oracle.inputs(seed, distribution)
        if distribution != AS_GIVEN and not any(leaf.is_floating_point() for leaf in leaves):
            return None, "no floating input"
        try:
            truth = oracle.truth(seed, distribution)
        except BadInput as error:
            if distribution == AS_GIVEN:
                raise
            return None, str(error)
        if distribution != AS_GIVEN and not all(_sound(leaf) for leaf in truth):
            return None, "the oracle is not finite"
        allowed = self._allowed(oracle, precision, bits, form, leaves, truth)
        for other in (seed + 16 * n for n in range(1, SAMPLES.get(distribution, 1))):
            asked, right = oracle.inputs(other, distribution), oracle.truth(other, distribution)
            allowed = allowed.worst(self._allowed(oracle, precision, bits, *asked, right))
        if distribution != AS_GIVEN and allowed.norm > _ILL_CONDITIONED:
            return None, f"the reference itself is off by {allowed.norm:.1%}"
        lower = self._lower(oracle, bits, form, leaves, truth)
        many = min(leaf.numel() for leaf in truth) >= _MANY
        separates = lower.norm >= (_SEPARABLE_MANY if many else _SEPARABLE) * allowed.norm
        factor = (
            min(FACTOR, math.sqrt(lower.norm / allowed.norm)) if separates and allowed.norm else UNSEPARATED
        )
        return Limit(factor * allowed.norm, max(8.0, 2 * factor) * allowed.element, separates), ""

    def _allowed(
        self,
        oracle: Oracle,
        precision: str,
        bits: int,
        form: tree.Form,
        leaves: list[torch.Tensor],
        truth: Outputs,
    ) -> Errors:
        """Error of the reference at the allowed precision."""
        own = oracle.run(None, form, leaves, tf32_allowed=precision == "tf32")
        errors = measure(own, truth)
        if self._products and (precision == "tf32" or self._products < 0):
            emulated, self._products = oracle.emulated(bits, form, leaves)
            if self._products and precision == "tf32":
                errors = errors.worst(measure(emulated, truth))
        sums = _accumulation(leaves, own)
        # 16-bit types are summed in float32: only their last rounding shows
        floors = [
            2.0 ** -BITS[leaf.dtype] * (sums if leaf.dtype.itemsize > 2 else 1.0)
            for leaf in own
            if leaf.dtype in BITS
        ]
        floor = max(floors, default=0.0)
        return errors.worst(Errors(floor, floor))

    def _lower(
        self, oracle: Oracle, bits: int, form: tree.Form, leaves: list[torch.Tensor], truth: Outputs
    ) -> Errors:
        """Error at the next lower precision: matrix operands where there are products, else the inputs themselves.

        Without products TF32 means nothing, and float32 is what is allowed."""
        lower = _NEXT_LOWER[
            bits if self._products or bits != 11 or oracle.reference.dtype() != torch.float32 else 24
        ]
        if self._products:
            return measure(oracle.emulated(lower, form, leaves)[0], truth)
        cut = [rounded(leaf, lower) if leaf.is_floating_point() else leaf for leaf in leaves]
        return measure(oracle.answer(form, cut), truth)


def _accumulation(leaves: list[torch.Tensor], outputs: Outputs) -> float:
    """How much a plain sum in the allowed type may lose beyond one rounding: sqrt(L) / 4, at most 64.

    L is the longest reduction the shapes admit. The errors of L additions grow with sqrt(L), and the
    narrowest hardware adds in four lanes; the reference itself may be better (torch sums in double on the
    CPU), which must not be asked of a kernel."""
    read, written = sum(leaf.numel() for leaf in leaves), sum(leaf.numel() for leaf in outputs)
    longest = max([read / max(written, 1), *(max(leaf.shape, default=1) for leaf in leaves)], default=1.0)
    return min(64.0, max(1.0, math.sqrt(longest) / 4))


def _sound(leaf: torch.Tensor) -> bool:
    return not leaf.is_floating_point() or bool(torch.isfinite(leaf).all())
