"""Builds the Triton source of a candidate: kernels, launches, scratch memory and tunables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kernelpro.authors.playbook.codegen import python_module
from kernelpro.authors.playbook.ir.stages import Program
from kernelpro.authors.playbook.triton.syntax import TritonPrinter


class TritonSourceBuilder:
    """Collects the kernels of a candidate and the lines that launch them."""

    def __init__(self, program: Program, math_mode: str):
        self.program, self.printer = program, TritonPrinter(program, math_mode)
        self.tunables: dict[str, tuple[int, Sequence[int]]] = {}
        self.sources: list[str] = []
        self.launches: list[str] = []
        self.derived_constants: list[str] = []
        """Lines for constants that depend on tunables, and for constraints on tunables."""
        self._int64_indices = any(tensor.size >= 2**31 for tensor in program.tensors)

    def tunable(self, name: str, value: int, values: Iterable[int]) -> str:
        """Declare a tunable and the values that the tuner tries; returns its name."""
        self.tunables[name] = (value, sorted({value, *values}))
        return name

    def tune_threads(self, number: int, threads: int) -> Sequence[int]:
        """Declare the threads per program of a stage as a tunable; returns the values to try."""
        values = [t for t in (threads // 2, threads, threads * 2) if 32 <= t <= 1024]
        return self.tunables[self.tunable(f"THREADS{number}", threads, values)][1]

    def tune_vector_width(self, number: int, vector: int) -> Sequence[int]:
        """Declare the elements that a thread loads at a time as a tunable; returns the values to try."""
        values = [v for v in (vector // 2, vector, vector * 2) if 1 <= v <= 32]
        return self.tunables[self.tunable(f"VECTOR_WIDTH{number}", vector, values)][1]

    def add_scratch(self, name: str, count: str, dtype: str) -> None:
        """Allocate memory that one kernel writes and a later one reads."""
        device = python_module.argument_name(self.program.tensors[0])
        self.launches.append(f"{name} = torch.empty({count}, dtype=torch.{dtype}, device={device}.device)")

    def program_id(self) -> str:
        """The expression for the program id, in 64 bits if a tensor has 2^31 elements or more."""
        return "tl.program_id(0).to(tl.int64)" if self._int64_indices else "tl.program_id(0)"

    def add_kernel(
        self, name: str, body: Sequence[str], constants: Mapping[str, str], grid: str, **options: str
    ) -> None:
        """Add a kernel and its launch. Its arguments are the pointers printed since the last kernel."""
        pointers = list(self.printer.pointers)
        self.printer.pointers.clear()
        parameters = ", ".join([*pointers, *(f"{key}: tl.constexpr" for key in constants)])
        self.sources.append("\n".join(["@triton.jit", f"def {name}({parameters}):", *indented(body), ""]))
        keywords = [f"{key}={value}" for key, value in options.items()]
        arguments = ", ".join([*pointers, *constants.values(), *keywords])
        self.launches.append(f"{name}[({grid},)]({arguments})")


def indented(lines: Iterable[str]) -> list[str]:
    """The lines one level deeper."""
    return [f"    {line}" for line in lines]
