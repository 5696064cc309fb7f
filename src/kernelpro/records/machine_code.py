"""Static facts of a GPU kernel, from its disassembly and the compiler's log."""

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
    """Instructions by kind."""
    instructions: int = 0
    innermost: bool = False
    widths: dict[InstructionKind, dict[str, int]] = field(default_factory=dict)
    """Memory accesses by kind and by width in bits."""
    where: str = ""
    """Source line of the backward branch."""
    asks: bool = False
    """The loop polls memory until another thread changes it, and does nothing else."""

    def count(self, *kinds: InstructionKind) -> int:
        """Instructions of these kinds."""
        return count(self.mix, *kinds)


@dataclass(frozen=True)
class KernelCode(Record):
    """Static facts of one variant of a kernel."""

    mix: dict[InstructionKind, int] | None = None
    """Instructions by kind; None where the kernel was not disassembled and only the compiler's log is
    known."""
    instructions: int = 0
    widths: dict[InstructionKind, dict[str, int]] = field(default_factory=dict)
    """Memory accesses by kind and by width in bits."""
    loops: tuple[KernelLoop, ...] = ()
    where: dict[InstructionKind, str] = field(default_factory=dict)
    """By kind of instruction, the source line of its first one in the hot code."""
    registers: int | None = None
    stack: int = 0
    """Bytes of local memory per thread."""
    shared: int = 0
    """Static shared memory, in bytes."""
    spill_stores: int | None = None
    """Bytes; None where there is no compiler log."""
    spill_loads: int | None = None
    warnings: tuple[str, ...] = ()
    symbol: str = ""
    signature: str = ""
    anchor: str = ""
    """The line of the candidate that defines the kernel."""
    threads: int | None = None
    """Threads per block, dynamic shared memory, warps and stages of a Triton variant."""
    dynamic_shared: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None

    def count(self, *kinds: InstructionKind) -> int:
        """Instructions of these kinds in the whole kernel."""
        return count(self.mix or {}, *kinds)

    @property
    def innermost_loops(self) -> tuple[KernelLoop, ...]:
        """Loops that contain no other loop."""
        return tuple(loop for loop in self.loops if loop.innermost)

    @property
    def spilled_bytes(self) -> int:
        """Spill stores and loads per thread; 0 where there is no compiler log."""
        return (self.spill_stores or 0) + (self.spill_loads or 0)


def count(mix: Mapping[InstructionKind, int], *kinds: InstructionKind) -> int:
    """Instructions of these kinds in an instruction mix."""
    return sum(mix.get(kind, 0) for kind in kinds)
