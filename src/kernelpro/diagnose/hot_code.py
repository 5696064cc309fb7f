"""The hot code of a kernel: the instructions of the innermost loops that do work, and their cost on the SM's
pipes.

A loop that only spins on a flag or reduces an argument does no work. If no innermost loop does work, the
largest loop that does is hot; without any, the whole kernel is. For one thread, each pipe takes
(instructions) / (lanes per clock).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelpro.records import InstructionKind, KernelCode, KernelLoop

MATRIX: tuple[InstructionKind, ...] = ("hmma", "hgmma", "imma", "dmma")
GLOBAL: tuple[InstructionKind, ...] = ("global_load", "global_store")
TINY_BITS = 16
"""Bits per access up to which the instructions around it cost more than waiting for it."""
STRAY_DOUBLES = 0.02
"""Share of the hot code below which FP64 is the rarely taken path of a library function (sinf of a large
argument)."""
_WORK: tuple[InstructionKind, ...] = (
    *("fma32", "fp64", "half", "special", *MATRIX, "global_store", "shared_store"),
    *("atomic", "shared_atomic", "async_copy", "tma"),
)

_LANES: dict[InstructionKind, float] = {
    "fma32": 128,
    "half": 128,
    "alu": 96,
    "special": 16,
    "convert": 32,
    "shuffle": 32,
}
"""Results per clock and SM (sm_80 to sm_90). Two are means. `alu`, 96: the ALU pipe has 64 lanes, but integer
multiply-adds run on the FMA pipe. `convert`, 32: packing floats into halves runs at 64, float to integer and
all 64-bit conversions at 16."""
_ISSUE = 128
_SHARED_BYTES = 128
"""Bytes per clock between an SM and its L1 or shared memory."""
_MATRIX_CLOCKS: dict[InstructionKind, float] = {
    "hmma": 2 / 32,
    "imma": 2 / 32,
    "dmma": 16 / 32,
    "hgmma": 64 / 128,
}
"""Tensor-core clocks per thread: m16n8k16 takes 2 for a warp, m64n128k16 takes 64 for 128 threads."""


@dataclass(frozen=True)
class HotCode:
    """The instructions in which a kernel spends its time."""

    mix: Mapping[InstructionKind, float]
    widths: Mapping[InstructionKind, Mapping[str, int]]
    is_loop: bool
    """False if the whole kernel is hot."""

    @classmethod
    def of_loop(cls, loop: KernelLoop) -> HotCode:
        """The hot code of one loop."""
        return cls(loop.mix, loop.widths, True)

    def count(self, *kinds: InstructionKind) -> float:
        """Instructions of these kinds."""
        return sum(self.mix.get(kind, 0) for kind in kinds)

    @property
    def instructions(self) -> float:
        """All instructions, at least one."""
        return max(1.0, sum(self.mix.values()))

    def share(self, *kinds: InstructionKind) -> float:
        """Share of the instructions that are of these kinds."""
        return self.count(*kinds) / self.instructions

    def bytes_moved(self, *kinds: InstructionKind) -> float:
        """Bytes that a thread moves with accesses of these kinds; 4 each where the widths are unknown."""
        by_width = {
            kind: sum(int(bits) / 8 * n for bits, n in self.widths.get(kind, {}).items()) for kind in kinds
        }
        return sum(by_width[kind] or 4 * self.mix.get(kind, 0) for kind in kinds)

    def clocks(
        self, fp64_slowdown: float = 2.0, removed: Mapping[InstructionKind, float] | None = None
    ) -> float:
        """SM clocks of the busiest pipe for one thread's pass, without the `removed` instructions."""
        left = {kind: max(0.0, n - (removed or {}).get(kind, 0.0)) for kind, n in self.mix.items()}
        lanes = _LANES | {
            "fp64": _LANES["fma32"] / fp64_slowdown,
            "convert": 16 if left.get("fp64") else _LANES["convert"],
        }
        clocks = {kind: left.get(kind, 0.0) / rate for kind, rate in lanes.items()}
        accessed = sum(
            self.bytes_moved(kind) * left[kind] / n
            for kind, n in self.mix.items()
            if n and kind.endswith(("_load", "_store"))
        )
        return max(
            sum(left.values()) / _ISSUE,
            clocks["fma32"] + clocks["half"],
            clocks["alu"],
            clocks["fp64"],
            clocks["special"] + clocks["convert"],
            accessed / _SHARED_BYTES + clocks["shuffle"],
            sum(left.get(kind, 0.0) * each for kind, each in _MATRIX_CLOCKS.items()),
        )


def hot_code_of(code: KernelCode) -> HotCode:
    """The hot code of a disassembled kernel."""
    loops = [loop for loop in code.loops if not loop.asks and loop.count(*_WORK)]
    hot = [loop for loop in loops if loop.innermost] or sorted(loops, key=lambda loop: -loop.instructions)[:1]
    mix: Counter[InstructionKind] = Counter()
    widths: dict[InstructionKind, Counter[str]] = {}
    parts: Sequence[KernelLoop | KernelCode] = hot or [code]
    for part in parts:
        mix.update(part.mix or {})
        for kind, bits in part.widths.items():
            widths.setdefault(kind, Counter()).update(bits)
    return HotCode(mix, widths, bool(hot))
