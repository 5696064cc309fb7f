"""Integers that the last bits of the inputs decide: there, any value is right.

Rounding to integers, argmax and topk turn an error of one rounding into another integer. In a product of
matrices that is rounded to int8, a few of a million elements differ between two honest kernels; how many
varies from call to call. A limit on their number would reject honest kernels, or accept one wrong index in
each call. So the judge asks which elements they are. It computes the oracle's outputs once more for inputs
that are off by several roundings, only if integers differ: an integer that changes there is not checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernelpro.lab.measure.slicing import Expected, SlicedOutputs

_ROUNDINGS = 32
"""By how many roundings inputs are off, or by how many errors of a plain sum if those are larger."""
_KEYS = (-7046029254386353131, -4417276706812531889, 2862933555777941757, 3202034522624059733)
"""Odd multipliers that turn the bits of a value into its error. Each is used with both signs: one of the two
crosses the tie, unless all errors happen to cancel, which they do with one key of twenty."""

_HUGE, _TINY = 2.0**1000, 2.0**-100


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
    for key in _KEYS:
        for error in (_ROUNDINGS * rounding, -_ROUNDINGS * rounding):
            disturbed = [_off(leaf, error, key, leaves_ties_open) for leaf in leaves]
            others, wrong = compute(disturbed), False
            for rows, right, other in _slices(truth, others):
                for index in integers:
                    part = accepted[index][rows]
                    part.copy_(torch.where(other[index] != right[index], right[index], part))
                    wrong |= not torch.equal(part, right[index])
            if not wrong:
                return accepted
    return accepted


def _off(leaf: torch.Tensor, error: float, key: int, leaves_ties_open: bool) -> torch.Tensor:
    """Each element with a relative error of up to `error`. Integers are exact. Equal values get equal errors
    and stay equal, unless ties are open; then equal infinities and zeros become different, too."""
    if not leaf.is_floating_point():
        return leaf
    wide = leaf.double()
    if not leaves_ties_open:
        return wide * (1 + error * _noise(wide, 0, key))
    wide = wide.clamp(-_HUGE, _HUGE)
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
