"""Integers that the last bits of the inputs decide: there, an honest kernel may return others.

Rounding to integers, argmax and topk turn an error of one rounding into another integer. In a product of
matrices that is rounded to int8, a few of a million elements differ between two honest kernels; how many
varies from call to call. A limit on their number would reject honest kernels, or accept one wrong index in
each call. So the judge asks which elements they are, and only if integers differ:

- It computes the oracle's outputs for inputs that are off by a few roundings. Where few integers change,
  those are not checked. Where many do, as in a sort of many values, an integer must be one of those that the
  oracle returns then: else a kernel could return anything.
- Where equal values may come in any order, it also changes inputs by far less than one rounding, which only
  separates equal values. An integer that changes there is not checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernelpro.lab.measure.slicing import Expected, SlicedOutputs

_ROUNDINGS = (32, 8, 2)
"""By how many roundings inputs are off, or by how many errors of a plain sum if those are larger."""
_FEW = 0.02
"""Up to this share of the integers may change without being checked. Of a product rounded to int8, 0.1 % do
in float32."""
_KEYS = (-7046029254386353131, -4417276706812531889, 2862933555777941757, 3202034522624059733)
"""Odd multipliers that turn the bits of a value into its error. Each is used with both signs: one of the two
crosses the tie, unless all errors happen to cancel, which they do with one key of twenty."""

_SEPARATION, _HUGE, _TINY = 2.0**-44, 2.0**1000, 2.0**-100
"""The relative error that separates equal values, but does not reorder others; the largest value, which
replaces infinities; the error of zeros."""


def accept_near_ties(
    outputs: list[torch.Tensor],
    truth: Expected,
    compute: Callable[[list[torch.Tensor]], Expected],
    leaves: list[torch.Tensor],
    rounding: float,
    leaves_ties_open: bool = False,
) -> list[torch.Tensor]:
    """The outputs with the truth in place of integers that depend on the last bits of the inputs.

    `compute`: the oracle's outputs for other inputs. `rounding`: the largest relative error of one rounding.
    `leaves_ties_open`: equal values may come in any order.
    """
    integers = [index for index, output in enumerate(outputs) if not output.is_floating_point()]
    accepted = [output.clone() if index in integers else output for index, output in enumerate(outputs)]

    def count_wrong(disturbed: list[torch.Tensor], any_value: bool = False) -> int:
        """Accept what these inputs excuse, and count the rest. `any_value`: no integer that changes is
        checked."""
        wrong = 0
        for rows, right, other in _slices(truth, compute(disturbed)):
            for index in integers:
                part, changed = accepted[index][rows], other[index] != right[index]
                unchecked = any_value or int(changed.sum()) <= _FEW * changed.numel()
                excused = changed if unchecked else other[index] == part
                part.copy_(torch.where(excused, right[index], part))
                wrong += int((part != right[index]).sum())
        return wrong

    signed_keys = [(key, sign) for key in _KEYS for sign in (1, -1)]
    if leaves_ties_open:
        for key, sign in signed_keys:
            if not count_wrong(
                [_separated(leaf, sign * _SEPARATION, key) for leaf in leaves], any_value=True
            ):
                return accepted
    last = math.inf
    for roundings in _ROUNDINGS:
        for key, sign in signed_keys:
            wrong = count_wrong([_off(leaf, sign * roundings * rounding, key) for leaf in leaves])
            if not wrong:
                return accepted
        if wrong == last:  # smaller errors will not excuse it either
            break
        last = wrong
    return accepted


def _off(leaf: torch.Tensor, error: float, key: int) -> torch.Tensor:
    """Each element with a relative error of up to `error`. Equal values get equal errors and stay equal.
    Integers are exact."""
    wide = leaf.double()
    return wide * (1 + error * _noise(wide, 0, key)) if leaf.is_floating_point() else leaf


def _separated(leaf: torch.Tensor, error: float, key: int) -> torch.Tensor:
    """The same, but equal values get different errors, equal infinities and zeros too."""
    if not leaf.is_floating_point():
        return leaf
    wide = leaf.double().clamp(-_HUGE, _HUGE)
    places = torch.arange(leaf.numel(), device=leaf.device).view(leaf.shape)
    noise = _noise(wide, places, key)
    return wide * (1 + error * noise) + math.copysign(_TINY, error) * noise


def _noise(wide: torch.Tensor, places: torch.Tensor | int, key: int) -> torch.Tensor:
    """Numbers between -1 and 1 that are a function of the bits and the place of each element."""
    return ((wide.view(torch.int64) + places * _KEYS[0]) * key >> 11).double() * 2.0**-52


def _slices(a: Expected, b: Expected) -> Iterator[tuple[Any, list[torch.Tensor], list[torch.Tensor]]]:
    """Rows, and both outputs there."""
    if isinstance(a, SlicedOutputs) and isinstance(b, SlicedOutputs):
        yield from ((rows, a.compute(rows), b.compute(rows)) for rows in a.ranges)
    else:
        assert isinstance(a, list) and isinstance(b, list), "both have the same slices"
        yield ..., a, b
