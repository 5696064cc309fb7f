"""How far from the oracle an output may be: derived for each task and distribution, never a constant.

Errors are measured as in measure/errors.py. Two errors of the reference determine the limit:

    allowed   at the allowed precision; at least the rounding error of the output type and of a plain sum in
              it, and for TF32 at least the error of TF32 operands emulated in the oracle
    lower     at the next lower precision

The limit on the norm is min(32 * allowed, sqrt(allowed * lower)). The square root is as far from rejecting an
honest kernel as from accepting a cheaper precision. If the two precisions cannot be told apart, the limit is
4 * allowed, and the verdict has a note. That is the case if lower < 4 * allowed; for outputs with at least
1024 elements, whose norm hardly varies, if lower < 2 * allowed. The limit on single elements is looser,
because a maximum has a long tail: its factor is twice that of the norm, and at least 8. If there are several
outputs, each has its own limits.

Inputs with offsets (in odd rows, or in all values) expose cancellation, not precision. Their limit is
4 * allowed, where `allowed` is at least the error of a plain sum of differences from an offset, and at least
the error caused by inputs that are off by one rounding.

On inputs with infinities, the output must be finite where the oracle is finite. Where the oracle is infinite,
the output must be the same infinity or NaN, because compensated sums turn infinity into NaN. Where the oracle
is NaN, any value is right.

Inputs with equal rows expose a softmax whose running maximum does not start at minus infinity. If an operator
of the reference may return equal values in any order (topk, an unstable sort), `allowed` of integers includes
those that depend on that order.

Padded rows have zeros, which expose a missing epsilon. Where the oracle is discontinuous at zero (ties of a
maximum, signs), nothing is required: `allowed` includes what changes if zeros are replaced by tiny values.

Integers, such as indices or quantized values, may differ from the oracle's where the last bits of the inputs
decide them (near_ties.py).

If float64 does not fit into the device's memory, outputs are compared with the reference in its own type.
The error of that reference is measured against float64 in host memory, and is part of `allowed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernelpro.lab import tree
from kernelpro.lab.judge.near_ties import accept_near_ties
from kernelpro.lab.measure.errors import (
    Errors,
    has_nan,
    integer_errors,
    is_finite,
    measure_errors,
    output_elements,
)
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.measure.rounding import round_to_bits
from kernelpro.lab.measure.slicing import Expected
from kernelpro.lab.tasks.inputs import (
    AS_GIVEN,
    DISTRIBUTIONS,
    EQUAL_ROWS,
    FALLBACKS,
    ODD_ROWS,
    OFFSET,
    PADDED_ROWS,
    WITH_INFINITIES,
    WITH_OFFSETS,
)
from kernelpro.lab.tasks.reference import BITS
from kernelpro.records import BadInput

FACTOR = 32.0
"""Sums in another order, fused operations and fast intrinsics stay within a few ulp. A factor of 32 leaves
them room and is still 2^8 below half precision."""
UNSEPARATED = 4.0
"""The factor if the allowed precision and the next lower one cannot be told apart."""
_SEPARABLE = 4.0
"""The least ratio of `lower` to `allowed` at which the two precisions can be told apart."""
_SEPARABLE_MANY, _MANY = 2.0, 1024
"""The same ratio for outputs with at least so many elements."""
_NEXT_LOWER = {53: 24, 24: 11, 11: 8, 8: 4}
"""The significant bits of the next lower precision, by significant bits."""
TOLERANCE_SAMPLES = {"spikes": 6, "mild spikes": 6, ODD_ROWS: 3}
"""Most draws of a distribution on which the reference's own error is measured; the worst counts. If only
a few values are large, the error depends on where they meet: the largest element error of attention differs
by a factor of 1000 between draws, and an honest kernel was rejected on one draw in seven. So candidates are
verified on these draws only."""
_MIN_SAMPLES, _ALIKE = 3, 2.0
"""There are no more draws if the errors of the first ones differ by less than this factor."""
_MAX_HOST_SAMPLES = 2
"""Most draws if the error is measured in host memory, where each takes seconds."""
_ILL_CONDITIONED_ELEMENT = 0.01
"""As _ILL_CONDITIONED, for single elements of inputs with offsets: if a few elements are far off, the order
of sums determines which ones."""
_ROUNDING = 2.0**-23
_NOT_EXACT = "the oracle is not float64"
_TINY = 2.0**-100
_APART, _HUGE = 2.0**-30, 2.0**1000
_PIECE = 1 << 24
"""Elements that are changed at once."""
_ILL_CONDITIONED = 0.02
"""A distribution whose allowed error is above 2 % says nothing about a kernel and is skipped."""


@dataclass(frozen=True)
class Limit:
    """The largest allowed errors on one distribution."""

    norm: float
    element: float
    separates: bool
    """Whether it distinguishes the allowed precision from the next lower one."""
    outputs: tuple[Limit, ...] = ()
    """Each output's own limits, which then decide; empty for a single output."""

    def share_used(self, errors: Errors) -> float:
        """The errors as a share of the limit; above 1, the output is wrong."""
        if self.outputs and len(self.outputs) == len(errors.outputs):
            return max(map(Limit.share_used, self.outputs, errors.outputs))
        return max(_ratio(errors.norm, self.norm), _ratio(errors.element, self.element))

    def deciding(self, errors: Errors) -> tuple[int, Limit, Errors]:
        """The output that uses most of its limit, that limit and its errors."""
        if not (self.outputs and len(self.outputs) == len(errors.outputs)):
            return 0, self, errors
        pairs = list(zip(self.outputs, errors.outputs, strict=True))
        index = max(range(len(pairs)), key=lambda number: pairs[number][0].share_used(pairs[number][1]))
        return index, *pairs[index]


def _ratio(error: float, limit: float) -> float:
    if math.isnan(error):
        return math.inf
    return 0.0 if error == 0 else math.inf if limit == 0 else error / limit


class Tolerance:
    """Limits by distribution. `skipped` has the distributions that do not suit the task, with the reason."""

    def __init__(
        self, oracle: Oracle, precision: str, seed: int, distributions: tuple[str, ...] = DISTRIBUTIONS
    ):
        self.seed = seed
        self.limits: dict[str, Limit] = {}
        self.skipped: dict[str, str] = {}
        self._draws: dict[str, list[int]] = {}
        """By distribution, the seeds from which the limit was derived."""
        self._products = -1
        """Number of the reference's matrix products; -1: not counted yet. Without products, there are no
        operands to emulate at another precision."""
        self._exponentials = 0
        """Number of its softmaxes."""
        self._leaves_ties_open = False
        """It uses an operator that may return equal values in any order."""
        bits = {"fp32": 24, "tf32": 11}.get(precision, BITS.get(oracle.reference.dtype(), 24))
        self._bits, self._oracle = bits, oracle
        for distribution in distributions:
            reason = ""
            for name in (distribution, FALLBACKS.get(distribution)):
                if name is None:
                    continue
                limit, reason = self._derive(oracle, precision, bits, name, seed)
                if limit:
                    self.limits[name] = limit
                    break
            else:
                self.skipped[distribution] = reason

    def _derive(
        self, oracle: Oracle, precision: str, bits: int, distribution: str, seed: int
    ) -> tuple[Limit | None, str]:
        if distribution in WITH_OFFSETS and (reason := self._without_offsets(oracle)):
            return None, reason
        if distribution == EQUAL_ROWS and not (self._products > 0 and self._exponentials):
            return None, "the task has no softmax of a product"
        if distribution == PADDED_ROWS and not oracle.exact:
            return None, _NOT_EXACT
        form, leaves = oracle.inputs(seed, distribution)
        if distribution != AS_GIVEN and not any(leaf.is_floating_point() for leaf in leaves):
            return None, "the task has no floating-point input"
        try:
            truth = oracle.expected(seed, distribution)
        except BadInput as error:
            if distribution == AS_GIVEN:
                raise
            return None, str(error)
        infinite = distribution in WITH_INFINITIES
        if infinite and has_nan(truth):
            return None, "the reference returns NaN for them in float64"
        if distribution != AS_GIVEN and not infinite and not is_finite(truth):
            return None, "the reference is not finite for them in float64"
        separable = distribution not in WITH_OFFSETS and not infinite
        elements = output_elements(truth)
        allowed = self._allowed(oracle, precision, bits, form, leaves, truth)
        if reason := _ill_conditioned(distribution, allowed):
            return None, reason  # the steps that follow can only increase the error
        lower = self._lower(oracle, bits, form, leaves, truth) if separable else allowed
        samples = TOLERANCE_SAMPLES.get(distribution, 1)
        samples = samples if oracle.exact else min(samples, _MAX_HOST_SAMPLES)
        drawn, self._draws[distribution] = [allowed], [seed]
        while len(drawn) < samples and (len(drawn) < _MIN_SAMPLES or _differ(drawn)):
            del form, leaves, truth  # one set of inputs and outputs at a time
            other = seed + 16 * len(drawn)
            form, leaves = oracle.inputs(other, distribution)
            truth = oracle.expected(other, distribution)
            drawn.append(self._allowed(oracle, precision, bits, form, leaves, truth))
            self._draws[distribution].append(other)
            allowed = allowed.combine(drawn[-1])
            if reason := _ill_conditioned(distribution, allowed):
                return None, reason
        if distribution in WITH_OFFSETS:
            # the error of a sum of values with the offset, relative to their differences from the mean
            floor = OFFSET * _sum_error(leaves, sum(elements), oracle.reference.dtype())
            allowed = allowed.combine(Errors.worst([Errors(floor, floor)] * len(elements)))
            allowed = allowed.combine(_conditioning(oracle, form, leaves, truth))
            if not allowed.element <= _ILL_CONDITIONED_ELEMENT:
                return None, f"the reference's own error is {allowed.element:.1%} for some elements"
        if distribution == PADDED_ROWS:
            nearly = [_almost_zero(leaf) if leaf.is_floating_point() else leaf for leaf in leaves]
            allowed = allowed.combine(measure_errors(oracle.compute_expected(form, nearly), truth))
        if reason := _ill_conditioned(distribution, allowed):
            return None, reason
        return _limit(allowed, lower if separable else None, elements), ""

    def measure(
        self,
        outputs: list[torch.Tensor],
        truth: Expected,
        inputs: Callable[[], tuple[tree.TreeSpec, list[torch.Tensor]]],
        distribution: str = AS_GIVEN,
    ) -> Errors:
        """The errors of outputs. If they exceed the limit, integers that the last bits of the inputs decide
        do not count."""
        infinite = distribution in WITH_INFINITIES
        errors = measure_errors(outputs, truth, with_infinities=infinite)
        exceeds = self.limits[distribution].share_used(errors) > 1
        if not exceeds or all(output.is_floating_point() for output in outputs):
            return errors
        return measure_errors(self._accept(outputs, truth, *inputs()), truth, with_infinities=infinite)

    def _accept(
        self, outputs: list[torch.Tensor], truth: Expected, form: tree.TreeSpec, leaves: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The outputs, without differences in integers that the last bits of the inputs decide."""
        oracle, written = self._oracle, sum(output.numel() for output in outputs)
        rounding = max(2.0**-self._bits, _sum_error(leaves, written, oracle.reference.dtype()))

        def compute(others: list[torch.Tensor]) -> Expected:
            return oracle.compute_expected(form, others)

        return accept_near_ties(outputs, truth, compute, leaves, rounding, self._leaves_ties_open)

    def inputs_between_rounds(self, new_seed: Callable[[], int], parts: int) -> list[list[tuple[int, str]]]:
        """Seeds and distributions for verification between timed rounds: for each part of the rounds, one of
        every distribution that is not timed itself. No seed occurs elsewhere. The second part has fewer if a
        limit holds only for a few draws."""
        lists: list[list[tuple[int, str]]] = [[] for _ in range(parts)]
        for number, inputs in enumerate(lists, 1):
            for name in self.limits:
                if name in TOLERANCE_SAMPLES:
                    inputs += [(seed, name) for seed in self._draws[name][number : number + 1]]
                elif name != AS_GIVEN:
                    inputs.append((new_seed(), name))
        return lists

    def _without_offsets(self, oracle: Oracle) -> str:
        """Why inputs with offsets say nothing about this task; empty if they do."""
        if not oracle.exact:
            return _NOT_EXACT
        # an attention's logits reach millions there: which softmax is right depends on the order of sums
        return "the task multiplies matrices" if self._products > 0 else ""

    def _allowed(
        self,
        oracle: Oracle,
        precision: str,
        bits: int,
        form: tree.TreeSpec,
        leaves: list[torch.Tensor],
        truth: Expected,
    ) -> Errors:
        """The reference's error at the allowed precision."""
        own = oracle.run(None, form, leaves, tf32_allowed=precision == "tf32")
        if any(not leaf.is_floating_point() for leaf in own):
            own = self._accept(own, truth, form, leaves)
        errors = measure_errors(own, truth)
        if (host := oracle.own_error_source(form, leaves)) is not None:
            errors = errors.combine(measure_errors([leaf.cpu() for leaf in own], host))
            del host
        floors = _floors(own, leaves)
        del own  # frees memory for the next run
        if self._products and (precision == "tf32" or self._products < 0):
            emulated, mode = oracle.emulate(bits, form, leaves)
            emulated_errors = measure_errors(emulated, truth)
            self._products, self._exponentials = mode.products, mode.exponentials
            self._leaves_ties_open = mode.leaves_ties_open
            if isinstance(emulated, list) and any(not leaf.is_floating_point() for leaf in emulated):
                emulated_errors = measure_errors(self._accept(emulated, truth, form, leaves), truth)
            if self._products and precision == "tf32":
                errors = errors.combine(emulated_errors)
        if self._leaves_ties_open and oracle.exact:
            errors = errors.combine(_ties(oracle, form, leaves, truth))
        return errors.combine(floors)

    def _lower(
        self, oracle: Oracle, bits: int, form: tree.TreeSpec, leaves: list[torch.Tensor], truth: Expected
    ) -> Errors:
        """The error with matrix operands (without matrix products: inputs) at the next lower precision.

        Without matrix products TF32 means nothing, and float32 is the allowed precision.
        """
        lower = _NEXT_LOWER[
            bits if self._products or bits != 11 or oracle.reference.dtype() != torch.float32 else 24
        ]
        if self._products:
            return measure_errors(oracle.emulate(lower, form, leaves)[0], truth)
        cut = [round_to_bits(leaf, lower) if leaf.is_floating_point() else leaf for leaf in leaves]
        return measure_errors(oracle.compute_expected(form, cut), truth)


def _limit(allowed: Errors, lower: Errors | None, elements: list[int]) -> Limit:
    """The limit of all outputs, each of which has `elements`. `lower`: None where inputs do not separate
    precisions."""
    outputs: tuple[Limit, ...] = ()
    if allowed.outputs:
        lowers = lower.outputs if lower else (None,) * len(elements)
        parts = zip(allowed.outputs, lowers, elements, strict=True)
        outputs = tuple(_limit(own, below, [count]) for own, below, count in parts)
    if lower is None:
        return Limit(UNSEPARATED * allowed.norm, 2 * UNSEPARATED * allowed.element, False, outputs)
    separates = lower.norm >= (_SEPARABLE_MANY if min(elements) >= _MANY else _SEPARABLE) * allowed.norm
    factor = min(FACTOR, math.sqrt(lower.norm / allowed.norm)) if separates and allowed.norm else UNSEPARATED
    return Limit(
        factor * allowed.norm,
        max(8.0, 2 * factor) * allowed.element,
        any(output.separates for output in outputs) if outputs else separates,
        outputs,
    )


def _ill_conditioned(distribution: str, allowed: Errors) -> str:
    """Why the distribution says nothing about a kernel; empty if it does."""
    if distribution == AS_GIVEN or allowed.norm <= _ILL_CONDITIONED:
        return ""
    return f"the reference's own error is {allowed.norm:.1%}"


def _differ(drawn: list[Errors]) -> bool:
    """Whether the errors of some draws differ by more than _ALIKE."""
    return any(
        max(errors) > _ALIKE * min(errors)
        for errors in ([each.norm for each in drawn], [each.element for each in drawn])
    )


def _floors(outputs: list[torch.Tensor], leaves: list[torch.Tensor]) -> Errors:
    """The least error that is allowed of each output: its last rounding, and a plain sum. None for integers:
    see near_ties.py."""
    written = sum(leaf.numel() for leaf in outputs)

    def floor(leaf: torch.Tensor) -> float:
        # 16-bit types are summed in float32: only their last rounding shows
        if leaf.dtype in BITS and leaf.dtype.itemsize <= 2:
            return 2.0 ** -BITS[leaf.dtype]
        return _sum_error(leaves, written, leaf.dtype) if leaf.dtype in BITS else 0.0

    return Errors.worst([Errors(value, value) for value in map(floor, outputs)])


def _accumulation(leaves: list[torch.Tensor], written: int) -> float:
    """The allowed error of a plain sum, in roundings: sqrt(L) / 4, between 1 and 64.

    L is the longest reduction that the shapes admit. The error of L additions grows with sqrt(L), and the
    narrowest hardware adds in four lanes. The reference itself may be more accurate (torch sums in double on
    the CPU), but that must not be required of a kernel.
    """
    read = sum(leaf.numel() for leaf in leaves)
    longest = max([read / max(written, 1), *(max(leaf.shape, default=1) for leaf in leaves)], default=1.0)
    return min(64.0, max(1.0, math.sqrt(longest) / 4))


def _sum_error(leaves: list[torch.Tensor], written: int, dtype: torch.dtype) -> float:
    """The relative error of a plain sum, computed in the type or in float32, whichever is wider."""
    return 2.0 ** -max(BITS.get(dtype, 24), BITS[torch.float32]) * _accumulation(leaves, written)


def _conditioning(oracle: Oracle, form: tree.TreeSpec, leaves: list[torch.Tensor], truth: Expected) -> Errors:
    """The error of plain sums of inputs that are off by one rounding in float32.

    Without it, the order of sums alone would decide which kernel is right: attention of rows with an offset
    has logits of millions, and torch's own fused kernel differed by twice the limit.
    """
    off = [_off_by_a_rounding(leaf) if leaf.is_floating_point() else leaf for leaf in leaves]
    errors = measure_errors(oracle.compute_expected(form, off), truth)
    sums = _accumulation(leaves, sum(output_elements(truth)))
    scaled = [Errors(sums * part.norm, sums * part.element) for part in errors.outputs or (errors,)]
    return Errors.worst(scaled)


def _ties(oracle: Oracle, form: tree.TreeSpec, leaves: list[torch.Tensor], truth: Expected) -> Errors:
    """The share of integers that depend on the order of equal values: those that change if equal values, or
    infinities, become different by a little, ascending or descending."""
    found = Errors(0.0, 0.0)
    for first, last in ((0.0, 1.0), (1.0, 0.0)):
        apart = [_apart(leaf, first, last) if leaf.is_floating_point() else leaf for leaf in leaves]
        outputs = oracle.compute_expected(form, apart)
        found = found.combine(integer_errors(outputs, truth))
    return found


def _apart(leaf: torch.Tensor, first: float, last: float) -> torch.Tensor:
    place = torch.linspace(first, last, leaf.numel(), dtype=torch.float64, device=leaf.device).view(
        leaf.shape
    )
    wide = leaf.double().clamp(-_HUGE, _HUGE)
    return wide + (wide.abs() * _APART + _TINY) * place


def _off_by_a_rounding(leaf: torch.Tensor) -> torch.Tensor:
    """Each element moved up or down by one rounding, at random. Rows of equal values are kept: their sums are
    exact."""
    generator = torch.Generator(leaf.device).manual_seed(0)
    up = torch.rand(leaf.shape, generator=generator, device=leaf.device) < 0.5
    wide = leaf.to(torch.promote_types(leaf.dtype, torch.float32))
    off = torch.where(up, wide * (1 + _ROUNDING), wide * (1 - _ROUNDING))
    return torch.where((leaf == leaf[..., :1]).all(-1, keepdim=True), wide, off) if leaf.dim() else off


def _almost_zero(leaf: torch.Tensor) -> torch.Tensor:
    """The input with tiny values in place of zeros. A few rows at a time: large tasks have little memory."""
    generator = torch.Generator(leaf.device).manual_seed(0)
    wide = leaf.to(torch.promote_types(leaf.dtype, torch.float32), copy=True)
    flat = wide.view(-1) if wide.is_contiguous() else wide
    for part in torch.split(flat, _PIECE) if flat.dim() else ():
        tiny = _TINY * torch.randn(part.shape, generator=generator, device=part.device, dtype=part.dtype)
        part.copy_(torch.where(part == 0, tiny, part))
    return wide
