"""Reading a graph: operators become values, values are gathered into as few stages as can be.

1. Every operator becomes a value that knows how to compute one element (values.py and the files of handlers). Views,
   broadcasts and element-wise operators need no stage: they vanish into whoever asks for them.
2. Anchors, which need loops of their own, are placed in the order of the graph. A reduction joins an earlier stage where
   its rows are that stage's rows and everything it needs is at hand there: a norm and the softmax behind it, with all
   element-wise steps between, are one stage. A sum of what rows have made becomes a total. Else it begins a new stage.
3. Outputs are stored by the stage that has what they are made of, or by one of their own.
4. What a later stage needs of an earlier one is stored as a temporary: the least, a number a row where that will do.
5. Loops that can be one loop are made one (settling.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce as fold
from math import prod

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.fusion.loop_simplification import simplify_loops
from kernelpro.authors.playbook.fusion.stage_builder import (
    CannotFuse,
    FusionAttempt,
    Loops,
    StageBuilder,
    build_with_loop_splits,
    find_split,
)
from kernelpro.authors.playbook.graph.lowering import lower
from kernelpro.authors.playbook.graph.values import (
    Indices,
    LoopSplitRequired,
    Materialized,
    Matmul,
    Reduction,
    Scan,
    StageValue,
    Value,
)
from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder
from kernelpro.authors.playbook.ir.indices import LoopVar, constant, flatten, unflatten, variable
from kernelpro.authors.playbook.ir.stages import MatrixProduct, Program, ReduceStep, StoreStep, Tensor, Total
from kernelpro.records import Graph


def fuse(graph: Graph) -> Program:
    """The graph as a program; raises NoIdea that names the operator for which there is no family."""
    return _Fuser(graph).program()


class _Fuser:
    def __init__(self, graph: Graph):
        self._graph, self._values, self._pool = graph, lower(graph), ExprBuilder()
        self._drafts: list[StageBuilder] = []
        self._home: dict[StageValue, StageBuilder] = {}
        self._temporaries: dict[StageValue, Tensor] = {}
        self._names = 0

    def program(self) -> Program:
        graph = self._graph
        outputs = [self._output(name) for name in graph.outputs]
        for anchor in _anchors(outputs):
            self._place(anchor)
        tensors = [
            Tensor(n.name, n.shape, n.dtype, n.op, n.where)
            for n in graph.nodes
            if n.op in ("input", "parameter")
        ]  # type: ignore[arg-type]
        stored = [Tensor(f"out{i}", value.shape, value.dtype, "output") for i, value in enumerate(outputs)]
        for tensor, value in zip(stored, outputs, strict=True):
            self._store(value, tensor)
        stages = tuple(simplify_loops(draft) for draft in self._drafts if draft.steps or draft.totals)
        taken = {
            step.tensor
            for stage in stages
            for step in (*stage.steps, *stage.epilogue)
            if isinstance(step, StoreStep)
        }
        temporaries = [tensor for tensor in self._temporaries.values() if tensor.name in taken]
        return Program((*tensors, *stored, *temporaries), stages, tuple(t.name for t in stored), graph.single)

    def _output(self, name: str) -> Value:
        value = self._values[name]
        assert isinstance(value, Value)
        return value

    # --- placing anchors ---------------------------------------------------------------------------------------

    def _place(self, anchor: StageValue) -> None:
        if isinstance(anchor, Reduction):
            self._place_reduction(anchor)
        elif isinstance(anchor, Scan):
            self._place_scan(anchor)
        elif isinstance(anchor, Matmul):
            self._place_matmul(anchor)
        else:
            self._home[anchor] = self._store(anchor.sources[0], self._temporary(anchor))

    def _place_reduction(self, anchor: Reduction) -> None:
        for draft in reversed(self._drafts):
            if draft.rows == prod(anchor.shape) and self._try(draft, lambda d: self._reduce(d, anchor)):
                return
            if (
                prod(anchor.shape) == 1
                and draft.rows == prod(anchor.inner)
                and self._try(draft, lambda d: self._total(d, anchor))
            ):
                return
        draft = self._begin(anchor.shape)
        self._reduce(draft, anchor, fresh=True)

    def _try(self, draft: StageBuilder, join: object) -> bool:
        try:
            return bool(join(draft))  # type: ignore[operator]
        except (CannotFuse, LoopSplitRequired):
            return False

    def _reduce(self, draft: StageBuilder, anchor: Reduction, fresh: bool = False) -> bool:
        outer = unflatten(draft.row, anchor.shape)
        attempt = self._attempt(draft)
        parts = build_with_loop_splits(
            draft.loops_over(anchor.inner), lambda inner, loops: anchor.body(outer, inner, attempt)
        )
        if not (fresh or attempt.used_values or (anchor.domain and anchor.domain in draft.signatures)):
            return False
        self._accept(attempt)
        results = []
        for value, inner, loops in parts:
            name = self._name("r")
            draft.steps.append(ReduceStep(name, anchor.kind, value, loops, anchor.guards(outer, inner)))
            results.append(self._pool.make("row", dtype=anchor.dtype, data=name))
        draft.results[anchor] = fold(lambda a, b: self._combined(anchor.kind, a, b), results)
        self._home[anchor] = draft
        if anchor.domain:
            draft.signatures.add(anchor.domain)
            self._add_domain(draft, anchor, outer)
        return True

    def _combined(self, kind: str, a: Expr, b: Expr) -> Expr:
        return self._pool.make({"sum": "add", "prod": "mul"}.get(kind, kind), a, b)

    def _add_domain(self, draft: StageBuilder, anchor: Reduction, outer: Indices) -> None:
        assert anchor.domain
        shape, dims = anchor.domain
        loops = draft.loops_over(anchor.inner)
        rest, inner = iter(outer), iter(variable(var) for var in loops)
        draft.domains.append(
            (shape, tuple(next(inner) if d in dims else next(rest) for d in range(len(shape))), loops)
        )

    def _total(self, draft: StageBuilder, anchor: Reduction) -> bool:
        attempt = self._attempt(draft)
        value = anchor.body((constant(0),) * len(anchor.shape), unflatten(draft.row, anchor.inner), attempt)
        if not attempt.used_values and anchor.domain not in draft.signatures and not draft.totals:
            return False
        self._accept(attempt)
        name = self._name("t")
        draft.totals.append(Total(name, anchor.kind, value))
        draft.results[anchor] = self._pool.make("total", dtype=anchor.dtype, data=name)
        self._home[anchor] = draft
        return True

    def _place_scan(self, anchor: Scan) -> None:
        others = (*anchor.shape[: anchor.dim], *anchor.shape[anchor.dim + 1 :])
        draft = self._begin(others)
        outer = unflatten(draft.row, others)
        loops = draft.loops_over((anchor.shape[anchor.dim],))
        indices = (*outer[: anchor.dim], variable(loops[0]), *outer[anchor.dim :])
        draft.domains.append((anchor.shape, indices, loops))
        self._home[anchor] = draft
        attempt = self._attempt(draft, loops)
        attempt.element(anchor.sources[0], indices)
        self._accept(attempt)

    def _place_matmul(self, anchor: Matmul) -> None:
        left, right = anchor.sources
        draft = self._begin(anchor.shape[:-1])
        outer = tuple(variable(var) for var in draft.outer)
        column, depth = draft.loops_over((anchor.shape[-1],))[0], LoopVar("k", left.shape[-1])
        attempt = self._attempt(draft)
        a = attempt.element(left, (*outer, variable(depth)))
        b = attempt.element(right, (*outer[:-1], variable(depth), variable(column)))
        self._accept(attempt)
        draft.product = MatrixProduct(self._name("p"), a, b, column, depth, draft.outer[:-1])
        draft.domains.append((anchor.shape, (*outer, variable(column)), (column,)))
        self._home[anchor] = draft

    # --- storing -----------------------------------------------------------------------------------------------

    def _store(self, value: Value, tensor: Tensor) -> StageBuilder:
        """Beside what it is made of; else where something of its shape is stored."""
        for made_there in (True, False):
            for draft in reversed(self._drafts):
                if made_there and self._store_after(draft, value, tensor):
                    return draft
                for indices, loops in draft.mappings(value.shape):
                    if self._store_along(draft, value, tensor, indices, loops, made_there):
                        return draft
        return self._store_alone(value, tensor, tuple((0, size) for size in value.shape))

    def _store_after(self, draft: StageBuilder, value: Value, tensor: Tensor) -> bool:
        if not draft.totals or prod(value.shape) != 1:
            return False
        attempt = self._attempt(draft)
        attempt.in_epilogue = True
        try:
            found = attempt.element(value, (constant(0),) * len(value.shape))
        except (CannotFuse, LoopSplitRequired):
            return False
        if not attempt.used_values:
            return False
        self._accept(attempt)
        draft.epilogue.append(StoreStep(tensor.name, constant(0), found, ()))
        return True

    def _store_along(
        self,
        draft: StageBuilder,
        value: Value,
        tensor: Tensor,
        indices: Indices,
        loops: Loops,
        made_there: bool,
    ) -> bool:
        used: list[FusionAttempt] = []

        def make(inner: Indices, own: Loops) -> Expr:
            new = dict(zip(loops, inner, strict=True))
            used.append(self._attempt(draft, own))
            return used[-1].element(value, tuple(i.substitute(new) for i in indices))

        try:
            parts = build_with_loop_splits(loops, make)
        except (CannotFuse, LoopSplitRequired):
            return False
        if made_there and not any(attempt.used_values for attempt in used):
            return False
        if not made_there and not (loops and any(value.shape == shape for shape, _, _ in draft.domains)):
            return False
        for attempt in used:
            self._accept(attempt)
        for found, inner, own in parts:
            new = dict(zip(loops, inner, strict=True))
            place = flatten([i.substitute(new) for i in indices], value.shape)
            draft.steps.append(StoreStep(tensor.name, place, found, own))
        return True

    def _store_alone(
        self,
        value: Value,
        tensor: Tensor,
        region: tuple[tuple[int, int], ...],
        beside: StageBuilder | None = None,
    ) -> StageBuilder:
        """A stage of its own for a region of the tensor (start and size of each dimension); several where it must be split, but
        regions of one size that are made of the same tensors share one (`beside`: the stage of the region before).
        """
        sizes = tuple(size for _, size in region)
        draft = self._begin(sizes[:-1])
        loops = draft.loops_over(sizes[-1:])
        own = (*draft.outer, *loops)
        indices = tuple(variable(var) + start for var, (start, _) in zip(own, region, strict=True))
        attempt = self._attempt(draft, loops)
        try:
            found = attempt.element(value, indices)
        except LoopSplitRequired as split:
            self._drafts.remove(draft)
            try:
                var, at = find_split(split, own)
            except CannotFuse:
                raise NoProposal(
                    "parts that are joined are read in an order the playbook cannot follow"
                ) from None
            dim, (start, size) = own.index(var), region[own.index(var)]
            for part in ((start, at), (start + at, size - at)):
                beside = self._store_alone(value, tensor, (*region[:dim], part, *region[dim + 1 :]), beside)
            assert beside
            return beside
        self._accept(attempt)
        alike = beside and (beside.outer, beside.steps[0].loops) == (draft.outer, loops)
        if beside and alike and _read(found) & _read(beside.steps[0].value):
            self._drafts.remove(draft)
            draft = beside
        if sizes == value.shape:
            draft.domains.append((value.shape, indices, loops))
        draft.steps.append(StoreStep(tensor.name, flatten(indices, value.shape), found, loops))
        return draft

    def _begin(self, shape: tuple[int, ...]) -> StageBuilder:
        draft = StageBuilder(
            len(self._drafts),
            tuple(LoopVar(f"o{place}", size) for place, size in enumerate(shape)),
            self._pool,
        )
        self._drafts.append(draft)
        return draft

    def _attempt(self, draft: StageBuilder, loops: Loops = ()) -> FusionAttempt:
        return FusionAttempt(
            draft, self._home.__getitem__, lambda anchor: self._temporary(anchor).name, loops
        )

    # --- what later stages need --------------------------------------------------------------------------------

    def _temporary(self, anchor: StageValue) -> Tensor:
        """Its name is known when it is first asked for; it is stored, and counts, when somebody takes it."""
        if anchor not in self._temporaries:
            self._temporaries[anchor] = Tensor(self._name("tmp"), anchor.shape, anchor.dtype, "temporary")
        return self._temporaries[anchor]

    def _accept(self, attempt: FusionAttempt) -> None:
        for anchor in attempt.required_temporaries:
            if isinstance(anchor, Materialized):
                continue
            home, name = self._home[anchor], self._temporary(anchor).name
            if any(isinstance(s, StoreStep) and s.tensor == name for s in (*home.steps, *home.epilogue)):
                continue
            if anchor in home.results and home.results[anchor].op == "total":
                home.epilogue.append(StoreStep(name, constant(0), home.results[anchor], ()))
            elif anchor in home.results:
                home.steps.append(StoreStep(name, home.row, home.results[anchor], ()))
            else:
                shape, indices, loops = home.domains[0]
                found = self._attempt(home, loops).element(anchor, indices)
                home.steps.append(StoreStep(name, flatten(indices, shape), found, loops))

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"


def _read(value: Expr) -> set[str]:
    """The tensors that it is made of."""
    return {node.data[0] for node in value.walk() if node.op == "load"}


def _anchors(outputs: list[Value]) -> Iterator[StageValue]:
    """Those that the outputs need, each after what it is made of."""
    done: set[int] = set()
    waiting: list[tuple[Value, bool]] = [(value, False) for value in reversed(outputs)]
    while waiting:
        value, ready = waiting.pop()
        if ready:
            if isinstance(value, StageValue):
                yield value
        elif id(value) not in done:
            done.add(id(value))
            waiting.append((value, True))
            waiting += [(source, False) for source in reversed(value.sources)]
