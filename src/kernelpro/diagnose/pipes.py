"""The hot code of a kernel and its cost on the pipes of an SM: a roofline of one pass through the code.

1. `hot_code` picks the innermost loops that do work (a loop that only spins or reduces an argument does
   none), else the enclosing loop, else the whole kernel.
2. Each pipe takes (instructions) / (lanes per clock) for a thread; DRAM takes (bytes) / (bytes per clock and
   SM).
3. `time_saved` compares the busiest pipe before and after some instructions are removed, with DRAM unchanged.
   Where counters were collected they give the absolute level, and the code gives only the ratio.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelpro.diagnose.counters import MEMORY_THROUGHPUT, SM_THROUGHPUT
from kernelpro.diagnose.diagnostic import DiagnosticContext
from kernelpro.records import InstructionKind, KernelCode, KernelLoop

XU = "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"
"""Utilization of the pipe of special functions and conversions."""
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
MATRIX: tuple[InstructionKind, ...] = ("hmma", "hgmma", "imma", "dmma")
GLOBAL: tuple[InstructionKind, ...] = ("global_load", "global_store")
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
"""Results per clock and SM (sm_80 to sm_90). Integers: 64 on their own pipe, and multiply-adds go to the
FMA pipe: 96 between. Conversions: 64 for packing floats into halves, 16 for float to integer and all
64-bit ones: 32 between."""
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
_DRAM_BYTES = 16.5
"""Bytes per clock and SM where the device is unknown: an H200 copies 4.30 TB/s with 132 SMs at 1.98 GHz."""


@dataclass(frozen=True)
class HotCode:
    """The instructions in which a kernel spends its time."""

    mix: Mapping[InstructionKind, float]
    widths: Mapping[InstructionKind, Mapping[str, int]]
    is_loop: bool
    """False: the kernel from end to end."""

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


def hot_code(context: DiagnosticContext) -> HotCode:
    """The hot code of the kernel."""
    loops = [loop for loop in context.code.loops if not loop.asks and loop.count(*_WORK)]
    hot = [loop for loop in loops if loop.innermost] or sorted(loops, key=lambda loop: -loop.instructions)[:1]
    mix: Counter[InstructionKind] = Counter()
    widths: dict[InstructionKind, Counter[str]] = {}
    parts: Sequence[KernelLoop | KernelCode] = hot or [context.code]
    for part in parts:
        mix.update(part.mix or {})
        for kind, bits in part.widths.items():
            widths.setdefault(kind, Counter()).update(bits)
    return HotCode(mix, widths, bool(hot))


def dram_bytes_per_clock(context: DiagnosticContext) -> float:
    """Bytes that DRAM moves per clock and SM."""
    bandwidth = context.device.dram_bandwidth or context.profile.ceilings.bandwidth
    sms, mhz = context.device.sms, context.device.clock_mhz
    return bandwidth / (sms * mhz * 1e6) if bandwidth and sms and mhz else _DRAM_BYTES


def dram_clocks(context: DiagnosticContext, hot: HotCode) -> float:
    """SM clocks in which DRAM delivers the data of one thread's pass.

    A pass that stores takes from DRAM what the task reads per byte that it writes, or about two values where
    that is less; further loads are weights and tables in cache.
    """
    work, stored = context.work, hot.bytes_moved("global_store")
    inputs = max(2.0, work.read_bytes / work.written_bytes if work.written_bytes else 0.0)
    return min(hot.bytes_moved(*GLOBAL), (1 + inputs) * stored or math.inf) / dram_bytes_per_clock(context)


def time_saved(context: DiagnosticContext, hot: HotCode, removed: Mapping[InstructionKind, float]) -> float:
    """Share of the kernel's time that the removed instructions take; 0 where memory determines it."""
    slowdown = context.device.fp64_slowdown
    before, after = hot.clocks(slowdown), hot.clocks(slowdown, removed)
    busy, memory = before, dram_clocks(context, hot)
    if context.has_counters:
        busy, memory = context.metric(SM_THROUGHPUT), context.metric(MEMORY_THROUGHPUT)
    now = max(busy, memory)
    return max(0.0, 1 - max(memory, busy * after / before) / now) if now > 0 and before > 0 else 0.0


def surplus_conversions(hot: HotCode) -> dict[InstructionKind, float]:
    """Conversions beyond one per 4 loaded or stored bytes, by kind of instruction.

    The way back from bfloat16 is a shift, which counts as integer arithmetic: one per conversion, at most
    half of all.
    """
    converts = hot.count("convert")
    surplus = converts - min(converts, hot.bytes_moved(*GLOBAL) / 4)
    return {"convert": surplus, "alu": min(surplus, hot.count("alu") / 2)}
