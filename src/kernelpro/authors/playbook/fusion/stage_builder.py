"""A stage while it is put together: its loops, what it has computed so far, and what fits into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from kernelpro.authors.playbook.graph.values import (
    Indices,
    LoopSplitRequired,
    Matmul,
    Scan,
    StageValue,
    Value,
)
from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, flatten, unflatten, variable
from kernelpro.authors.playbook.ir.stages import MatrixProduct, ReduceStep, StoreStep, Total

Loops = tuple[LoopVar, ...]


class CannotFuse(Exception):
    """What was asked for is not there within this stage at these indices."""


@dataclass
class StageBuilder:
    order: int
    """Its place among the stages."""
    outer: Loops
    builder: ExprBuilder
    steps: list[ReduceStep | StoreStep] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    epilogue: list[StoreStep] = field(default_factory=list)
    product: MatrixProduct | None = None
    results: dict[StageValue, Expr] = field(default_factory=dict)
    """Reductions: the number that a row has; totals: the number that all have."""
    domains: list[tuple[tuple[int, ...], Indices, Loops]] = field(default_factory=list)
    """Shapes that its rows run through: which index each dimension has, and over which loops."""
    signatures: set[object] = field(default_factory=set)
    loops: dict[tuple[int, ...], Loops] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return prod(var.extent for var in self.outer)

    @property
    def row(self) -> IndexExpr:
        """The number of the row."""
        return flatten([variable(var) for var in self.outer], [var.extent for var in self.outer])

    def loops_over(self, shape: tuple[int, ...]) -> Loops:
        """Loops of those extents; the same for all steps, so that they can share a pass."""
        if shape not in self.loops:
            self.loops[shape] = tuple(
                LoopVar(f"i{len(self.loops)}_{place}", size) for place, size in enumerate(shape)
            )
        return self.loops[shape]

    def mappings(self, shape: tuple[int, ...]) -> Iterator[tuple[Indices, Loops]]:
        """Ways to run through a tensor of that shape, row by row; the best first."""
        for known, indices, loops in self.domains:
            if known == shape:
                yield indices, loops
        if prod(shape) == self.rows:
            yield unflatten(self.row, shape), ()
        if self.rows > 1 and prod(shape) % self.rows == 0:
            width = prod(shape) // self.rows
            lead = next((k for k in range(len(shape)) if prod(shape[:k]) == self.rows), None)
            inner = [extents for extents in list(self.loops) if prod(extents) == width]
            inner += [shape[lead:]] if lead is not None and shape[lead:] not in inner else []
            for extents in inner:
                loops = self.loops_over(extents)
                place = flatten([variable(var) for var in loops], extents)
                yield unflatten(self.row * width + place, shape), loops


class FusionAttempt:
    """Asks for elements on behalf of a draft; what it finds is taken over only if all of it fits."""

    def __init__(
        self,
        draft: StageBuilder,
        home: Callable[[StageValue], StageBuilder],
        temporary: Callable[[StageValue], str],
        loops: Loops = (),
    ):
        self.builder, self._draft, self._home, self._temporary, self._loops = (
            draft.builder,
            draft,
            home,
            temporary,
            loops,
        )
        self.in_epilogue = False
        """All rows are done: totals are there, rows are not."""
        self.used_values: set[StageValue] = set()
        """Anchors of the draft itself that were used."""
        self.required_temporaries: list[StageValue] = []
        """Anchors of earlier stages that must be stored."""
        self._known: dict[tuple[int, Indices], Expr] = {}

    def element(self, value: Value, indices: Indices) -> Expr:
        key = id(value), indices
        if key not in self._known:
            self._known[key] = value.at(indices, self)
        return self._known[key]

    def stage_value(self, value: StageValue, indices: Indices) -> Expr:
        home = self._home(value)
        if home is self._draft:
            found = self._local_value(value, indices)
            self.used_values.add(value)
            return found
        if home.order > self._draft.order:
            raise CannotFuse
        self.required_temporaries.append(value)
        return self.builder.make(
            "load", dtype=value.dtype, data=(self._temporary(value), flatten(indices, value.shape))
        )

    def _local_value(self, value: StageValue, indices: Indices) -> Expr:
        draft = self._draft
        if value in draft.results:
            found = draft.results[value]
            total = found.op == "total"
            if total != self.in_epilogue or (not total and flatten(indices, value.shape) != draft.row):
                raise CannotFuse
            return found
        if self.in_epilogue:
            raise CannotFuse
        if isinstance(value, Scan):
            return self._scan(value, indices)
        if (
            isinstance(value, Matmul)
            and draft.product
            and flatten(indices[:-1], value.shape[:-1]) == draft.row
        ):
            return self.builder.make("product", dtype=value.dtype, data=(draft.product.name, indices[-1]))
        raise CannotFuse

    def _scan(self, value: Scan, indices: Indices) -> Expr:
        along, others = indices[value.dim], (*indices[: value.dim], *indices[value.dim + 1 :])
        sizes = (*value.shape[: value.dim], *value.shape[value.dim + 1 :])
        if (
            len(self._loops) != 1
            or along != variable(self._loops[0])
            or flatten(others, sizes) != self._draft.row
        ):
            raise CannotFuse
        body = self.element(value.sources[0], indices)
        if any(node.op == "scan" for node in body.walk()):
            raise CannotFuse
        return self.builder.make("scan", body, dtype=value.dtype, data=(value.kind, self._loops[0]))


def build_with_loop_splits(
    loops: Loops, make: Callable[[Indices, Loops], Expr]
) -> list[tuple[Expr, Indices, Loops]]:
    """`make` over the whole of the loops, or over parts of them where what it asks for lies in several places."""
    waiting = [(tuple(variable(var) for var in loops), loops)]
    made = []
    while waiting:
        indices, own = waiting.pop(0)
        try:
            made.append((make(indices, own), indices, own))
        except LoopSplitRequired as split:
            var, at = find_split(split, own)
            for start, size in ((0, at), (at, var.extent - at)):  # halves share a loop, and with it a pass
                part = LoopVar(f"{var.name}_{size}", size)
                inner = tuple(
                    i if v != var else _moved(i, var, part, start) for i, v in zip(indices, own, strict=True)
                )
                waiting.append((inner, tuple(part if v == var else v for v in own)))
    return made


def find_split(split: LoopSplitRequired, loops: Sequence[LoopVar]) -> tuple[LoopVar, int]:
    """The loop that must be split, and where."""
    if len(split.index.terms) == 1:
        ((var, factor),) = split.index.terms
        if (
            factor == 1
            and isinstance(var, LoopVar)
            and var in loops
            and 0 < split.bound - split.index.constant < var.extent
        ):
            return var, split.bound - split.index.constant
    raise CannotFuse


def _moved(index: IndexExpr, var: LoopVar, part: LoopVar, start: int) -> IndexExpr:
    return index.substitute({var: variable(part) + start})
