"""Static facts about a GPU kernel, from its disassembly and the compiler's log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernelpro.records.base import Record

InstructionKind = Literal[
    "fma32",
    "fp64",
    "half",
    "hmma",
    "hgmma",
    "imma",
    "dmma",
    "special",
    "convert",
    "alu",
    "branch",
    "call",
    "slow_path",
    "barrier",
    "mbarrier",
    "membar",
    "shuffle",
    "atomic",
    "shared_atomic",
    "global_load",
    "global_store",
    "shared_load",
    "shared_store",
    "local_load",
    "local_store",
    "async_copy",
    "tma",
    "constant",
    "other",
]
"""Kinds of SASS instructions; lab/profile/sass_opcodes.py assigns opcodes to them."""


@dataclass(frozen=True)
class KernelLoop(Record):
    """A natural loop in the SASS of a kernel."""

    mix: dict[InstructionKind, int] = field(default_factory=dict)
    """Number of instructions by kind."""
    instructions: int = 0
    """Number of instructions."""
    innermost: bool = False
    """Whether it contains no other loop."""
    widths: dict[InstructionKind, dict[str, int]] = field(default_factory=dict)
    """Number of memory accesses by kind and by width in bits."""
    where: str = ""
    """Source line of the backward branch."""
    asks: bool = False
    """Whether the loop only polls memory until another thread changes it."""

    def count(self, *kinds: InstructionKind) -> int:
        """The number of instructions of these kinds."""
        return count(self.mix, *kinds)


@dataclass(frozen=True)
class KernelCode(Record):
    """Static facts about one compiled variant of a kernel."""

    mix: dict[InstructionKind, int] | None = None
    """Number of instructions by kind. None if the kernel was not disassembled: only the compiler's log is
    known then."""
    instructions: int = 0
    """Number of instructions."""
    widths: dict[InstructionKind, dict[str, int]] = field(default_factory=dict)
    """Number of memory accesses by kind and by width in bits."""
    loops: tuple[KernelLoop, ...] = ()
    where: dict[InstructionKind, str] = field(default_factory=dict)
    """By kind of instruction: the source line of the first one in the hot code."""
    registers: int | None = None
    """Registers per thread."""
    stack: int = 0
    """Bytes of local memory per thread."""
    shared: int = 0
    """Static shared memory per block, in bytes."""
    spill_stores: int | None = None
    """Bytes of registers that a thread spills to local memory; None without a compiler log."""
    spill_loads: int | None = None
    """Bytes of spilled registers that a thread loads again; None without a compiler log."""
    warnings: tuple[str, ...] = ()
    """The compiler's warnings about the kernel."""
    symbol: str = ""
    """Mangled name."""
    signature: str = ""
    """Demangled name with its parameters."""
    anchor: str = ""
    """The candidate's source line that defines the kernel."""
    threads: int | None = None
    """Threads per block; this and the fields below are known of Triton kernels only."""
    dynamic_shared: int | None = None
    """Dynamic shared memory per block, in bytes."""
    num_warps: int | None = None
    """Triton's number of warps."""
    num_stages: int | None = None
    """Triton's number of pipeline stages."""

    def count(self, *kinds: InstructionKind) -> int:
        """The number of instructions of these kinds in the whole kernel."""
        return count(self.mix or {}, *kinds)

    @property
    def innermost_loops(self) -> tuple[KernelLoop, ...]:
        """The loops that contain no other loop."""
        return tuple(loop for loop in self.loops if loop.innermost)

    @property
    def spilled_bytes(self) -> int:
        """Bytes of spill stores and loads per thread; 0 without a compiler log."""
        return (self.spill_stores or 0) + (self.spill_loads or 0)


def count(mix: Mapping[InstructionKind, int], *kinds: InstructionKind) -> int:
    """The number of instructions of these kinds in an instruction mix."""
    return sum(mix.get(kind, 0) for kind in kinds)
