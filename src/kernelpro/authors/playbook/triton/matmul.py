"""Matrix products and convolutions in Triton: tiles on tensor cores, with fused prologue and epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import (
    IndexExpr,
    LoopVar,
    constant,
    flat_index,
    iterations,
    unflatten_loops,
    variable,
)
from kernelpro.authors.playbook.ir.stages import Guard, Stage, StoreStep
from kernelpro.authors.playbook.schedule.contractions import (
    Contraction,
    find_contraction,
    name_product_elements,
    name_row_elements,
    reduces_rows_of_tile,
)
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.masked_loads import masked_loads, maximum_over
from kernelpro.authors.playbook.schedule.passes import split_into_passes
from kernelpro.authors.playbook.triton.builder import TritonSourceBuilder, indented
from kernelpro.authors.playbook.triton.syntax import storage_type
from kernelpro.authors.playbook.triton.tile_rows import UNNAMED_OPS, TileRows

_MIN_TILE = 16
"""The smallest side of a tile on tensor cores."""
_MIN_TAP_TERMS = 32
"""A tap needs a multiple of this many terms (channels), so that each tile of terms belongs to one tap."""
_MAX_ROW_ELEMENTS = 128 * 256
"""Elements of the largest tile whose rows are reduced in registers."""
_DTYPES = ("float32", "float16", "bfloat16")


def oriented_contraction(stage: Stage, design: StageDesign) -> tuple[Contraction, bool] | None:
    """The contraction with its columns along the contiguous loop of the results, and whether its operands
    were swapped for that. If Triton cannot prove which axis of a tile is contiguous, neighbouring threads
    access the last one. If the design reads an operand through registers, its strided one is on the left."""
    match = find_contraction(stage)
    if match and design.via_registers and (side := strided_side(stage)):
        return (_swapped(match), True) if side == "right" else (match, False)
    if match is None or not stage.stores or not _stores_results(stage, design):
        return (match, False) if match else None
    widest = max(stage.stores, key=lambda step: iterations(step.loops))
    index = _in_columns(stage, widest)
    loops = [var for var in (*match.rows, *match.columns) if index.coefficient(var)]
    spans_both = not stage.product or stage.product.column in loops
    if not loops or not spans_both or min(loops, key=index.coefficient) not in match.rows:
        return match, False
    return _swapped(match), True


def _keeps_rows(stage: Stage, design: StageDesign) -> bool:
    """Whether tiles have all columns, and reductions over them follow in registers."""
    return design.whole_rows and reduces_rows_of_tile(stage)


def _stores_results(stage: Stage, design: StageDesign) -> bool:
    """Whether the kernel of a product also executes the stage's steps."""
    if stage.product is None or _keeps_rows(stage, design):
        return True
    return name_product_elements(stage, variable(stage.product.column), "")[1]


def _in_columns(stage: Stage, store: StoreStep) -> IndexExpr:
    """The index of a store, with the columns of the product instead of the store's own loops."""
    column = stage.product.column if stage.product and store.loops else None
    return store.index.substitute(unflatten_loops(store.loops, variable(column))) if column else store.index


def _swapped(match: Contraction) -> Contraction:
    return replace(match, left=match.right, right=match.left, rows=match.columns, columns=match.rows)


def strided_side(stage: Stage) -> str:
    """Which operand of a product of float32, left or right, is contiguous across the sum instead of along it;
    empty if none is. Tensor cores want TF32 operands along the sum in shared memory, so Triton would
    transpose it 4 bytes at a time; from registers they take the left operand in any order."""
    match = find_contraction(stage)
    if match is None:
        return ""
    for name, value, side in (("left", match.left, match.rows), ("right", match.right, match.columns)):
        if value.op != "load" or value.dtype != "float32":
            continue
        index = value.data[1]
        if index.coefficient(match.depth[-1]) != 1 and any(index.coefficient(var) == 1 for var in side):
            return name
    return ""


def _scalar_taps(match: Contraction) -> LoopVar | None:
    """The loop over a convolution's taps (kernel elements), if every tile of terms belongs to one tap. Bounds
    are then checked once for each pixel instead of once for each term. None if tiles span several taps."""
    if len(match.depth) < 2 or match.depth[-1].extent % _MIN_TAP_TERMS:
        return None
    return LoopVar("tap", iterations(match.depth[:-1]))


def interleaved_phase(stage: Stage, design: StageDesign) -> LoopVar | None:
    """The loop over the two phases of a transposed convolution whose results alternate in memory: a tile that
    has both stores them next to each other. None if there is none."""
    oriented = oriented_contraction(stage, design)
    if oriented is None or not oriented[0].columns or not _stores_results(stage, design):
        return None
    match, last = oriented[0], oriented[0].columns[-1]

    def alternates(phase: LoopVar) -> bool:
        indices = [_in_columns(stage, store) for store in stage.stores]
        steps = [(index.coefficient(phase), index.coefficient(last)) for index in indices]
        return phase.extent == 2 and bool(steps) and all(step == (1, 2) for step in steps)

    return next(filter(alternates, match.batch), None)


class TritonMatmul:
    """The kernel of one matrix product. Steps that need only one element of it at a time form the epilogue;
    so do steps that reduce its rows, if tiles have all columns."""

    def __init__(
        self, builder: TritonSourceBuilder, stage: Stage, design: StageDesign, number: int, precision: str
    ):
        self._builder, self._printer = builder, builder.printer
        self._stage, self._design, self._number, self._precision = stage, design, number, precision
        self._via_registers = design.via_registers and bool(strided_side(stage))
        self._whole_rows = _keeps_rows(stage, design)
        oriented = oriented_contraction(stage, design)
        assert oriented, "the caller checks that the stage is a contraction"
        match, self._is_swapped = oriented
        if match.left.dtype not in _DTYPES:
            raise NoProposal(f"the playbook has no Triton matrix product of {match.left.dtype}")
        if match.right_guards:
            raise NoProposal("the playbook has no Triton matrix product whose right operand has guards")
        self._contraction, self._depth = match, iterations(match.depth)
        self._taps = _scalar_taps(match)
        interleaves = design.interleave and not self._via_registers
        self._phase = interleaved_phase(stage, design) if interleaves else None
        self._pair = LoopVar("pair", 2 * match.columns[-1].extent if self._phase else 0)
        """The last loop of columns and the phase, as one loop."""
        self._batches = tuple(var for var in match.batch if var != self._phase)
        self._batch = LoopVar("batch", iterations(self._batches))
        self._row = LoopVar("rows", iterations(match.rows))
        self._column = LoopVar("cols", iterations(match.columns))
        self._across, self._along = self._row, self._column
        """The axes of the stage's rows, and of the product's columns."""
        if self._is_swapped and stage.product:
            self._across, self._along = self._along, self._across
        self._printer.load_conditions = masked_loads(stage.expressions)
        self._design = self._fit_shared_memory(design)

    def write(self) -> Stage | None:
        """Add the kernel. If the stage's steps do not fit into the epilogue, returns them as a stage."""
        if self._whole_rows:
            self._write(name_row_elements(self._stage, "acc"), fused=True)
            return None
        names, fused = name_product_elements(self._stage, variable(self._along), "acc")
        if fused:
            self._write(names, fused)
            return None
        assert self._stage.product
        name = self._stage.product.name
        count = self._batch.extent * self._row.extent * self._column.extent
        self._builder.add_scratch(name, str(count), "float32")
        self._printer.products[name] = (flat_index(self._stage.outer), self._along.extent)
        self._write(names, fused)
        return replace(self._stage, product=None)

    # --- the kernel -------------------------------------------------------------------------------

    def _write(self, names: Mapping[Expr, str], fused: bool) -> None:
        number, builder, printer, design = self._number, self._builder, self._printer, self._design
        rows, columns = self._row.extent, self._column.extent
        constants = {
            "TILE_M": self._side_tunable("TILE_M", design.tile_m, self._row),
            "TILE_N": self._side_tunable("TILE_N", design.tile_n, self._column),
            "TILE_K": self._tile_tunable("TILE_K", design.tile_k, *self._tile_depths()),
            "GROUP": builder.tunable(f"GROUP{number}", 8, (4, 8, 16)),
        }
        stages = builder.tunable(f"PIPELINE_STAGES{number}", design.pipeline_stages, (2, 3, 4))
        builder.tune_threads(number, design.threads)
        elements = f"(TILE_M{number} + TILE_N{number}) * TILE_K{number} * PIPELINE_STAGES{number}"
        elements = f"2 * {elements}" if self._phase else elements
        builder.derived_constants.append(
            f"# tune-if: {elements} * {2 if self._is_16_bit else 4} <= {self._stage.max_shared_bytes}"
        )
        self._masks = {
            axis: f"{axis.name}_mask"
            for axis, tile in self._tile_axes()
            if any(axis.extent % size for size in builder.tunables[f"{tile}{number}"][1])
        }
        body = self._tile_position()
        for axis in (self._row, self._column):
            body += self._declare_mask(axis)
        visible = self._visible_tile() if fused else ""
        end = f"tl.where({visible}, {self._depth}, 0)" if visible else str(self._depth)
        accumulators = ["acc0", "acc1"] if self._phase else ["acc"]
        body += [f"{acc} = tl.zeros([TILE_M, TILE_N], tl.float32)" for acc in accumulators]
        body += [f"for first_k in range(0, {end}, TILE_K):"]
        lines = [f"tap = first_k // {self._depth // self._taps.extent}"] if self._taps else []
        for phase, acc in enumerate(accumulators):
            lines += [*self._load_operand("a", phase), *self._load_operand("b", phase)]
            left = "a + 0.0" if self._via_registers else "a"  # what is computed comes from registers
            lines += [
                f"{acc} = tl.dot({left}, b, {acc}{self._precision_argument()})",
                *self._finish_product(),
            ]
        body += indented(lines)
        printer.loop_indices = self._output_indices()
        printer.masks = self._masks_of(self._row, self._column)
        body += self._interleave() if self._phase else []
        body += self._epilogue(dict(names)) if fused else [self._store_product()]
        tiles = f"-(-{rows} // {constants['TILE_M']}) * -(-{columns} // {constants['TILE_N']})"
        grid = f"{self._batch.extent} * ({tiles})" if self._batch.extent > 1 else tiles
        warps = f"THREADS{number} // 32"
        builder.add_kernel(f"product{number}", body, constants, grid, num_warps=warps, num_stages=stages)

    @property
    def _is_16_bit(self) -> bool:
        return self._contraction.left.dtype != "float32"

    def _fit_shared_memory(self, design: StageDesign) -> StageDesign:
        """The design with fewer pipeline stages and then smaller tiles, until they fit."""
        size = (2 if self._is_16_bit else 4) * (2 if self._phase else 1)
        whole = max(power_of_two(self._along.extent), _MIN_TILE) if self._whole_rows else 0
        while True:
            sides = whole + design.tile_m if whole else design.tile_m + design.tile_n
            if sides * design.tile_k * design.pipeline_stages * size <= self._stage.max_shared_bytes:
                return design
            if design.pipeline_stages > 2:
                design = replace(design, pipeline_stages=design.pipeline_stages - 1)
            elif max(design.tile_m, design.tile_n) > 64 and not whole:
                wider = "tile_n" if design.tile_n >= design.tile_m else "tile_m"
                design = replace(design, **{wider: getattr(design, wider) // 2})
            elif design.tile_k > _MIN_TILE:
                design = replace(design, tile_k=design.tile_k // 2)
            else:
                return design

    def _side_tunable(self, name: str, size: int, axis: LoopVar) -> str:
        """Declare the rows or the columns of a tile as a tunable. Whole rows determine one of them, and limit
        the other one."""
        sizes: tuple[int, ...] = (64, 128, 256)
        if self._whole_rows:
            width = max(power_of_two(self._along.extent), _MIN_TILE)
            sizes = tuple(side for side in (32, *sizes) if side * width <= _MAX_ROW_ELEMENTS)
            size, sizes = (width, ()) if axis == self._along else (size, sizes)
        return self._tile_tunable(name, size, axis.extent, sizes)

    def _tile_tunable(self, name: str, size: int, extent: int, values: tuple[int, ...]) -> str:
        """Declare a side of the tile as a tunable, limited to what the product needs."""
        maximum = max(power_of_two(extent), _MIN_TILE)
        size = max(min(size, maximum), _MIN_TILE)
        return self._builder.tunable(f"{name}{self._number}", size, [v for v in values if v <= maximum])

    def _tile_depths(self) -> tuple[int, tuple[int, ...]]:
        """The maximum depth of a tile, and the depths to try. With scalar taps, a tile belongs to one tap."""
        sizes = (32, 64, 128) if self._is_16_bit else (16, 32, 64)
        if not self._taps:
            return self._depth, sizes
        terms = self._depth // self._taps.extent
        common = terms & -terms
        return common, tuple(size for size in sizes if size <= common)

    def _tile_axes(self) -> list[tuple[LoopVar, str]]:
        depth = [(LoopVar(name, self._terms), "TILE_K") for name in ("a_k", "b_k")]
        return [(self._row, "TILE_M"), (self._column, "TILE_N"), *depth]

    @property
    def _terms(self) -> int:
        """The number of terms that a tile's depth axis indexes: those of one tap if taps are scalars."""
        return self._depth // self._taps.extent if self._taps else self._depth

    def _masks_of(self, *axes: LoopVar) -> dict[LoopVar, str]:
        return {axis: self._masks[axis] for axis in axes if axis in self._masks}

    def _declare_mask(self, axis: LoopVar) -> list[str]:
        return [f"{self._masks[axis]} = {axis.name} < {axis.extent}"] if axis in self._masks else []

    def _tile_position(self) -> list[str]:
        """The position of the program's tile. Concurrent programs take tiles that share rows and columns, so
        that these stay in the L2 cache."""
        lines = [
            f"tile = {self._builder.program_id()}",
            f"tiles_m = ({self._row.extent} + TILE_M - 1) // TILE_M",
            f"tiles_n = ({self._column.extent} + TILE_N - 1) // TILE_N",
        ]
        if self._batch.extent > 1 and self._interleaves_batches:
            lines += [f"batch = tile % {self._batch.extent}", f"tile = tile // {self._batch.extent}"]
        elif self._batch.extent > 1:
            lines += ["batch = tile // (tiles_m * tiles_n)", "tile = tile % (tiles_m * tiles_n)"]
        return [
            *lines,
            "group = tile // (GROUP * tiles_n) * GROUP",
            "group_rows = tl.minimum(tiles_m - group, GROUP)",
            "first_row = (group + tile % (GROUP * tiles_n) % group_rows) * TILE_M",
            "first_col = tile % (GROUP * tiles_n) // group_rows * TILE_N",
            "rows = first_row + tl.arange(0, TILE_M)[:, None]",
            "cols = first_col + tl.arange(0, TILE_N)[None, :]",
        ]

    @property
    def _interleaves_batches(self) -> bool:
        """Whether neighbouring elements of the result belong to different batches: their tiles should then
        run at the same time."""
        return any(store.index.coefficient(var) == 1 for store in self._stage.stores for var in self._batches)

    def _output_indices(self, phase: int = 0) -> dict[LoopVar, IndexExpr]:
        contraction = self._contraction
        return {
            **unflatten_loops(self._batches, variable(self._batch)),
            **unflatten_loops(contraction.rows, variable(self._row)),
            **unflatten_loops(contraction.columns, variable(self._column)),
            **({self._phase: constant(phase)} if self._phase else {}),
        }

    def _interleave(self) -> list[str]:
        """Joins the tiles of both phases, whose columns alternate."""
        assert self._phase
        *loops, last = self._contraction.columns
        wide = LoopVar("cols", 2 * self._column.extent)
        indices = unflatten_loops([*loops, self._pair], variable(wide))
        both = indices[self._pair]
        self._printer.loop_indices |= indices | {last: both // 2, self._phase: both % 2}
        lines = [
            "acc = tl.reshape(tl.join(acc0, acc1), [TILE_M, 2 * TILE_N])",
            "cols = 2 * first_col + tl.arange(0, 2 * TILE_N)[None, :]",
        ]
        if self._column in self._masks:
            self._masks[wide] = self._masks.pop(self._column)
            self._printer.masks = self._masks_of(self._row, wide)
        return lines + self._declare_mask(wide)

    def _joined(self, index: IndexExpr) -> IndexExpr:
        """The index with one loop over the positions and phases of a transposed convolution."""
        last = self._contraction.columns[-1]
        factor = index.coefficient(self._phase) if self._phase else 0
        if not self._phase or not factor or index.coefficient(last) != 2 * factor:
            return index
        alone = index - variable(last) * (2 * factor) - variable(self._phase) * factor
        return alone + variable(self._pair) * factor

    def _visible_tile(self) -> str:
        """The condition under which a tile has a result that no mask discards (as torch.triu does); empty if
        the tile must always be computed."""
        if not self._stage.product or self._stage.reductions:
            return ""
        masked = masked_loads([step.value for step in self._stage.stores], "product")
        bounds = {bound for predicate in masked.values() for bound in predicate}
        loops = {var: variable(self._along) for step in self._stage.stores for var in step.loops}
        if len(masked) != 1 or any(len(step.loops) != 1 for step in self._stage.stores):
            return ""
        conditions = []
        sides = (self._row, "first_row", "TILE_M"), (self._column, "first_col", "TILE_N")
        for bound in sorted(bounds, key=str):
            index = bound.substitute(self._output_indices()).substitute(loops)
            for axis, first, tile in sides:
                start = variable(LoopVar(first, axis.extent))
                last = variable(LoopVar(f"({first} + {tile} - 1)", axis.extent))
                largest = maximum_over(index, axis, start, last)
                if largest is None:
                    return ""
                index = largest
            self._printer.loop_indices = {}
            conditions.append(f"({self._printer.index(index)} >= 0)")
        return " & ".join(conditions)

    def _load_operand(self, name: str, phase: int = 0) -> list[str]:
        contraction, printer, left = self._contraction, self._printer, name == "a"
        value, side = (contraction.left, self._row) if left else (contraction.right, self._column)
        depth = LoopVar(f"{name}_k", self._terms)
        printer.loop_indices = self._output_indices(phase) | self._depth_indices(depth)
        printer.masks = self._masks_of(side, depth)
        # a remainder instead of the difference hides the alignment from Triton 3.6: it copies 4 bytes, not 16
        first = f"(first_k - tap * {self._terms})" if self._taps else "first_k"
        lines = [f"{depth.name} = {first} + tl.arange(0, TILE_K){'[None, :]' if left else '[:, None]'}"]
        lines += self._declare_mask(depth)
        names: Names = {}
        is_guarded = left is not self._is_swapped
        conditions = printer.guard_conditions(contraction.guards) if is_guarded else []
        if value.op == "load" and conditions:
            return [*lines, f"{name} = {printer.guarded_load(value, names, conditions)}"]
        if value.op == "load":
            return [*lines, f"{name} = {printer.raw_load(value, names)}"]
        lines += printer.statements([value], names)
        text = printer.text(value, names)
        conditions += [self._masks[depth]] if depth in self._masks else []
        text = f"tl.where({' & '.join(conditions)}, {text}, 0.0)" if conditions else text
        return [
            *lines,
            f"{name} = ({text}).to({storage_type(value.dtype)})" if self._is_16_bit else f"{name} = {text}",
        ]

    def _depth_indices(self, depth: LoopVar) -> dict[LoopVar, IndexExpr]:
        loops = self._contraction.depth
        if not self._taps:
            return unflatten_loops(loops, variable(depth))
        return unflatten_loops(loops[:-1], variable(self._taps)) | {loops[-1]: variable(depth)}

    def _finish_product(self) -> list[str]:
        """Wait for the tensor cores if their left operand lies in registers: Triton 3.6 computes that of the
        next iteration while they may still read it: results were wrong in 3 of 4 measurements on an H200."""
        in_registers = self._via_registers or self._contraction.left.op != "load"
        if not in_registers or (self._precision == "fp32" and not self._is_16_bit):
            return []
        self._printer.functions.add("finish_product")
        return ["finish_product(first_k)"]

    def _precision_argument(self) -> str:
        if self._is_16_bit:
            return ""
        return f', input_precision="{"ieee" if self._precision == "fp32" else "tf32"}"'

    def _epilogue(self, names: dict[Expr, str]) -> list[str]:
        printer, lines = self._printer, list[str]()
        for step in self._stage.steps if self._whole_rows else self._stage.stores:
            printer.loop_indices.update(unflatten_loops(step.loops, variable(self._along)))
        if self._whole_rows:
            along = 0 if self._along == self._row else 1
            rows, length = TileRows(printer, along), ("TILE_M", "TILE_N")[along]
            for row_pass in split_into_passes(self._stage):
                lines += rows.statements(row_pass, names, self._along, length, self._store)
            return lines
        for step in self._stage.stores:
            lines += printer.statements(
                [step.value] if step.value.op not in (*UNNAMED_OPS, "product") else [], names
            )
            lines.append(self._store(step, names))
        return lines

    def _store(self, step: StoreStep, names: Names) -> str:
        """The statement that stores a tile."""
        text = self._printer.text(step.value, names)
        guards = [Guard(self._joined(guard.index), guard.size) for guard in step.guards]
        return self._printer.store(step.tensor, self._joined(step.index), text, names, guards)

    def _store_product(self) -> str:
        """Statement that stores the tile for the kernels that follow."""
        assert self._stage.product
        columns = self._along.extent
        batch = f"batch * {self._row.extent * self._column.extent} + " if self._batch.extent > 1 else ""
        mask = " & ".join(self._printer.masks.values())
        index = f"{batch}{self._across.name} * {columns} + {self._along.name}"
        return self._printer.store_to(self._stage.product.name, index, "acc", mask)
