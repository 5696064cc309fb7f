"""Atomic contention: many threads update the same few addresses, which L2 serializes."""

from __future__ import annotations

import math

from kernelpro.diagnose.counters import DURATION, FROM_CODE, KERNEL_BOUNDS, stall_metrics
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import Evidence

ATOMS = "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum"
REDUCTIONS = "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum"
BUSIEST_SLICE = "lts__d_atomic_input_cycles_active.max.pct_of_peak_sustained_elapsed"
"""Utilization of the atomic unit in the busiest L2 slice: one address lives in one slice."""
BUSY = 0.3
STALLED = 0.4
"""Share of warp cycles in stalls that queued atomics cause."""
SERIAL = 0.2
"""Share of the kernel's time that its atomics would take at one per cycle, from which contention is
plausible."""
_STALLS = ("lg_throttle", "long_scoreboard", "drain", "membar")
_UNPROVEN_GAIN = 0.1
_LEFT = 1 / 32
"""Share of the atomics that remains if each warp reduces first; reducing in the block leaves less."""


def _analyze(context: DiagnosticContext) -> Match | None:
    return _from_counters(context) if context.has_counters else _from_code(context)


def _from_counters(context: DiagnosticContext) -> Match | None:
    requests = context.metric(ATOMS) + context.metric(REDUCTIONS)
    if requests <= 0:
        return None
    utilization, stalled = context.metric(BUSIEST_SLICE) / 100, context.stall_share(*_STALLS)
    serial = min(1.0, requests * 32 / _cycles(context, context.metric(DURATION)))
    queued = 0.0
    if stalled >= STALLED and serial >= SERIAL:
        queued = min(stalled, serial, context.latency_headroom)
    contention = max(utilization if utilization >= BUSY else 0.0, queued)
    if contention <= 0:
        return None
    count = f"{requests / 1e6:.1f} million" if requests >= 1e6 else f"{requests:.0f}"
    return Match(
        evidence=(
            Evidence("warp-level atomic requests", requests),
            percent("utilization of the busiest L2 atomic unit", utilization, BUSY),
            percent("warp cycles stalled on memory queues", stalled, STALLED),
        ),
        cause=f"{count} warp-wide atomics contend in L2, which serializes updates of the same address",
        saved_share=(1 - _LEFT) * contention,
        basis=f"contention takes {contention:.0%} of the time; reducing in each warp first leaves 1 of 32 "
        "atomics",
        where=context.hottest_line(*_STALLS) or context.line_of("atomic"),
    )


def _from_code(context: DiagnosticContext) -> Match | None:
    """Suspects atomics in an innermost loop, or in each of very many threads."""
    kernel = context.kernel
    in_loop = any(loop.count("atomic") for loop in context.code.innermost_loops)
    count = context.code.count("atomic")
    threads = math.prod(kernel.grid) * math.prod(kernel.block) if kernel.grid and kernel.block else 0
    queue = count * threads / _cycles(context, 1e3 * kernel.microseconds / context.launches)
    if context.headroom < 1.5 or not (in_loop or queue >= 1):
        return None
    place = "in an innermost loop" if in_loop else "in each of very many threads"
    return Match(
        evidence=(Evidence("atomic instructions in the code", count, 0), Evidence("threads", threads)),
        cause=f"atomics {place} contend if they update few addresses{FROM_CODE}",
        saved_share=_UNPROVEN_GAIN if in_loop else 0.7 * _UNPROVEN_GAIN,
        basis="an estimate from the machine code, without counters",
        where=context.line_of("atomic"),
    )


def _cycles(context: DiagnosticContext, nanoseconds: float) -> float:
    """Clock cycles in this time; at least one."""
    return max(1.0, nanoseconds * (context.device.clock_mhz or 1700.0) / 1e3)


DIAGNOSTIC = Diagnostic(
    name="atomics_contention",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"the busiest L2 atomic unit is {BUSY:.0%} utilized or more; or warps stall {STALLED:.0%} of "
    f"their cycles on memory queues while the atomics, at one per cycle, would take {SERIAL:.0%} of the "
    "time; without counters, a heuristic: atomics in an innermost loop, or in each of very many threads",
    remedy="reduce in registers, warp and block first; one atomic per block",
    gain_basis="31/32 of the time that contention takes, if each warp reduces first",
    advice=(
        "reduce first: in registers, within the warp (shuffles), within the block (shared memory); one "
        "atomic per block",
        "write one partial result per block and add those in a second, small kernel",
        "privatize: several copies of the counters (a histogram in shared memory per block)",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=(ATOMS, REDUCTIONS, BUSIEST_SLICE, *stall_metrics(*_STALLS)),
    sample_lines=True,
    claims=(
        "atomics",
        "waiting_for_memory",
        "waiting_for_memory_queue",
        "waiting_for_shared_memory",
        "waiting_for_stores",
        "waiting_at_barriers",
    ),
)
