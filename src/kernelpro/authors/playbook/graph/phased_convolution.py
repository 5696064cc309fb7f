"""Transposed convolutions with a stride, whose outputs have phases.

- `phased_convolution`, for CPUs: one loop nest for each phase of the output. Groups have a loop of their own.
- `joint_phases`, for GPUs: one product for all phases of a position, which read the same inputs. Its columns
  are output channels and phases.

Along one dimension with stride s, padding p and dilation d, output s q + r (phase r) is the sum over the
kernel elements k for which r + p - k d is a multiple of s, times input q + (r + p - k d) / s. With g = gcd(s,
d), these are every (s / g)-th element of the kernel. A phase without any still has one term, which a guard
skips.

Jointly, all phases sum over a window of inputs: input q + first + t is multiplied with kernel element
r + p - s (first + t), if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

from kernelpro.authors.playbook.graph.matmul_and_conv import convolution, per_dim
from kernelpro.authors.playbook.graph.operator_call import OperatorCall
from kernelpro.authors.playbook.graph.shapes import permuted, reshaped
from kernelpro.authors.playbook.graph.value_ops import add
from kernelpro.authors.playbook.graph.values import (
    Indices,
    Interleaved,
    LoweringContext,
    Materialized,
    PhasedReduction,
    Value,
    materialize_unless_input,
)
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, constant
from kernelpro.authors.playbook.ir.stages import Guard

_MIN_CHANNELS = 4
"""Fewer input channels leave most of an instruction of tensor cores unused."""


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


# --- all phases in one product ------------------------------------------------------------------------------


def joint_phases(call: OperatorCall) -> Value:
    """The transposed convolution with all phases of a position in one product; a third dimension has one
    product for each of its phases. Raises NoProposal for groups, dilation and few input channels, and without
    a batch dimension."""
    dims = len(call.shape) - 2
    dilation = per_dim(call.get(7, "dilation"), dims, 1)
    if len(call.value(0).shape) != dims + 2 or call.get(6, "groups", 1) != 1 or any(d > 1 for d in dilation):
        raise call.unsupported("with groups or dilation, or without a batch dimension")
    if call.value(0).shape[1] < _MIN_CHANNELS:
        raise call.unsupported(f"with fewer than {_MIN_CHANNELS} input channels")
    x, weight, bias = materialize_unless_input(call.value(0)), call.value(1), call.optional(2, "bias")
    stride, padding = per_dim(call.get(3, "stride"), dims, 1), per_dim(call.get(4, "padding"), dims, 0)
    sizes = zip(call.shape[2:], weight.shape[2:], stride, padding, strict=True)
    windows = [_Window(*numbers) for numbers in sizes][-2:]
    if dims < 3:
        result: Value = _joint(call, x, weight, windows, None)
    else:
        # With the third dimension outermost, the weights of all channels are contiguous for each element.
        weight = Materialized(permuted(weight, (2, 0, 1, 3, 4)))
        outer = _phases(call.shape[2], weight.shape[0], stride[0], padding[0], 1)
        parts = [_joint(call, x, weight, windows, phase) for phase in outer]
        result = Interleaved(parts, (stride[0], 1, 1), call.node.name)
    return add(result, reshaped(bias, (bias.shape[0], *(1,) * dims))) if bias else result


@dataclass(frozen=True)
class _Window:
    """The inputs that the outputs of one position read along one dimension."""

    output: int
    kernel: int
    stride: int
    padding: int

    @property
    def positions(self) -> int:
        """The number of positions; some phases of the last one may lie beyond the result."""
        return -(-self.output // self.stride)

    @property
    def first(self) -> int:
        """The first input of position 0; negative in the padding."""
        return -((self.kernel - 1 - self.padding) // self.stride)

    @property
    def size(self) -> int:
        """The number of inputs."""
        return (self.stride - 1 + self.padding) // self.stride - self.first + 1

    def element(self, phase: IndexExpr, term: IndexExpr) -> IndexExpr:
        """The kernel element of a phase for an input of the window; there may be none."""
        return phase + (self.padding - self.stride * self.first) - term * self.stride


def _joint(
    call: OperatorCall, x: Value, weight: Value, windows: Sequence[_Window], third: _Phase | None
) -> PhasedReduction:
    """All phases of the last two dimensions. Outer loops: batch, output channel, phases, positions (of the
    third dimension first); the sum: input channel, terms of the third dimension, windows."""
    dims, leading = len(windows), 1 if third else 0

    def sources(outer: Indices, inner: Indices) -> list[IndexExpr]:
        positions, terms = outer[2 + dims :], inner[1:]
        own = [third.source(positions[0], terms[0])] if third else []
        rest = zip(windows, positions[leading:], terms[leading:], strict=True)
        return own + [q + w.first + t for w, q, t in rest]

    def elements(outer: Indices, inner: Indices) -> list[IndexExpr]:
        numbers = zip(windows, outer[2 : 2 + dims], inner[1 + leading :], strict=True)
        return [w.element(r, t) for w, r, t in numbers]

    def body(outer: Indices, inner: Indices, context: LoweringContext) -> Expr:
        own = (inner[1] * third.step + third.first,) if third else ()
        value = context.element(x, (outer[0], inner[0], *sources(outer, inner)))
        factor = context.element(weight, (*own, inner[0], outer[1], *elements(outer, inner)))
        return context.builder.make("mul", value, factor)

    def guards(outer: Indices, inner: Indices) -> tuple[Guard, ...]:
        needed = zip(sources(outer, inner), x.shape[2:], strict=True)
        inside = [Guard(i, size) for i, size in needed if i.bounds[0] < 0 or i.bounds[1] >= size]
        real = zip(elements(outer, inner), windows, strict=True)
        return (*inside, *(Guard(i, w.kernel) for i, w in real if w.stride > 1))

    def positions(outer: Indices) -> Indices:
        own = (outer[2 + dims] * third.stride + third.number,) if third else ()
        numbers = zip(windows, outer[2 : 2 + dims], outer[2 + dims + leading :], strict=True)
        return (*outer[:2], *own, *(q * w.stride + r for w, r, q in numbers))

    loops = (*call.shape[:2], *(w.stride for w in windows))
    loops += (*((third.positions,) if third else ()), *(w.positions for w in windows))
    terms = (x.shape[1], *((max(third.taps, 1),) if third else ()), *(w.size for w in windows))
    return PhasedReduction(call.shape, loops, terms, call.dtype, [x, weight], body, guards, positions)
