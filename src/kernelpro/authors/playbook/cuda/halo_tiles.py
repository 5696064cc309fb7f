"""Convolutions that halo_convolution.py can compute, and the tiles that fit into shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, prod

from kernelpro.authors.playbook.cuda.matmul import uses_tensor_cores
from kernelpro.authors.playbook.ir.indices import IndexExpr, Loops, LoopVar, iterations, variable
from kernelpro.authors.playbook.ir.stages import Guard, Stage
from kernelpro.authors.playbook.schedule.contractions import Contraction, find_contraction
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two

DEPTH = 8
"""Channels that are in shared memory at a time: the depth of one instruction."""
_MIN_CHANNEL_SHARE = 0.5
"""The smallest share of DEPTH-channel steps that must be real channels."""
_MAX_TAPS, _MAX_PHASES = 128, 16
_BANKS = 32
SIDE = 16
"""Positions of an instruction."""
PLANE_PADDING = 40
"""Elements that are added to a plane at most, so that the next one starts 8 banks further."""


@dataclass(frozen=True)
class ConvolutionAxis:
    """One spatial dimension: output position p and tap t read input element stride p + dilation t + first."""

    positions: int
    taps: int
    stride: int
    dilation: int
    first: int
    """May be negative: the padding."""
    size: int
    """Elements outside of 0..size-1 are 0."""
    phases: int = 1
    """Outputs of a position, which have weights of their own: the stride of a transposed convolution."""
    kernel: int = 0
    """Weights of all phases; 0 for one phase, which has a weight for each tap."""
    shift: int = 0
    """Tap t of phase r multiplies with weight r + shift - phases * t, if there is one."""

    @property
    def weights(self) -> int:
        """The number of weights."""
        return self.kernel or self.taps


@dataclass(frozen=True)
class Convolution:
    """A convolution as this kernel computes it."""

    tensor: str
    y: ConvolutionAxis
    x: ConvolutionAxis
    pitch: int
    """Elements from one line of the input to the next."""
    base: IndexExpr
    """The index of the input without the terms of x and y: of the outer rows and the channels."""
    guards: tuple[Guard, ...]
    """Guards on a third dimension."""
    outer: Loops
    channels: Loops
    """The sum's loops that are not taps of x and y; 8 iterations at a time."""
    weights: str
    weight_base: IndexExpr
    """The index of the first weight in memory of a column and a channel. Its taps follow contiguously."""
    reversed: bool
    """The weights' taps are stored in reverse order."""
    column: LoopVar
    phases: Loops
    """The loops over the phases of y and x, where there are several."""
    vector: int
    """Elements of the input that are copied at a time."""

    @property
    def taps(self) -> int:
        """The number of taps."""
        return self.y.taps * self.x.taps

    @property
    def weights_per_channel(self) -> int:
        """The number of weights of a column and a channel."""
        return self.y.weights * self.x.weights

    @property
    def outputs(self) -> int:
        """The number of outputs of a position and a column: of phases."""
        return self.y.phases * self.x.phases

    @property
    def lead(self) -> int:
        """Elements before the first one that is needed, so that copies are aligned."""
        return self.x.first % self.vector

    @property
    def weight_stride(self) -> int:
        """Elements from one column's weights to the next in shared memory, with the fewest bank conflicts."""
        size = -(-DEPTH * self.taps // 4) * 4

        def conflicts(stride: int) -> int:
            banks = [(lane * stride + k * self.taps) % _BANKS for lane, k in product(range(8), range(4))]
            return max(banks.count(bank) for bank in banks)

        return min(range(size, size + _BANKS, 4), key=conflicts)

    @property
    def halo(self) -> tuple[int, int]:
        """Lines and elements of a line that a tile needs beyond stride * positions; 3 of the elements are for
        alignment."""
        y, x = self.y, self.x
        width = (x.taps - 1) * x.dilation + 1 - x.stride + self.lead + 3
        return (y.taps - 1) * y.dilation + 1 - y.stride, width

    def shared_elements(self, design: StageDesign) -> int:
        """The elements of a buffer in shared memory, at most."""
        lines, width = self.halo
        plane = (design.coarsening * self.y.stride + lines) * (design.tile_m * self.x.stride + width)
        return DEPTH * (plane + PLANE_PADDING) + design.tile_n * self.weight_stride

    def shared_elements_text(self, number: int) -> str:
        """The same as an expression of the tunables, in C++ and in Python."""
        return f"({DEPTH} * {self.plane_text(number)} + TILE_N{number} * {self.weight_stride})"

    def plane_text(self, number: int) -> str:
        """The elements of a plane of the input, at most, as such an expression."""
        lines, width = self.halo
        plane = (
            f"(COARSENING{number} * {self.y.stride} + {lines}) * (TILE_M{number} * {self.x.stride} + {width})"
        )
        return f"({plane} + {PLANE_PADDING})"


def convolution_of(stage: Stage, precision: str) -> Convolution | None:
    """The convolution of a stage; None if the kernel cannot compute it."""
    contraction = find_contraction(stage)
    if contraction is None or stage.product:
        return None
    if not uses_tensor_cores(contraction, StageDesign(order="tiles"), precision):
        return None
    return _find_convolution(contraction)


def _find_convolution(contraction: Contraction) -> Convolution | None:
    left, right = contraction.left, contraction.right
    if left.op != "load" or right.op != "load" or left.operands or right.operands:
        return None
    rows, depth, guards = contraction.rows, contraction.depth, list(contraction.guards)
    if left.dtype != "float32" or contraction.batch or len(depth) < 2:
        return None
    (tensor, index), (weights, weight_index) = left.data, right.data
    indices = [index, weight_index, *(guard.index for guard in guards)]
    if not all(each.is_affine for each in indices):
        return None
    dims = 2 if len(rows) > 1 and len(depth) > 2 else 1
    channels, taps = depth[:-dims], depth[-dims:]
    y, pitch = ConvolutionAxis(1, 1, 1, 1, 0, 1), 0
    if dims == 2:
        line = gcd(index.coefficient(rows[-2]), index.coefficient(taps[0]))
        found = _axis(index, rows[-2], taps[0], line, guards)
        if found is None:
            return None
        y, pitch = found
    x_axis = _axis(index, rows[-1], taps[-1], 1, guards, pitch or index.coefficient(channels[-1]))
    if x_axis is None or x_axis[1] != 1:
        return None
    axes, phases, steps = (y, x_axis[0]), contraction.columns[1:], iterations(channels)
    if contraction.right_guards:
        with_phases = _with_phases(axes[-dims:], taps, weight_index, contraction)
        if with_phases is None:
            return None
        *lines, x = with_phases
        y, order = lines[0] if lines else y, 1
        first_weight = y.shift * x.weights + x.shift
    else:
        x, tap_order = axes[1], _tap_order(weight_index, taps)
        if tap_order is None or phases:
            return None
        order = tap_order
        first_weight = y.taps * x.taps - 1 if order < 0 else 0
    inner = {*rows[-dims:], *taps}
    if any(guard.index.variables & inner for guard in guards):
        return None
    if y.taps * x.taps > _MAX_TAPS or steps / (-(-steps // DEPTH) * DEPTH) < _MIN_CHANNEL_SHARE:
        return None
    base = _without(index, inner) - (y.first * pitch + x.first)
    aligned = not any(n % 4 for n in (pitch, base.constant, x.size, *(factor for _, factor in base.terms)))
    return Convolution(
        tensor,
        y,
        x,
        pitch,
        base,
        tuple(guards),
        rows[:-dims],
        channels,
        weights,
        _without(weight_index, {*inner, *phases}) - first_weight,
        order < 0,
        contraction.columns[0],
        phases,
        4 if aligned else 1,
    )


def _axis(
    index: IndexExpr, row: LoopVar, tap: LoopVar, unit: int, guards: list[Guard], line: int = 0
) -> tuple[ConvolutionAxis, int] | None:
    """The dimension with these loops, and the distance between its elements, which is at least `unit`. Takes
    its guard out of `guards`. `line`: elements from one line to the next; 0 if these are the lines."""
    steps = index.coefficient(row), index.coefficient(tap)
    if min(steps) < 1:
        return None
    own = [guard for guard in guards if {row, tap} & guard.index.variables]
    if own:
        terms = dict(own[0].index.terms)
        stride, dilation = terms.get(row, 0), terms.get(tap, 0)
        if len(own) > 1 or len(terms) != 2 or stride < 1 or dilation < 1:
            return None
        if steps[0] * dilation != steps[1] * stride or steps[0] % stride:
            return None
        guards.remove(own[0])
        axis = ConvolutionAxis(row.extent, tap.extent, stride, dilation, own[0].index.constant, own[0].size)
        return axis, steps[0] // stride
    stride, dilation = steps[0] // unit, steps[1] // unit
    first = index.constant % line if line else 0
    size = first + stride * (row.extent - 1) + dilation * (tap.extent - 1) + 1
    if line % 4 == 0:
        size = max(size, min(-(-size // 4) * 4, line))
    return ConvolutionAxis(row.extent, tap.extent, stride, dilation, first, size), unit


def _with_phases(
    axes: Sequence[ConvolutionAxis], taps: Loops, weight_index: IndexExpr, contraction: Contraction
) -> list[ConvolutionAxis] | None:
    """The dimensions with their phases; None if their weights are not contiguous."""
    remaining, phases = list(contraction.right_guards), set(contraction.columns[1:])
    unit, result = 1, list[ConvolutionAxis]()
    for axis, tap in zip(reversed(axes), reversed(taps), strict=True):
        guard = next((guard for guard in remaining if tap in guard.index.variables), None)
        if guard is None:  # one phase, with the weights in reverse order
            guard = Guard(variable(tap) * -1 + (tap.extent - 1), tap.extent)
        else:
            remaining.remove(guard)
        element, own = guard.index, guard.index.variables - {tap}
        count = -element.coefficient(tap)
        if any(weight_index.coefficient(var) != unit * element.coefficient(var) for var in {tap, *own}):
            return None
        if prod(var.extent for var in own & phases) != count or any(element.coefficient(v) != 1 for v in own):
            return None
        phases -= own
        unit *= guard.size
        result.insert(0, replace(axis, phases=count, kernel=guard.size, shift=element.constant))
    too_many = unit > _MAX_TAPS or prod(axis.phases for axis in result) > _MAX_PHASES
    return None if remaining or phases or too_many else result


def _without(index: IndexExpr, loops: set[LoopVar]) -> IndexExpr:
    return IndexExpr(tuple(term for term in index.terms if term[0] not in loops), index.constant)


def _tap_order(index: IndexExpr, taps: Loops) -> int | None:
    """1 if the weights of all taps are contiguous, -1 if they are so in reverse order, otherwise None."""
    unit = index.coefficient(taps[-1])
    expected = unit
    for tap in reversed(taps):
        if index.coefficient(tap) != expected:
            return None
        expected *= tap.extent
    return unit if unit in (1, -1) else None


def fit_halo_tiles(conv: Convolution, design: StageDesign, max_shared_bytes: int) -> StageDesign:
    """The design with tiles that are no larger than the result, threads that suit them, and as many pipeline
    stages as shared memory holds."""
    tile_m = max(min(design.tile_m, power_of_two(conv.x.positions), 256), SIDE)
    lines = max(min(design.coarsening, power_of_two(conv.y.positions), 16), 1)
    tile_n = max(min(design.tile_n, power_of_two(conv.column.extent), 128), 32)
    while tile_m * lines < 64:
        tile_m *= 2
    while True:
        results = tile_m * lines * tile_n
        most = min(results // 32, 2 * tile_m * lines, 512)
        threads = min(max(design.threads, results // 128, 64), most)
        fitted = replace(design, tile_m=tile_m, coarsening=lines, tile_n=tile_n, threads=threads)
        size = 4 * conv.shared_elements(fitted)
        if 2 * size <= max_shared_bytes or (tile_n == 32 and tile_m * lines <= 64):
            break
        if tile_n > 32 and (
            tile_m * lines <= 64 or 2 * tile_n * conv.weight_stride > conv.shared_elements(fitted)
        ):
            tile_n //= 2
        elif lines > 1:
            lines //= 2
        else:
            tile_m //= 2
    stages = max(min(design.pipeline_stages, max_shared_bytes // size), 2)
    return replace(fitted, tile_k=DEPTH, pipeline_stages=stages, split=1)
