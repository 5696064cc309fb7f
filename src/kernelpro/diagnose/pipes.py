"""The hot code of a kernel and its cost on the pipes of an SM: a roofline of one pass through the code.

1. `hot_code` picks the innermost loops that do work (a loop that only spins on a flag or reduces an argument
   does none), else the largest loop that does, else the whole kernel.
2. Each pipe takes (instructions) / (lanes per clock) for a thread; DRAM takes (bytes) / (bytes per clock and
   SM).
3. `time_saved` compares the busiest pipe before and after some instructions are removed, with DRAM unchanged.
   If counters were collected, they give the utilization now, and the code gives only the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kernelpro.diagnose.counters import MEMORY_THROUGHPUT, SM_THROUGHPUT
from kernelpro.diagnose.diagnostic import DiagnosticContext
from kernelpro.diagnose.hot_code import GLOBAL, HotCode, hot_code_of
from kernelpro.records import InstructionKind

_DRAM_BYTES = 16.5
"""Bytes per clock and SM where the device is unknown: an H200 copies 4.30 TB/s with 132 SMs at 1.98 GHz."""


def hot_code(context: DiagnosticContext) -> HotCode:
    """The hot code of the kernel."""
    return hot_code_of(context.code)


def dram_bytes_per_clock(context: DiagnosticContext) -> float:
    """Bytes that DRAM moves per clock and SM."""
    bandwidth = context.device.dram_bandwidth or context.profile.ceilings.bandwidth
    sms, mhz = context.device.sms, context.device.clock_mhz
    return bandwidth / (sms * mhz * 1e6) if bandwidth and sms and mhz else _DRAM_BYTES


def dram_clocks(context: DiagnosticContext, hot: HotCode) -> float:
    """SM clocks in which DRAM delivers the data of one thread's pass.

    For each byte that it stores, a pass reads from DRAM as many bytes as the task reads per written byte, but
    at least two. Further loads are weights and tables, which hit the caches.
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

    Converting from bfloat16 is a shift, which counts as integer arithmetic: one per surplus conversion, at
    most half of all integer instructions.
    """
    converts = hot.count("convert")
    surplus = converts - min(converts, hot.bytes_moved(*GLOBAL) / 4)
    return {"convert": surplus, "alu": min(surplus, hot.count("alu") / 2)}
