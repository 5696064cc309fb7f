"""The hot code of a kernel, and what its instructions cost the pipes of an SM: a roofline of one pass through the code.

1. `hot_code` picks the innermost loops that do work (a loop that only spins or reduces an argument does none), else the
   enclosing loop, else the whole kernel.
2. Each pipe takes (instructions) / (lanes a clock) for a thread, DRAM takes (bytes) / (bytes a clock and SM).
3. `saved` compares the busiest pipe before and after some instructions are gone, DRAM staying as it is. Where counters
   were read, they replace the absolute level, and the code gives only the ratio.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kernelpro.diagnose.counters import MEMORY_THROUGHPUT, SM_THROUGHPUT, has_counters
from kernelpro.diagnose.diagnostic import DiagnosticContext

XU = "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"
"""Use of the pipe of special functions and conversions."""
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
MATRIX = ("hmma", "hgmma", "imma", "dmma")
GLOBAL = ("global_load", "global_store")
_WORK = (
    "fma32",
    "fp64",
    "half",
    "special",
    *MATRIX,
    "global_store",
    "shared_store",
    "atomic",
    "shared_atomic",
    "async_copy",
    "tma",
)

_LANES = {"fma32": 128, "half": 128, "alu": 96, "special": 16, "convert": 32, "shuffle": 32}
"""Results a clock and SM (sm_80 to sm_90). Integers: 64 on their own pipe, and multiply-adds go to the FMA pipe: 96 between.
Conversions: 64 for packing floats into halves, 16 for float to integer and all that is 64 bits wide: 32 between."""
_ISSUE = 128
_SHARED_BYTES = 128
"""Bytes a clock between an SM and its L1 or shared memory."""
_MATRIX_CLOCKS = {"hmma": 2 / 32, "imma": 2 / 32, "dmma": 16 / 32, "hgmma": 64 / 128}
"""Clocks of an SM's tensor cores for a thread: m16n8k16 takes 2 for a warp, m64n128k16 takes 64 for 128 threads."""
_DRAM_BYTES = 16.5
"""Bytes a clock and SM where the device is not known: an H200 copies 4.30 TB/s with 132 SMs at 1.98 GHz."""


@dataclass(frozen=True)
class HotCode:
    """The instructions in which a kernel spends its time."""

    mix: Mapping[str, float]
    widths: Mapping[str, Mapping[str, int]]
    is_loop: bool
    """Whether it is a loop, and not the kernel from end to end."""

    def count(self, *kinds: str) -> float:
        return sum(self.mix.get(kind, 0) for kind in kinds)

    @property
    def instructions(self) -> float:
        return max(1.0, sum(self.mix.values()))

    def bytes_moved(self, *kinds: str) -> float:
        """Bytes that a thread moves with accesses of these kinds; 4 each where widths are not known."""
        known = {
            kind: sum(int(bits) / 8 * n for bits, n in self.widths.get(kind, {}).items()) for kind in kinds
        }
        return sum(known[kind] or 4 * self.mix.get(kind, 0) for kind in kinds)

    def clocks(self, fp64_slower: float = 2.0, gone: Mapping[str, float] | None = None) -> float:
        """Clocks of an SM for one thread's pass: those of its busiest pipe, without the instructions that are `gone`."""
        left = {kind: max(0.0, n - (gone or {}).get(kind, 0.0)) for kind, n in self.mix.items()}
        part = {kind: left[kind] / n if n else 0.0 for kind, n in self.mix.items()}
        lanes = _LANES | {
            "fp64": _LANES["fma32"] / fp64_slower,
            "convert": 16 if left.get("fp64") else _LANES["convert"],
        }
        took = {kind: left.get(kind, 0.0) / rate for kind, rate in lanes.items()}
        accessed = sum(
            self.bytes_moved(kind) * part[kind] for kind in self.mix if kind.endswith(("_load", "_store"))
        )
        return max(
            sum(left.values()) / _ISSUE,
            took["fma32"] + took["half"],
            took["alu"],
            took["fp64"],
            took["special"] + took["convert"],
            accessed / _SHARED_BYTES + took["shuffle"],
            sum(left.get(kind, 0.0) * clocks for kind, clocks in _MATRIX_CLOCKS.items()),
        )


def hot_code(scene: DiagnosticContext) -> HotCode:
    loops = [
        loop
        for loop in scene.code.get("loops", ())
        if not loop.get("asks") and sum(loop["mix"].get(kind, 0) for kind in _WORK)
    ]
    hot = [loop for loop in loops if loop.get("innermost")] or sorted(
        loops, key=lambda loop: -loop["instructions"]
    )[:1]
    mix: Counter[str] = Counter()
    widths: dict[str, Counter[str]] = {}
    for code in hot or [scene.code]:
        mix.update(code["mix"])
        for kind, bits in code.get("widths", {}).items():
            widths.setdefault(kind, Counter()).update(bits)
    return HotCode(mix, widths, bool(hot))


def dram_bytes_per_clock(scene: DiagnosticContext) -> float:
    """Bytes that DRAM moves for an SM in a clock."""
    bandwidth = scene.device.get("dram_bandwidth") or scene.profile.ceilings.get("bandwidth")
    sms, mhz = scene.device.get("sms"), scene.device.get("clock_mhz")
    return float(bandwidth / (sms * mhz * 1e6)) if bandwidth and sms and mhz else _DRAM_BYTES


def dram_clocks(scene: DiagnosticContext, hot: HotCode) -> float:
    """Clocks of an SM in which DRAM delivers what a thread's pass needs.

    A pass that stores takes from DRAM what the task reads for each byte that it writes, and about two values where that is
    less; further loads are weights and tables from cache.
    """
    work, stored = scene.profile.work, hot.bytes_moved("global_store")
    written = work.get("written_bytes", 0.0)
    inputs = max(2.0, work.get("read_bytes", 0.0) / written if written else 0.0)
    return min(hot.bytes_moved(*GLOBAL), (1 + inputs) * stored or math.inf) / dram_bytes_per_clock(scene)


def time_saved(scene: DiagnosticContext, hot: HotCode, gone: Mapping[str, float]) -> float:
    """Share of the kernel's time that goes with these instructions, 0 where memory sets the time."""
    slower = float(scene.device.get("fp32_to_fp64", 2.0))
    before, after = hot.clocks(slower), hot.clocks(slower, gone)
    busy, memory = before, dram_clocks(scene, hot)
    if has_counters(scene):
        busy, memory = scene.metric(SM_THROUGHPUT), scene.metric(MEMORY_THROUGHPUT)
    now = max(busy, memory)
    return max(0.0, 1 - max(memory, busy * after / before) / now) if now > 0 and before > 0 else 0.0
