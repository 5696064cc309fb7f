"""Stages in Triton: what all kinds of tiles share, and the flat one.

A tile's sides are variables of its own; the stage's loops are expressed in them (TritonPrinter.places).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from kernelpro.authors.playbook.codegen import python_module as frame
from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.masked_loads import masked_loads
from kernelpro.authors.playbook.schedule.passes import RowPass, loop_invariants, split_into_passes, scans_of
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, unflatten, variable
from kernelpro.authors.playbook.ir.stages import Guard, Program, ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.triton.syntax import (
    TritonPrinter,
    initial_value,
    combine,
    accumulator_dtype,
    identity,
    scratch_dtype,
)

_MAX_TOTAL_PROGRAMS = 1024
"""Programs that make a total: enough to fill a GPU, few enough for one program to add up."""
_TILE_SIDES = (16, 32, 64, 128)
_MAX_UNROLLED = 64
"""Windows of up to so many elements, those of all passes together, are written out; 240 took Triton 100 s to compile."""
UNNAMED_OPS = ("const", "row", "total")


class TritonSourceBuilder:
    """The kernels of one candidate and the lines that launch them."""

    def __init__(self, program: Program, math_mode: str):
        self.program, self.printer = program, TritonPrinter(program, math_mode)
        self.tunables: dict[str, tuple[int, Sequence[int]]] = {}
        self.sources: list[str] = []
        self.launches: list[str] = []
        self.derived_constants: list[str] = []
        """Constants that follow from what is tuned."""
        self._int64_indices = any(tensor.size >= 2**31 for tensor in program.tensors)

    def tunable(self, name: str, value: int, values: Iterable[int]) -> str:
        """A constant of the candidate that may be searched."""
        self.tunables[name] = (value, sorted({value, *values}))
        return name

    def add_threads_tunable(self, place: int, threads: int) -> Sequence[int]:
        """How many a program has; the values to try."""
        self.tunable(
            f"THREADS{place}", threads, [t for t in (threads // 2, threads, threads * 2) if 32 <= t <= 1024]
        )
        return self.tunables[f"THREADS{place}"][1]

    def add_vector_tunable(self, place: int, vector: int) -> Sequence[int]:
        """Elements that each of them has at once; the values to try."""
        self.tunable(f"VECTOR_WIDTH{place}", vector, [v for v in (vector // 2, vector, vector * 2) if 1 <= v <= 32])
        return self.tunables[f"VECTOR_WIDTH{place}"][1]

    def add_scratch(self, name: str, count: str, dtype: str) -> None:
        """Memory between two kernels."""
        device = frame.argument_name(self.program.tensors[0])
        self.launches.append(f"{name} = torch.empty({count}, dtype=torch.{dtype}, device={device}.device)")

    def program_id(self) -> str:
        return "tl.program_id(0).to(tl.int64)" if self._int64_indices else "tl.program_id(0)"

    def add_kernel(
        self, name: str, body: Sequence[str], constants: Mapping[str, str], grid: str, **options: str
    ) -> None:
        """A kernel whose body was just printed, and its launch: the tensors that the body names become its arguments."""
        pointers = list(self.printer.pointers)
        self.printer.pointers.clear()
        arguments = ", ".join([*pointers, *(f"{key}: tl.constexpr" for key in constants)])
        self.sources.append("\n".join(["@triton.jit", f"def {name}({arguments}):", *indented(body), ""]))
        given = ", ".join(
            [*pointers, *constants.values(), *(f"{key}={value}" for key, value in options.items())]
        )
        self.launches.append(f"{name}[({grid},)]({given})")


class StageKernel(ABC):
    """One stage, whose rows lie along one side of its tile: `rows`."""

    row_shape: str
    """Of a number that each row has."""

    def __init__(self, kernels: TritonSourceBuilder, stage: Stage, how: StageDesign, place: int):
        self.builder, self.printer, self.stage, self.design, self.number = (
            kernels,
            kernels.printer,
            stage,
            how,
            place,
        )
        self.row = LoopVar("rows", stage.rows)
        self.printer.loop_indices = dict(
            zip(stage.outer, unflatten(variable(self.row), [v.extent for v in stage.outer]), strict=True)
        )
        self.printer.masks = {}
        self.printer.load_conditions = masked_loads(stage.expressions)

    @abstractmethod
    def write(self) -> None:
        """Adds the stage's kernels."""

    def mask_rows(self, tile: Iterable[int]) -> list[str]:
        """The row's mask, unless all sizes of the tile divide the rows."""
        if all(self.row.extent % size == 0 for size in tile):
            return []
        self.printer.masks[self.row] = "rows_in"
        return [f"rows_in = rows < {self.row.extent}"]

    def emit_store(self, step: StoreStep, names: Names) -> str:
        return self.printer.store(step.tensor, step.index, self.printer.text(step.value, names), names)

    def emit_row_steps(self, one: RowPass, names: Names) -> list[str]:
        """Steps that have one element a row."""
        lines = self.printer.statements([s.value for s in one.steps if s.value.op not in UNNAMED_OPS], names)
        for step in one.steps:
            text = self.printer.text(step.value, names)
            lines.append(self.emit_store(step, names) if isinstance(step, StoreStep) else f"{step.name} = {text}")
        return lines

    def guard_conditions(self, guards: tuple[Guard, ...]) -> list[str]:
        """Conditions under which an element counts."""
        parts = []
        for guard in guards:
            text, (low, high) = self.printer.index(guard.index), guard.index.bounds
            parts += [f"({text} >= 0)"] if low < 0 else []
            parts += [f"({text} < {guard.size})"] if high >= guard.size else []
        return parts

    # --- totals ------------------------------------------------------------------------------------------------

    def accumulate_totals(self, names: Names, extra: str = "") -> list[str]:
        """Each program's part of the totals, in variables of their names."""
        lines = self.printer.statements([t.value for t in self.stage.totals if t.value.op not in UNNAMED_OPS], names)
        mask = " & ".join(part for part in (self.printer.masks.get(self.row, ""), extra) if part)
        for total in self.stage.totals:
            text = self.printer.text(total.value, names)
            text = (
                f"tl.where({mask}, {text}, {identity(total.kind, accumulator_dtype(total.kind, total.value))})"
                if mask
                else text
            )
            lines.append(f"{total.name} = {combine(total.kind, total.name, text)}")
        return lines

    def start_totals(self) -> list[str]:
        return [f"{t.name} = {initial_value(t.kind, accumulator_dtype(t.kind, t.value), self.row_shape)}" for t in self.stage.totals]

    def store_totals(self) -> list[str]:
        lines = []
        for total in self.stage.totals:
            self.printer.pointers[f"all_{total.name}"] = None
            text = (
                total.name
                if self.row_shape == "[]"
                else self.printer.reduce(total.kind, total.name, total.value.dtype)
            )
            lines.append(f"tl.store(all_{total.name} + tl.program_id(0), {text})")
        return lines

    def loop_over_blocks(self, blocks: str, body: list[str]) -> tuple[list[str], str]:
        """The body for the rows that one program has, and how many programs there are; `block` numbers the tile.

        A program that makes totals has several tiles. Whether there is one in the last turn is a question for the program,
        not for its elements: a mask that is one number for a whole tile is more than Triton's interpreter takes.
        """
        number = self.builder.program_id()
        if not self.stage.totals:
            return [f"block = {number}", *body], blocks
        turn = [f"block = {number} + turn * PROGRAMS", "if block < BLOCKS:", *indented(body)]
        loop = ["for turn in range(0, (BLOCKS + PROGRAMS - 1) // PROGRAMS):", *indented(turn)]
        return [*self.start_totals(), *loop, *self.store_totals()], f"min({blocks}, {_MAX_TOTAL_PROGRAMS})"

    def launch(
        self, name: str, body: list[str], constants: Mapping[str, str], blocks: str, grid: str
    ) -> None:
        if self.stage.totals:
            constants = {**constants, "BLOCKS": blocks, "PROGRAMS": grid}
        for total in self.stage.totals:
            self.builder.add_scratch(f"all_{total.name}", grid, scratch_dtype(total.kind, total.value))
        self.builder.add_kernel(name, body, constants, grid, num_warps=f"THREADS{self.number} // 32")

    def write_totals(self, count: str) -> None:
        """The kernel that joins what `count` programs have made."""
        if not self.stage.totals:
            return
        lines = ["places = tl.arange(0, BLOCK)"]
        for total in self.stage.totals:
            dtype = accumulator_dtype(total.kind, total.value)
            zero = identity(total.kind, dtype)
            self.printer.pointers[f"all_{total.name}"] = None
            lines += [f"{total.name} = {initial_value(total.kind, dtype, '[BLOCK]')}"]
            load = f"tl.load(all_{total.name} + start + places, mask=start + places < COUNT, other={zero})"
            lines += ["for start in range(0, COUNT, BLOCK):"]
            lines += indented([f"{total.name} = {combine(total.kind, total.name, load)}"])
            lines += [f"{total.name} = {self.printer.reduce(total.kind, total.name, total.value.dtype)}"]
        names: Names = {}
        self.printer.masks = {}
        lines += self.emit_row_steps(RowPass((), list(self.stage.epilogue)), names)
        self.builder.add_kernel(
            f"stage{self.number}_totals", lines, {"COUNT": count, "BLOCK": "1024"}, "1", num_warps="4"
        )


class RowPerLane(StageKernel):
    """A number of neighbouring rows in one dimension; each does its loops by itself, element after element."""

    shape = "[BLOCK]"

    def write(self) -> None:
        threads, vectors = (
            self.builder.add_threads_tunable(self.number, self.design.threads),
            self.builder.add_vector_tunable(self.number, self.design.vector_width),
        )
        block = f"BLOCK{self.number}"
        self.builder.derived_constants.append(f"{block} = THREADS{self.number} * VECTOR_WIDTH{self.number}")
        body = [
            "rows = block * BLOCK + tl.arange(0, BLOCK)",
            *self.mask_rows(t * v for t in threads for v in vectors),
        ]
        names: Names = {}
        made = split_into_passes(self.stage)
        turns = sum(prod(var.extent for var in one.loops) for one in made if one.loops)
        over = "tl.static_range" if turns <= _MAX_UNROLLED else "range"
        for one in made:
            body += self._emit_pass(one, names, over) if one.loops else self.emit_row_steps(one, names)
        body += self.accumulate_totals(names)
        blocks = f"-(-{self.stage.rows} // {block})"
        body, grid = self.loop_over_blocks(blocks, body)
        self.launch(f"stage{self.number}", body, {"BLOCK": block}, blocks, grid)
        self.write_totals(grid)

    def _emit_pass(self, one: RowPass, names: Names, over: str) -> list[str]:
        self.printer.loop_indices.update({var: variable(var) for var in one.loops})
        roots = [step.value for step in one.steps]
        lines = self.printer.statements(loop_invariants(roots, set(one.loops), names), names)
        running = scans_of(roots)
        starts = [(s.name, s.kind, accumulator_dtype(s.kind, s.value)) for s in one.steps if isinstance(s, ReduceStep)]
        starts += [(f"s{scan.number}", scan.data[0], scan.dtype) for scan in running]
        lines += [f"{name} = {initial_value(kind, dtype, '[BLOCK]')}" for name, kind, dtype in starts]
        own, body = dict(names), list[str]()
        for scan in running:
            body += self.printer.statements([arg for arg in scan.args if arg.op not in UNNAMED_OPS], own)
            own[scan] = f"s{scan.number}"
            body += [
                f"{own[scan]} = {combine(scan.data[0], own[scan], self.printer.text(scan.args[0], own))}"
            ]
        inside = self.guard_conditions(one.guards)
        body += [f"inside = {' & '.join(inside)}"] if inside else []
        body += self.printer.statements([root for root in roots if root.op not in UNNAMED_OPS], own)
        for step in one.steps:
            if isinstance(step, StoreStep):
                body.append(self.emit_store(step, own))
                continue
            text = self.printer.text(step.value, own)
            text = (
                f"tl.where(inside, {text}, {identity(step.kind, accumulator_dtype(step.kind, step.value))})"
                if inside
                else text
            )
            body.append(f"{step.name} = {combine(step.kind, step.name, text)}")
        for var in reversed(one.loops):
            body = [f"for {var.name} in {over}({var.extent}):", *indented(body)]
        return lines + body


class TransposeTile(StageKernel):
    """Element-wise, where what is read and what is written run along different loops: squares, both ways coalesced."""

    shape = ""

    def __init__(self, kernels: TritonSourceBuilder, stage: Stage, how: StageDesign, place: int, across: tuple[LoopVar, LoopVar]):
        super().__init__(kernels, stage, how, place)
        self._loops = across

    def write(self) -> None:
        loops = (*self.stage.outer, *self.stage.steps[0].loops)
        others = [var for var in loops if var not in self._loops]
        lead = LoopVar("lead", prod(var.extent for var in others))
        self.printer.loop_indices = dict(
            zip(others, unflatten(variable(lead), [v.extent for v in others]), strict=True)
        )
        self.printer.masks = {}
        size = self.builder.tunable(f"COARSENING{self.number}", self.design.coarsening, _TILE_SIDES)
        body, counts = [], []
        for var, name, shape in zip(self._loops, ("down", "over"), ("[:, None]", "[None, :]"), strict=True):
            flat = LoopVar(name, var.extent)
            self.printer.loop_indices[var] = variable(flat)
            count = f"-(-{var.extent} // {size})"
            body += [f"{name} = block % ({count.replace(size, 'SIDE')}) * SIDE + tl.arange(0, SIDE){shape}"]
            body += [f"block = block // ({count.replace(size, 'SIDE')})"]
            counts.append(f"({count})")
            if any(var.extent % side for side in self.builder.tunables[size][1]):
                self.printer.masks[flat] = f"{name}_in"
                body += [f"{name}_in = {name} < {var.extent}"]
        body = [f"block = {self.builder.program_id()}", *body, "lead = block"]
        body += self.emit_row_steps(RowPass((), [*self.stage.steps]), {})
        self.builder.add_threads_tunable(self.number, self.design.threads)
        grid = " * ".join([str(lead.extent), *counts])
        self.builder.add_kernel(
            f"stage{self.number}", body, {"SIDE": size}, grid, num_warps=f"THREADS{self.number} // 32"
        )


def indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def find_transpose(stage: Stage) -> tuple[LoopVar, LoopVar] | None:
    """Loops that neighbours in memory run along: of what is read, and of what is written; None where they are the same."""
    writes = {_contiguous_loop(step.index, stage, step.loops) for step in stage.steps if isinstance(step, StoreStep)}
    reads: set[LoopVar | None] = set()
    for step in stage.steps:
        for node in step.value.walk():
            if node.op == "load" and len(node.variables) > 1:
                reads.add(_contiguous_loop(node.data[1], stage, step.loops))
    if len(writes) != 1:
        return None
    (write,) = writes
    read = next((var for var in reads if var is not None and var != write), None)
    if write is None or read is None or min(read.extent, write.extent) < 16:
        return None
    return read, write


def _contiguous_loop(index: IndexExpr, stage: Stage, loops: tuple[LoopVar, ...]) -> LoopVar | None:
    return next((var for var in (*stage.outer, *loops) if index.coefficient(var) == 1), None)


def is_elementwise(stage: Stage) -> bool:
    """Nothing but stores along the same loops."""
    same = len({step.loops for step in stage.steps}) == 1 and all(
        isinstance(step, StoreStep) for step in stage.steps
    )
    return (
        same and not stage.totals and not stage.product and not scans_of([step.value for step in stage.steps])
    )


def regroup_rows(stage: Stage, rows: int) -> Stage:
    """An element-wise stage whose first `rows` loops are its rows, and the others those along a row."""
    loops = (*stage.outer, *stage.steps[0].loops)
    steps = tuple(
        StoreStep(s.tensor, s.index, s.value, loops[rows:]) for s in stage.steps if isinstance(s, StoreStep)
    )
    return Stage(loops[:rows], steps)


def broadcast_rows(stage: Stage) -> int:
    """Of an element-wise stage, how many leading loops are best taken for rows: so many that something read is the same
    along the others, which are long. 0: none."""
    loops = (*stage.outer, *stage.steps[0].loops)
    nodes: list[Expr] = [node for step in stage.steps for node in step.value.walk() if node.op == "load"]
    for rows in range(1, len(loops)):
        rest = set(loops[rows:])
        if prod(var.extent for var in rest) >= 256 and any(
            not node.variables & rest and node.variables for node in nodes
        ):
            return rows
    return 0
