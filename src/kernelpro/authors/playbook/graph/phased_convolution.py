"""Convolutions as CPUs compute them: groups have a loop of their own, and a transposed convolution with a
stride has one loop nest for each phase of its output.

Along one dimension with stride s, padding p and dilation d, output s q + r (phase r) is the sum over the
kernel elements k for which r + p - k d is a multiple of s, times input q + (r + p - k d) / s. With g = gcd(s,
d), these are every (s / g)-th element of the kernel. A phase without any still has one term, which a guard
skips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

from kernelpro.authors.playbook.graph.matmul_and_conv import convolution, per_dim
from kernelpro.authors.playbook.graph.operator_call import OperatorCall
from kernelpro.authors.playbook.graph.shapes import reshaped
from kernelpro.authors.playbook.graph.value_ops import add
from kernelpro.authors.playbook.graph.values import (
    Indices,
    Interleaved,
    LoweringContext,
    PhasedReduction,
    Value,
    materialize_unless_input,
)
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, constant
from kernelpro.authors.playbook.ir.stages import Guard


def phased_convolution(call: OperatorCall) -> Value:
    """The convolution, transposed or not. Raises NoProposal without a batch dimension."""
    dims = len(call.shape) - 2
    if "transpose" not in call.name:
        return convolution(call, dims, split_groups=True)
    if len(call.value(0).shape) != dims + 2:
        raise call.unsupported("without a batch dimension")
    result, bias = _transposed(call, dims), call.optional(2, "bias")
    return add(result, reshaped(bias, (bias.shape[0], *(1,) * dims))) if bias else result


@dataclass(frozen=True)
class _Phase:
    """One phase along one dimension: output `stride * q + number` for each position q."""

    number: int
    stride: int
    positions: int
    first: int
    """The first kernel element that it uses."""
    step: int
    """The distance between the kernel elements that it uses."""
    taps: int
    """How many kernel elements it uses."""
    shift: int
    """The input that position 0 multiplies with the first kernel element."""
    back: int
    """How far the input moves back with each further term."""

    def source(self, position: IndexExpr, term: IndexExpr) -> IndexExpr:
        """The index into the input; outside of it if the phase has no taps."""
        return position + self.shift - term * self.back if self.taps else constant(-1)


def _phases(output: int, kernel: int, stride: int, padding: int, dilation: int) -> list[_Phase]:
    """All phases along one dimension."""
    step, phases = stride // gcd(stride, dilation), []
    for number in range(min(stride, output)):
        taps = [k for k in range(kernel) if (number + padding - k * dilation) % stride == 0]
        first = taps[0] if taps else 0
        shift = (number + padding - first * dilation) // stride
        positions, back = (output - number + stride - 1) // stride, step * dilation // stride
        phases.append(_Phase(number, stride, positions, first, step, len(taps), shift, back))
    return phases


def _transposed(call: OperatorCall, dims: int) -> Value:
    x, weight = materialize_unless_input(call.value(0)), call.value(1)
    stride, padding = per_dim(call.get(3, "stride"), dims, 1), per_dim(call.get(4, "padding"), dims, 0)
    dilation, groups = per_dim(call.get(7, "dilation"), dims, 1), call.get(6, "groups", 1)
    numbers = zip(call.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    by_dim = [_phases(*own) for own in numbers]
    parts = [_part(call, x, weight, phases, groups) for phases in product(*by_dim)]
    return Interleaved(parts, stride, call.node.name)


def _part(
    call: OperatorCall, x: Value, weight: Value, phases: Sequence[_Phase], groups: int
) -> PhasedReduction:
    """One phase of the output. Outer loops: batch, group, output channel of the group, positions."""
    group_inputs, group_outputs = x.shape[1] // groups, weight.shape[1]

    def sources(outer: Indices, inner: Indices) -> list[IndexExpr]:
        return [p.source(q, t) for p, q, t in zip(phases, outer[3:], inner[1:], strict=True)]

    def body(outer: Indices, inner: Indices, context: LoweringContext) -> Expr:
        channel = outer[1] * group_inputs + inner[0]
        element = context.element(x, (outer[0], channel, *sources(outer, inner)))
        taps = [t * p.step + p.first for p, t in zip(phases, inner[1:], strict=True)]
        factor = context.element(weight, (channel, outer[2], *taps))
        return context.builder.make("mul", element, factor)

    def guards(outer: Indices, inner: Indices) -> tuple[Guard, ...]:
        needed = zip(sources(outer, inner), x.shape[2:], strict=True)
        return tuple(Guard(i, size) for i, size in needed if i.bounds[0] < 0 or i.bounds[1] >= size)

    def positions(outer: Indices) -> Indices:
        spatial = (q * p.stride + p.number for p, q in zip(phases, outer[3:], strict=True))
        return (outer[0], outer[1] * group_outputs + outer[2], *spatial)

    loops = (call.shape[0], groups, group_outputs, *(p.positions for p in phases))
    terms = (group_inputs, *(max(p.taps, 1) for p in phases))
    return PhasedReduction(call.shape, loops, terms, call.dtype, [x, weight], body, guards, positions)
