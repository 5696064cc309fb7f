"""Atomic operations queue up: many threads update the same few addresses, and L2 serves those one after another."""

from __future__ import annotations

import math

from kernelpro.diagnose.counters import (
    DURATION,
    KERNEL_BOUNDS,
    has_counters,
    hottest_line,
    latency_headroom,
    stall_metrics,
    stall_share,
)
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

ATOMS, REDUCTIONS = (
    "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",
)
SLICE = "lts__d_atomic_input_cycles_active.max.pct_of_peak_sustained_elapsed"
"""Use of the atomic unit in the busiest slice of L2: one address lives in one slice."""
BUSY = 0.3
QUEUED = 0.4
"""Share of the warps' time in waits that a queue of atomics causes."""
SERIAL = 0.2
"""Share of the kernel's time that its atomics would take one a cycle, from which a queue is plausible."""
_WAITS = ("lg_throttle", "long_scoreboard", "drain", "membar")
_GUESS = 0.1


def look(scene: DiagnosticContext) -> Match | None:
    return _counted(scene) if has_counters(scene) else _static(scene)


def _counted(scene: DiagnosticContext) -> Match | None:
    requests = scene.metric(ATOMS) + scene.metric(REDUCTIONS)
    if requests <= 0:
        return None
    unit, waits = scene.metric(SLICE) / 100, stall_share(scene, *_WAITS)
    serial = min(1.0, requests * 32 / _cycles(scene, scene.metric(DURATION)))
    queued = min(waits, serial, latency_headroom(scene)) if waits >= QUEUED and serial >= SERIAL else 0.0
    saved = 0.9 * max(unit if unit >= BUSY else 0.0, queued)
    if saved <= 0:
        return None
    return _found(
        (
            Evidence("warp-wide atomic requests", requests),
            Evidence("use of the busiest atomic unit of L2", round(100 * unit), 100 * BUSY, "%"),
            Evidence("time that warps wait for memory queues", round(100 * waits), 100 * QUEUED, "%"),
        ),
        f"{_count(requests)} warp-wide atomics queue up in L2: updates of one address are done one after another",
        saved,
        f"the queue sets {saved / 0.9:.0%} of the time; adding up within warps and blocks first leaves a tenth of it",
        hottest_line(scene.kernel, *_WAITS) or scene.kernel.code.get("where", {}).get("atomic", ""),
    )


def _static(scene: DiagnosticContext) -> Match | None:
    """Atomics in an innermost loop, or one by each of very many threads, are suspect."""
    looped = any(
        loop["mix"].get("atomic", 0) for loop in scene.code.get("loops", ()) if loop.get("innermost")
    )
    count = scene.count_instructions("atomic", hot=False)
    threads = math.prod(scene.kernel.grid) * math.prod(scene.kernel.block) if scene.kernel.grid and scene.kernel.block else 0
    queue = count * threads / _cycles(scene, 1e3 * scene.kernel.microseconds / max(1.0, scene.kernel.launches))
    if scene.headroom < 1.5 or not (looped or queue >= 1):
        return None
    place = "in an innermost loop" if looped else "in each of very many threads"
    return _found(
        (Evidence("atomic instructions in the code", count, 0), Evidence("threads", threads)),
        f"atomics {place} queue up if they go to few addresses (seen in the machine code; counters were not available)",
        _GUESS if looped else 0.7 * _GUESS,
        "a guess from the machine code, without counters",
        scene.code.get("where", {}).get("atomic", ""),
    )


def _count(requests: float) -> str:
    return f"{requests / 1e6:.1f} million" if requests >= 1e6 else f"{requests:.0f}"


def _cycles(scene: DiagnosticContext, nanoseconds: float) -> float:
    """Clock cycles in this time; at least one."""
    return max(1.0, nanoseconds * float(scene.device.get("clock_mhz", 1700.0)) / 1e3)


def _found(evidence: tuple[Evidence, ...], cause: str, saved: float, how: str, where: str) -> Match:
    return Match(
        evidence=evidence,
        cause=cause,
        advice=(
            "add up first: in registers, then within the warp (shuffles) and the block (shared memory), and do one atomic a block",
            "write one partial result a block and add those in a second, tiny kernel",
            "spread counters over several copies (histograms in shared memory, one a block)",
        ),
        saved_share=saved,
        basis=how,
        where=where,
    )


DIAGNOSTIC = Diagnostic(
    name="atomics_contention",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"the busiest atomic unit of L2 is used {BUSY:.0%} or more; or warps wait {QUEUED:.0%} of their time for memory "
    f"queues while the kernel's atomics, one a cycle, would take {SERIAL:.0%} of its time; without counters, a suspicion: atomics "
    "in an innermost loop, or in each of very many threads",
    remedy="reduce in registers, warp and block first; one atomic a block",
    gain_basis="nine tenths of the time that the queue sets",
    bounds=KERNEL_BOUNDS,
    metrics=(ATOMS, REDUCTIONS, SLICE, *stall_metrics(*_WAITS)),
    sample_lines=True,
)
