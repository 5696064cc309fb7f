"""What all C++ loop nests share: the kernel's context, and the code for one element."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.codegen.python_module import Tunables
from kernelpro.authors.playbook.cpp.syntax import CppPrinter, accumulator_type, arithmetic_type, combine
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import Loops, iterations
from kernelpro.authors.playbook.ir.stages import Program, ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.passes import RowPass, split_into_passes

_LONG_CHAIN = 512
"""Longer chains of additions or multiplications accumulate in double: in float, a few large values would make
the rounding error visible."""
_OPENMP_OPERATORS = {"sum": "+", "prod": "*", "max": "maximum", "min": "minimum"}


class CppKernel:
    """The context that all stages of a program share."""

    def __init__(self, program: Program, printer: CppPrinter):
        self.printer = printer
        self._dtypes = {tensor.name: tensor.dtype for tensor in program.tensors}
        self.tunables: Tunables = {}
        self.scratch: dict[str, tuple[str, int]] = {}
        """Memory that the kernel needs besides the program's tensors: dtype and size by name."""
        self.multiplies_tiles = False
        """Whether the kernel needs prelude.MULTIPLY_TILE."""

    def tunable(self, name: str, value: int, choices: Sequence[int]) -> str:
        """Declare a tunable constant; returns its name."""
        self.tunables[name] = (value, sorted({value, *choices}))
        return name

    def store(self, step: StoreStep, names: Names) -> str:
        """The statement of a store."""
        index, text = self.printer.index(step.index, names), self.printer.text(step.value, names)
        return self.printer.store(step.tensor, index, self._dtypes[step.tensor], text, step.value.dtype)


class LoopNest(ABC):
    """The code of one stage; `number` is the stage's position in the program."""

    def __init__(self, kernel: CppKernel, stage: Stage, design: StageDesign, number: int):
        self.kernel, self.printer = kernel, kernel.printer
        self.stage, self.design, self.number = stage, design, number
        self.passes = split_into_passes(stage)

    @abstractmethod
    def lines(self) -> list[str]:
        """The code inside the parallel region."""

    def parallel_loop(self, count: int | str, variable: str, body: list[str]) -> list[str]:
        """A loop whose iterations the threads share; a single thread runs it if the design is not
        parallel."""
        totals = "".join(f" reduction({_OPENMP_OPERATORS[t.kind]} : {t.name})" for t in self.stage.totals)
        if not self.design.parallel or count == 1:
            return ["#pragma omp single", *loop(variable, count, body)]
        return [f"#pragma omp for schedule({self.design.schedule}){totals}", *loop(variable, count, body)]

    def add_totals(self, names: Names) -> list[str]:
        """Statements that add the row's contribution to the totals."""
        lines = self.assign((total.value for total in self.stage.totals), names)
        for total in self.stage.totals:
            value = f"{accumulator_type(total.value.dtype)}({self.printer.text(total.value, names)})"
            lines.append(f"{total.name} = {combine(total.kind, total.name, value)};")
        return lines

    def assign(self, roots: Iterable[Expr], names: Names) -> list[str]:
        """Statements that assign the roots to variables; leaves are printed where they are used."""
        return self.printer.statements([root for root in roots if root.op not in LEAVES], names)

    def element(self, row_pass: RowPass, names: Names, suffix: str) -> list[str]:
        """The code of one element of a pass; `suffix` selects the accumulator of a reduction."""
        lines = self.assign((*row_pass.cached, *row_pass.roots), names)
        for node in row_pass.cached:
            lines.append(f"{cache_name(node)}[{flat_index(row_pass.loops)}] = {names[node]};")
        for step in row_pass.steps:
            if isinstance(step, StoreStep):
                lines.append(self.kernel.store(step, names))
            else:
                accumulator = step.name + suffix
                value = combine(step.kind, accumulator, self.reduction_term(step, names))
                lines.append(f"{accumulator} = {value};")
        return lines

    def reduction_term(self, step: ReduceStep, names: Names) -> str:
        """What one element contributes to a reduction."""
        return self.printer.text(step.value, names)

    def advance_scans(self, scans: Iterable[Expr], names: Names, suffix: str) -> list[str]:
        """Statements that add one element to each scan."""
        lines = []
        for scan in scans:
            lines += self.assign(scan.args, names)
            accumulator = f"scan{scan.number}{suffix}"
            value = f"{accumulator_type(scan.dtype)}({self.printer.text(scan.args[0], names)})"
            lines.append(f"{accumulator} = {combine(scan.data[0], accumulator, value)};")
            names[scan] = f"{arithmetic_type(scan.dtype)}({accumulator})"
        return lines


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    """The lines, indented; preprocessor lines stay at the margin."""
    return [line if line.startswith("#") else "    " * depth + line for line in lines]


def loop(variable: str, count: int | str, body: list[str]) -> list[str]:
    """A loop from 0 to `count` - 1."""
    return [f"for (long {variable} = 0; {variable} < {count}; ++{variable}) {{", *indented(body), "}"]


def nest(loops: Loops, body: list[str], simd: bool = False) -> list[str]:
    """Nested loops; `simd` vectorizes the innermost one."""
    for depth, var in enumerate(reversed(loops)):
        body = [*(["#pragma omp simd"] if simd and not depth else []), *loop(var.name, var.extent, body)]
    return body


def cache_name(node: Expr) -> str:
    """The name of the buffer for a value that a pass caches."""
    return f"cached{node.number}"


def flat_index(loops: Loops) -> str:
    """The number of the current iteration of nested loops."""
    text = ""
    for var in loops:
        text = f"({text}) * {var.extent} + {var.name}" if text else var.name
    return text


def unflattened(name: str, loops: Loops) -> list[str]:
    """Definitions of the variables of nested loops, from the iteration's number `name`."""
    lines, stride = [], 1
    for var in reversed(loops):
        lines.append(f"const long {var.name} = {name} / {stride} % {var.extent};")
        stride *= var.extent
    return lines


def partial_type(step: ReduceStep, row_pass: RowPass, lanes: int = 1) -> str:
    """The type of a reduction's partial results, if there are `lanes` of them."""
    ctype = arithmetic_type(step.value.dtype)
    is_long = (
        iterations(row_pass.loops) > _LONG_CHAIN * lanes and step.kind in ("sum", "prod") and not step.guards
    )
    return "double" if ctype == "float" and is_long else ctype
