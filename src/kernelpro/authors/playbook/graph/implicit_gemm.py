"""Convolutions as products of matrices that are never stored (implicit GEMM).

The input is stored once with its channels innermost, and the weights in the same order. Both operands are
then contiguous along the summed dimension, as tensor cores need them. The result keeps the task's layout, so
that its consumers are fused into the same kernel or read contiguous rows. With channels as the columns of a
product (ConvolutionProduct), a stage has all channels of a position in one row, and reductions over channels
join it.

A transposed convolution with stride s in d dimensions is s^d ordinary convolutions, one for each phase of the
output. Along one dimension with padding p, output s q + r (phase r) is the sum over terms t of kernel element
k = (r + p) mod s + s t times input q + (r + p) div s - t. Phases with fewer terms get weights of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelpro.authors.playbook.graph.matmul_and_conv import Window, per_dim
from kernelpro.authors.playbook.graph.operator_call import OperatorCall
from kernelpro.authors.playbook.graph.shapes import permuted, reshaped
from kernelpro.authors.playbook.graph.value_ops import add
from kernelpro.authors.playbook.graph.values import (
    ConvolutionProduct,
    Indices,
    LoweringContext,
    Materialized,
    PhasedReduction,
    Reduction,
    Value,
    ZeroPadded,
)
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr
from kernelpro.authors.playbook.ir.stages import Guard

_MIN_CHANNELS = 16
"""Fewer output channels do not fill a tile of tensor cores."""


def implicit_convolution(call: OperatorCall, channel_rows: bool = False) -> Value | None:
    """The convolution as a tiled product. None if that is not supported: for groups, few output channels, or
    a transposed convolution with both stride and dilation. `channel_rows`: reductions over the channels may
    join its stage."""
    transposed, dims = "transpose" in call.name, len(call.shape) - 2
    x, weight, bias = call.value(0), call.value(1), call.optional(2, "bias")
    if len(x.shape) != dims + 2 or call.dtype != "float32" or call.get(6, "groups", 1) != 1:
        return None
    if call.shape[1] < _MIN_CHANNELS or isinstance(call.get(4, "padding"), str):
        return None
    result = (_transposed if transposed else _standard)(call, x, weight, dims, channel_rows)
    if result is None:
        return None
    return add(result, reshaped(bias, (bias.shape[0], *(1,) * dims))) if bias else result


def _channels_innermost(value: Value) -> Value:
    rank = len(value.shape)
    return Materialized(permuted(value, (0, *range(2, rank), 1)))


def _standard(call: OperatorCall, x: Value, weight: Value, dims: int, channel_rows: bool) -> Value:
    stride, dilation = per_dim(call.get(3, "stride"), dims, 1), per_dim(call.get(5, "dilation"), dims, 1)
    margins = per_dim(call.get(4, "padding"), dims, 0)
    if isinstance(x, ZeroPadded) and x.source.shape[:2] == x.shape[:2]:
        margins = [margin + lead for margin, lead in zip(margins, x.leading[2:], strict=True)]
        x = x.source
    window = Window(x.shape[2:], stride, margins, dilation)
    inner_x, inner_weight = _channels_innermost(x), _channels_innermost(weight)

    def body(outer: Indices, inner: Indices, context: LoweringContext) -> Expr:
        taps, channel = inner[:-1], inner[-1]
        element = context.element(inner_x, (outer[0], *window.at(outer[2:], taps), channel))
        return context.builder.make("mul", element, context.element(inner_weight, (outer[1], *inner)))

    def guards(outer: Indices, inner: Indices) -> tuple[Guard, ...]:
        return window.guards(outer[2:], inner[:-1])

    shape, terms, sources = call.shape, inner_weight.shape[1:], [inner_x, inner_weight]
    if channel_rows:
        return ConvolutionProduct(shape, shape, terms, call.dtype, sources, body, guards, lambda outer: outer)
    return Reduction("sum", shape, terms, call.dtype, sources, body, guards)


# --- transposed -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Phases:
    """The phases of a transposed convolution along one dimension."""

    size: int
    """Size of the input."""
    output: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def taps(self) -> int:
        """The largest number of terms in a phase."""
        return -(-self.kernel // self.stride)

    @property
    def positions(self) -> int:
        """Outputs of each phase; in some phases the last one lies beyond the result."""
        return -(-self.output // self.stride)

    def tap(self, phase: IndexExpr, term: IndexExpr) -> IndexExpr:
        """The index into the kernel."""
        return (phase + self.padding) % self.stride + term * self.stride

    def source(self, phase: IndexExpr, position: IndexExpr, term: IndexExpr) -> IndexExpr:
        """The index into the input."""
        if self.stride == 1:
            return position + self.padding - term * self.dilation
        return position + (phase + self.padding) // self.stride - term


class _PhasedWeights(Value):
    """The weights by phase, with dimensions (phases, outputs, terms, channels); 0 where a phase has fewer
    terms."""

    def __init__(self, weight: Value, phases: Sequence[_Phases]):
        strides, taps = [p.stride for p in phases], [p.taps for p in phases]
        super().__init__((*strides, weight.shape[1], *taps, weight.shape[0]), weight.dtype, [weight])
        self._phases = phases

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        """Return the element at these indices."""
        dims, builder = len(self._phases), context.builder
        phase, output, terms, channel = indices[:dims], indices[dims], indices[dims + 1 : -1], indices[-1]
        taps = [p.tap(r, t) for p, r, t in zip(self._phases, phase, terms, strict=True)]
        element = context.element(self.sources[0], (channel, output, *taps))
        for tap, p in zip(taps, self._phases, strict=True):
            if tap.bounds[1] >= p.kernel:
                index = builder.make("index", dtype="int64", data=tap)
                exists = builder.make("lt", index, builder.const(p.kernel, "int64"), dtype="bool")
                element = builder.make("select", exists, element, builder.const(0, self.dtype))
        return element


def _transposed(call: OperatorCall, x: Value, weight: Value, dims: int, channel_rows: bool) -> Value | None:
    stride, padding = per_dim(call.get(3, "stride"), dims, 1), per_dim(call.get(4, "padding"), dims, 0)
    dilation = per_dim(call.get(7, "dilation"), dims, 1)
    if any(s > 1 and d > 1 for s, d in zip(stride, dilation, strict=True)):
        return None
    sizes = zip(x.shape[2:], call.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    phases = [_Phases(*numbers) for numbers in sizes]
    inner_x = _channels_innermost(x)
    phased = Materialized(_PhasedWeights(weight, phases))

    def sources(outer: Indices, inner: Indices) -> list[IndexExpr]:
        """The spatial indices into the input. `outer`: phases, batch, output channel, positions."""
        parts = zip(phases, outer[:dims], outer[dims + 2 :], inner[:-1], strict=True)
        return [p.source(phase, position, term) for p, phase, position, term in parts]

    def body(outer: Indices, inner: Indices, context: LoweringContext) -> Expr:
        element = context.element(inner_x, (outer[dims], *sources(outer, inner), inner[-1]))
        return context.builder.make(
            "mul", element, context.element(phased, (*outer[:dims], outer[dims + 1], *inner))
        )

    def guards(outer: Indices, inner: Indices) -> tuple[Guard, ...]:
        needed = zip(sources(outer, inner), phases, strict=True)
        return tuple(Guard(i, p.size) for i, p in needed if i.bounds[0] < 0 or i.bounds[1] >= p.size)

    def positions(outer: Indices) -> Indices:
        parts = zip(phases, outer[:dims], outer[dims + 2 :], strict=True)
        return (outer[dims], outer[dims + 1], *(q * p.stride + r for p, r, q in parts))

    loops = (*stride, *call.shape[:2], *(p.positions for p in phases))
    terms = (*(p.taps for p in phases), x.shape[1])
    kind, operands = ConvolutionProduct if channel_rows else PhasedReduction, [inner_x, phased]
    return kind(call.shape, loops, terms, call.dtype, operands, body, guards, positions)
