"""Fusion: puts the values of a graph into as few stages as possible.

1. graph/lowering.py turns every operator into a value that can give the expression of any one element. Views,
   broadcasts and element-wise operators need no stage: their expressions are fused into their consumers.
2. Each StageValue, which needs loops of its own, is placed in the order of the graph:
   - A reduction joins an earlier stage if both have the same rows and use the same data. So a norm and the
     softmax after it, with all element-wise operators between them, form one stage.
   - A reduction over the rows of a stage becomes a total of that stage.
   - Any other reduction, scan, matrix product or library call begins a new stage.
   - A materialized value is stored like an output (3).
3. Each output is stored by the stage that computes what it depends on, or by a stage of its own.
4. A value that a later stage needs from an earlier one is stored as a temporary, for a reduction one number
   per row.
5. loop_simplification.py merges and splits the loops of each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from math import prod
from typing import Literal

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.fusion.loop_simplification import simplify_loops
from kernelpro.authors.playbook.fusion.stage_builder import (
    CannotFuse,
    CannotSplit,
    FusionAttempt,
    StageBuilder,
    build_with_loop_splits,
    find_split,
)
from kernelpro.authors.playbook.graph.library import LibraryForm
from kernelpro.authors.playbook.graph.lowering import lower
from kernelpro.authors.playbook.graph.values import (
    ConvolutionProduct,
    Indices,
    InputValue,
    LibraryResult,
    LoopSplitRequired,
    Materialized,
    Matmul,
    PhasedReduction,
    Reduction,
    Scan,
    Shape,
    StageValue,
    Value,
)
from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder, nodes_of
from kernelpro.authors.playbook.ir.indices import Loops, LoopVar, constant, flatten, unflatten, variable
from kernelpro.authors.playbook.ir.stages import (
    Guard,
    LibraryCall,
    MatrixProduct,
    Program,
    ReduceStep,
    StoreStep,
    Tensor,
    Total,
)
from kernelpro.records import Graph


def fuse(graph: Graph, form: LibraryForm = "own") -> Program:
    """The graph as a program; `form` says which operators torch computes. Raises NoProposal, with the
    operator's name, for an unsupported operator."""
    stored: frozenset[str] = frozenset()
    while True:
        try:
            return _Fuser(graph, form, stored).program()
        except (LoopSplitRequired, CannotSplit) as error:
            if not error.node or error.node in stored:
                raise NoProposal(
                    "the playbook cannot split a loop that reads concatenated tensors in another order"
                ) from None
            # On a second failure, store all concatenations: otherwise each of them may need a retry.
            stored |= _concatenating_nodes(graph) | {error.node} if stored else {error.node}


def _concatenating_nodes(graph: Graph) -> frozenset[str]:
    return frozenset(node.name for node in graph.nodes if node.op.split(".")[1:2] in (["cat"], ["stack"]))


class _Fuser:
    def __init__(self, graph: Graph, form: LibraryForm, stored: frozenset[str]):
        self._graph, self._values, self._builder = graph, lower(graph, form, stored), ExprBuilder()
        self._library: list[tuple[LibraryResult, int]] = []
        """Library calls, each with its position among the stages."""
        self._stages: list[StageBuilder] = []
        self._stage_of: dict[StageValue, StageBuilder] = {}
        self._temporaries: dict[StageValue, Tensor] = {}
        self._name_count = 0

    def program(self) -> Program:
        """Place all stage values, store the outputs and simplify the loops."""
        graph = self._graph
        outputs = [self._output(name) for name in graph.outputs]
        for stage_value in _stage_values(outputs):
            self._place(stage_value)
        arguments = [
            Tensor(node.name, node.shape, node.dtype, node.op, node.where)  # type: ignore[arg-type]
            for node in graph.nodes
            if node.op in ("input", "parameter")
        ]
        results = [Tensor(f"out{i}", value.shape, value.dtype, "output") for i, value in enumerate(outputs)]
        for i, (tensor, value) in enumerate(zip(results, outputs, strict=True)):
            if isinstance(value, LibraryResult):
                results[i] = self._temporary(value)
            else:
                self._store(value, tensor)
        builders = [stage for stage in self._stages if stage.steps or stage.totals]
        calls = tuple(self._library_call(value, position, builders) for value, position in self._library)
        stages = tuple(simplify_loops(stage.stage(), self._builder) for stage in builders)
        stored = {step.tensor for stage in stages for step in (*stage.stores, *stage.epilogue)}
        stored |= {call.tensor for call in calls}
        names = tuple(tensor.name for tensor in results)
        temporaries = [t for t in self._temporaries.values() if t.name in stored and t.name not in names]
        return Program((*arguments, *results, *temporaries), stages, names, graph.single, calls)

    def _library_call(self, value: LibraryResult, position: int, builders: list[StageBuilder]) -> LibraryCall:
        names = [
            source.name if isinstance(source, InputValue) else self._temporary(source).name
            for source in value.sources
            if isinstance(source, (InputValue, StageValue))
        ]
        before = sum(stage.position < position for stage in builders)
        text = value.text.format(*(f"{{{name}}}" for name in names))
        return LibraryCall(value.op, self._temporary(value).name, text, before)

    def _output(self, name: str) -> Value:
        value = self._values[name]
        assert isinstance(value, Value)
        return value

    # --- placing stage values -------------------------------------------------------------------------------

    def _place(self, value: StageValue) -> None:
        if isinstance(value, ConvolutionProduct):
            self._place_convolution_product(value)
        elif isinstance(value, PhasedReduction):
            self._place_phased(value)
        elif isinstance(value, Reduction):
            self._place_reduction(value)
        elif isinstance(value, Scan):
            self._place_scan(value)
        elif isinstance(value, Matmul):
            self._place_matmul(value)
        elif isinstance(value, LibraryResult):
            stage = self._stage_of[value] = self._new_stage(())
            stage.is_library = True
            self._library.append((value, stage.position))
        else:
            self._stage_of[value] = self._store(value.sources[0], self._temporary(value))

    def _place_phased(self, value: PhasedReduction) -> None:
        stage = self._new_stage(value.loops)
        placed = [self._stage_of[other] for other in value.siblings if other in self._stage_of]
        stage.phases = placed[0].phases if placed else []
        stage.phases.append(stage)
        outer = tuple(variable(var) for var in stage.outer)
        positions = value.positions(outer)
        stage.reordered = positions, value.shape
        stage.store_guards = _beyond(positions, value.shape)
        stage.domains.append((value.shape, positions, ()))
        loops, attempt = stage.loops_over(value.inner), self._attempt(stage)
        inner, name = tuple(variable(var) for var in loops), self._new_name("r")
        expr = value.body(outer, inner, attempt)
        self._accept(attempt)
        stage.steps.append(ReduceStep(name, value.kind, expr, loops, value.guards(outer, inner)))
        stage.results[value] = self._builder.make("row", dtype=value.dtype, data=name)
        self._stage_of[value] = stage

    def _place_reduction(self, value: Reduction) -> None:
        for stage in self._own_stages():
            if stage.reordered and not stage.product:
                continue
            if stage.rows == prod(value.shape) and self._try(self._add_reduction, stage, value):
                return
            over_rows = prod(value.shape) == 1 and stage.rows == prod(value.inner)
            if over_rows and not stage.reordered and self._try(self._add_total, stage, value):
                return
        self._add_reduction(self._new_stage(value.shape), value, fresh=True)

    def _try(
        self, add: Callable[[StageBuilder, Reduction], bool], stage: StageBuilder, value: Reduction
    ) -> bool:
        try:
            return add(stage, value)
        except (CannotFuse, LoopSplitRequired):
            return False

    def _add_reduction(self, stage: StageBuilder, value: Reduction, fresh: bool = False) -> bool:
        """Add a reduction over the inner loops. It joins an existing stage only if both use the same data.
        Returns whether it was added."""
        outer = stage.row_indices(value.shape)
        attempt = self._attempt(stage)
        loops = stage.loops_over(value.inner)
        parts = build_with_loop_splits(loops, lambda inner, _: value.body(outer, inner, attempt))
        if not (fresh or attempt.used_values or (value.domain and value.domain in stage.reduced_domains)):
            return False
        self._accept(attempt)
        results = []
        for expr, inner, part_loops in parts:
            name = self._new_name("r")
            stage.steps.append(ReduceStep(name, value.kind, expr, part_loops, value.guards(outer, inner)))
            results.append(self._builder.make("row", dtype=value.dtype, data=name))
        combine = {"sum": "add", "prod": "mul"}.get(value.kind, value.kind)
        stage.results[value] = reduce(lambda a, b: self._builder.make(combine, a, b), results)
        self._stage_of[value] = stage
        if value.domain:
            stage.reduced_domains.add(value.domain)
            shape, dims = value.domain
            rest, inner_indices = iter(outer), iter(variable(var) for var in loops)
            indices = tuple(next(inner_indices) if d in dims else next(rest) for d in range(len(shape)))
            stage.domains.append((shape, indices, loops))
        return True

    def _add_total(self, stage: StageBuilder, value: Reduction) -> bool:
        """Add a reduction over the rows of a stage. Returns whether it was added."""
        attempt = self._attempt(stage)
        outer = (constant(0),) * len(value.shape)
        expr = value.body(outer, unflatten(stage.row, value.inner), attempt)
        if not attempt.used_values and value.domain not in stage.reduced_domains and not stage.totals:
            return False
        self._accept(attempt)
        name = self._new_name("t")
        stage.totals.append(Total(name, value.kind, expr))
        stage.results[value] = self._builder.make("total", dtype=value.dtype, data=name)
        self._stage_of[value] = stage
        return True

    def _place_scan(self, value: Scan) -> None:
        others = (*value.shape[: value.dim], *value.shape[value.dim + 1 :])
        stage = self._new_stage(others)
        outer = unflatten(stage.row, others)
        loops = stage.loops_over((value.shape[value.dim],))
        indices = (*outer[: value.dim], variable(loops[0]), *outer[value.dim :])
        stage.domains.append((value.shape, indices, loops))
        self._stage_of[value] = stage
        attempt = self._attempt(stage, loops)
        attempt.element(value.sources[0], indices)
        self._accept(attempt)

    def _place_matmul(self, value: Matmul) -> None:
        left, right = value.sources
        stage = self._new_stage(value.shape[:-1])
        outer = tuple(variable(var) for var in stage.outer)
        (column,), depth = stage.loops_over((value.shape[-1],)), LoopVar("k", left.shape[-1])
        attempt = self._attempt(stage)
        a = attempt.element(left, (*outer, variable(depth)))
        b = attempt.element(right, (*outer[:-1], variable(depth), variable(column)))
        self._accept(attempt)
        stage.product = MatrixProduct(self._new_name("p"), a, b, column, (depth,), stage.outer[:-1])
        stage.domains.append((value.shape, (*outer, variable(column)), (column,)))
        self._stage_of[value] = stage

    def _place_convolution_product(self, value: ConvolutionProduct) -> None:
        phases, dim = value.phase_count, value.column_dim
        channels = value.phase_count + dim
        stage = self._new_stage((*value.loops[:channels], *value.loops[channels + 1 :]))
        (column,) = stage.loops_over((value.loops[channels],))
        depth = tuple(LoopVar(f"k{d}", size) for d, size in enumerate(value.inner))
        rows, inner = [variable(var) for var in stage.outer], tuple(variable(var) for var in depth)
        outer = (*rows[:channels], variable(column), *rows[channels:])
        positions, attempt = value.positions(outer), self._attempt(stage)
        left, right = value.body(outer, inner, attempt).args
        self._accept(attempt)
        guards, batch = value.guards(outer, inner), stage.outer[:phases]
        stage.product = MatrixProduct(self._new_name("p"), left, right, column, depth, batch, guards)
        stage.domains.append((value.shape, positions, (column,)))
        if phases:
            others = (*positions[:dim], *positions[dim + 1 :])
            sizes = (*value.shape[:dim], *value.shape[dim + 1 :])
            stage.reordered = others, sizes
            stage.store_guards = _beyond(others, sizes)
        self._stage_of[value] = stage

    # --- storing --------------------------------------------------------------------------------------------

    def _store(self, value: Value, tensor: Tensor) -> StageBuilder:
        """Store a value in the stage that computes what it depends on, else in a stage that iterates over its
        shape, else in a stage of its own."""
        for needs_dependency in (True, False):
            for stage in self._own_stages():
                if needs_dependency and self._store_in_epilogue(stage, value, tensor):
                    return stage
                for indices, loops in stage.mappings(value.shape):
                    if self._store_in_stage(stage, value, tensor, indices, loops, needs_dependency):
                        return self._store_other_phases(stage, value, tensor)
        return self._store_alone(value, tensor, tuple((0, size) for size in value.shape))

    def _store_other_phases(self, stage: StageBuilder, value: Value, tensor: Tensor) -> StageBuilder:
        """Store the rest of a value of which `stage` stores one phase. Returns the last stage that stores."""
        for other in stage.phases:
            ((_, indices, loops),) = other.domains
            if other is not stage and not self._store_in_stage(other, value, tensor, indices, loops, True):
                raise NoProposal("the playbook cannot store all phases of a transposed convolution alike")
        return stage.phases[-1] if stage.phases else stage

    def _store_in_epilogue(self, stage: StageBuilder, value: Value, tensor: Tensor) -> bool:
        if not stage.totals or prod(value.shape) != 1:
            return False
        attempt = self._attempt(stage)
        attempt.in_epilogue = True
        try:
            expr = attempt.element(value, (constant(0),) * len(value.shape))
        except (CannotFuse, LoopSplitRequired):
            return False
        if not attempt.used_values:
            return False
        self._accept(attempt)
        stage.epilogue.append(StoreStep(tensor.name, constant(0), expr, ()))
        return True

    def _store_in_stage(
        self,
        stage: StageBuilder,
        value: Value,
        tensor: Tensor,
        indices: Indices,
        loops: Loops,
        needs_dependency: bool,
    ) -> bool:
        attempts: list[FusionAttempt] = []

        def at(inner: Indices) -> Indices:
            return tuple(index.substitute(dict(zip(loops, inner, strict=True))) for index in indices)

        def build(inner: Indices, part_loops: Loops) -> Expr:
            attempts.append(self._attempt(stage, part_loops))
            return attempts[-1].element(value, at(inner))

        try:
            parts = build_with_loop_splits(loops, build)
        except (CannotFuse, LoopSplitRequired):
            return False
        same_shape = bool(loops) and any(value.shape == shape for shape, _, _ in stage.domains)
        uses_stage = any(attempt.used_values for attempt in attempts)
        if not (uses_stage if needs_dependency else same_shape):
            return False
        for attempt in attempts:
            self._accept(attempt)
        for expr, inner, part_loops in parts:
            index = flatten(at(inner), value.shape)
            stage.steps.append(StoreStep(tensor.name, index, expr, part_loops, stage.store_guards))
        return True

    def _store_alone(
        self,
        value: Value,
        tensor: Tensor,
        region: tuple[tuple[int, int], ...],
        neighbor: StageBuilder | None = None,
    ) -> StageBuilder:
        """Store a region of a tensor (start and size in each dimension) in a stage of its own.

        If the region must be split, each part is stored by itself. A part shares the stage of the part before
        it, `neighbor`, if both have the same size and read a common tensor.
        """
        sizes = tuple(size for _, size in region)
        stage = self._new_stage(sizes[:-1])
        inner = stage.loops_over(sizes[-1:])
        loops = (*stage.outer, *inner)
        indices = tuple(variable(var) + start for var, (start, _) in zip(loops, region, strict=True))
        attempt = self._attempt(stage, inner)
        try:
            expr = attempt.element(value, indices)
        except LoopSplitRequired as split:
            self._stages.remove(stage)
            return self._store_halves(value, tensor, region, neighbor, split, loops)
        self._accept(attempt)
        if neighbor and _can_share(neighbor, stage.outer, inner, expr):
            self._stages.remove(stage)
            stage = neighbor
        if sizes == value.shape:
            stage.domains.append((value.shape, indices, inner))
        stage.steps.append(StoreStep(tensor.name, flatten(indices, value.shape), expr, inner))
        return stage

    def _store_halves(
        self,
        value: Value,
        tensor: Tensor,
        region: tuple[tuple[int, int], ...],
        neighbor: StageBuilder | None,
        split: LoopSplitRequired,
        loops: Loops,
    ) -> StageBuilder:
        var, bound = find_split(split, loops)
        dim = loops.index(var)
        start, size = region[dim]
        for half in ((start, bound), (start + bound, size - bound)):
            neighbor = self._store_alone(value, tensor, (*region[:dim], half, *region[dim + 1 :]), neighbor)
        assert neighbor
        return neighbor

    def _own_stages(self) -> list[StageBuilder]:
        """The stages that are not library calls, the latest first."""
        return [stage for stage in reversed(self._stages) if not stage.is_library]

    def _new_stage(self, shape: Shape) -> StageBuilder:
        outer = tuple(LoopVar(f"o{d}", size) for d, size in enumerate(shape))
        stage = StageBuilder(len(self._stages), outer, self._builder)
        self._stages.append(stage)
        return stage

    def _attempt(self, stage: StageBuilder, loops: Loops = ()) -> FusionAttempt:
        return FusionAttempt(
            stage, self._stage_of.__getitem__, lambda value: self._temporary(value).name, loops
        )

    # --- temporaries ----------------------------------------------------------------------------------------

    def _temporary(self, value: StageValue) -> Tensor:
        """The temporary for a value. It becomes part of the program only if a stage or call stores it."""
        if value not in self._temporaries:
            role: Literal["library", "temporary"] = (
                "library" if isinstance(value, LibraryResult) else "temporary"
            )
            self._temporaries[value] = Tensor(self._new_name("tmp"), value.shape, value.dtype, role)
        return self._temporaries[value]

    def _accept(self, attempt: FusionAttempt) -> None:
        """Make earlier stages store the temporaries that a successful attempt requires."""
        for value in attempt.required_temporaries:
            if isinstance(value, (Materialized, LibraryResult)):
                continue
            stage, name = self._stage_of[value], self._temporary(value).name
            if any(isinstance(s, StoreStep) and s.tensor == name for s in (*stage.steps, *stage.epilogue)):
                continue
            if value in stage.results and stage.results[value].op == "total":
                stage.epilogue.append(StoreStep(name, constant(0), stage.results[value], ()))
            elif value in stage.results:
                result = StoreStep(name, stage.row, stage.results[value], (), stage.store_guards)
                stage.steps.append(result)
            else:
                shape, indices, loops = stage.domains[0]
                expr = self._attempt(stage, loops).element(value, indices)
                index = flatten(indices, shape)
                stage.steps.append(StoreStep(name, index, expr, loops, stage.store_guards))

    def _new_name(self, prefix: str) -> str:
        self._name_count += 1
        return f"{prefix}{self._name_count}"


def _beyond(positions: Indices, shape: Shape) -> tuple[Guard, ...]:
    """The guards that skip positions beyond a result."""
    sizes = zip(positions, shape, strict=True)
    return tuple(Guard(index, size) for index, size in sizes if index.bounds[1] >= size)


def _can_share(stage: StageBuilder, outer: Loops, inner: Loops, value: Expr) -> bool:
    """Whether a store can join a stage: both have the same loops and read a common tensor."""
    first = stage.steps[0]
    same_loops = (stage.outer, first.loops) == (outer, inner)
    return same_loops and not _loaded_tensors(value).isdisjoint(_loaded_tensors(first.value))


def _loaded_tensors(value: Expr) -> set[str]:
    return {node.data[0] for node in nodes_of([value], "load")}


def _stage_values(outputs: list[Value]) -> Iterator[StageValue]:
    """The stage values that the outputs depend on, in topological order."""
    visited: set[int] = set()
    stack: list[tuple[Value, bool]] = [(value, False) for value in reversed(outputs)]
    while stack:
        value, sources_done = stack.pop()
        if sources_done:
            if isinstance(value, StageValue):
                yield value
        elif id(value) not in visited:
            visited.add(id(value))
            stack.append((value, True))
            stack += [(source, False) for source in reversed(value.sources)]
