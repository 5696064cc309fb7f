"""Builds the CUDA source of a candidate: kernels, launch configurations, temporaries and tunables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cuda.syntax import CudaPrinter
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.stages import Program, StoreStep, Tensor
from kernelpro.authors.playbook.schedule.masked_loads import Predicate


@dataclass(frozen=True)
class TensorMap:
    """A tensor map (TMA descriptor), which the host creates and passes to the kernel."""

    name: str
    """The name of the kernel's argument."""
    tensor: str
    arguments: str
    """The arguments of the prelude's encode_map, except the first."""


@dataclass
class CudaKernel:
    """A kernel and its launch configuration. Sizes are C++ expressions of the tunables."""

    name: str
    body: list[str]
    grid: str
    """The number of thread blocks."""
    threads: str
    """Threads per block."""
    tensors: list[str]
    """Tensors whose pointers are its arguments."""
    written: set[str]
    """Tensors that it writes."""
    shared_bytes: str = "0"
    """Bytes of dynamic shared memory."""
    maps: Sequence[TensorMap] = ()
    """Kernel arguments that precede the pointers."""

    def uses(self, tensor: str) -> bool:
        """Whether a launch needs the tensor's address."""
        return tensor in self.tensors or any(map.tensor == tensor for map in self.maps)


class CudaSourceBuilder:
    """Collects the kernels of a program's stages and everything that they share."""

    def __init__(self, program: Program, math_mode: str, pointers: Mapping[str, str]):
        self.printer = CudaPrinter(math_mode, pointers)
        self.tensors = {tensor.name: tensor for tensor in program.tensors}
        self.tunables: dict[str, tuple[int, Sequence[int]]] = {}
        self.constraints: list[str] = []
        """Conditions that the tunables must satisfy together."""
        self.kernels: list[CudaKernel] = []
        self.temporaries: list[Tensor] = []
        """Temporaries that the kernels need in addition to the program's own."""
        self.vectorized: set[str] = set()
        """Tensors with vectorized accesses, whose addresses must be aligned to 16 bytes."""
        self.written: set[str] = set()
        """Tensors that the current kernel writes."""
        self.load_conditions: dict[Expr, Predicate] = {}
        """Loads of the current stage of which a mask discards some elements, each with the predicate under
        which it is needed."""

    def pointer(self, tensor: str) -> str:
        """The kernel argument that points to a tensor."""
        return self.printer.pointer(tensor)

    def begin_kernel(self) -> None:
        """Start a new kernel: from here on, `written` collects its stores."""
        self.written = set()

    def add_kernel(
        self,
        name: str,
        body: list[str],
        grid: str,
        threads: str,
        shared_bytes: str = "0",
        maps: Sequence[TensorMap] = (),
    ) -> None:
        """Add the kernel. Its arguments are the tensors that the body names."""
        words = set(re.findall(r"\w+", "\n".join(body)))
        tensors = [tensor for tensor in self.tensors if self.pointer(tensor) in words]
        self.kernels.append(CudaKernel(name, body, grid, threads, tensors, self.written, shared_bytes, maps))

    def tunable(self, name: str, value: int, minimum: int, maximum: int) -> str:
        """Declare a compile-time constant; the tuner also tries its half and its double, within the
        limits."""
        neighbours = [near for near in (value // 2, value * 2) if minimum <= near <= maximum]
        self.tunables[name] = (value, sorted({value, *neighbours}))
        return name

    def add_temporary(self, name: str, count: int, dtype: str) -> str:
        """Add a temporary of `count` elements, in the type in which `dtype` is computed; returns its name."""
        dtype = "float32" if dtype in ("float16", "bfloat16") else dtype
        if name not in self.tensors:
            self.tensors[name] = Tensor(name, (count,), dtype, "temporary")
            self.printer.pointers[name] = name
            self.temporaries.append(self.tensors[name])
        return name

    def store_element(self, step: StoreStep, names: Names) -> str:
        """The statement that stores one element."""
        self.written.add(step.tensor)
        stored_dtype = self.tensors[step.tensor].dtype
        index, text = self.printer.index(step.index, names), self.printer.text(step.value, names)
        return self.printer.store(step.tensor, index, stored_dtype, text, step.value.dtype)
