"""Excess memory traffic: several passes over the data, with intermediates in memory between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kernelpro.diagnose.account.cpu import (
    COPIED,
    coordination_share,
    copied_share,
    libc_coordination_share,
    native_libc_share,
    sampled_scale,
    system_share,
)
from kernelpro.diagnose.account.loop_time import own_calls
from kernelpro.diagnose.cpu_loops import FAR, require_samples
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.kernel_names import plain_name
from kernelpro.records import Bound, CpuProfile, Evidence, PartKind
from kernelpro.records.cpu_profile import Sweep

MIN_PASS_SHARE = 0.05
"""Share of the time from which a loop counts as a pass over the data."""
_COVERED = 0.8
"""Share of the time in passes from which the rest, beside libm, goes with them; else it is no traffic."""
_INTERPRETED = 0.15
_ALLOCATES = re.compile(r"_Zn[aw]|[mc]alloc|realloc")


def _analyze(context: DiagnosticContext) -> Match | None:
    require_samples(context)
    if (
        context.headroom < FAR or context.bound is Bound.COMPUTE
    ):  # compute-bound: time above the floor is not traffic
        return None
    shares = context.cpu.shares
    passes = [sweep for sweep in _with_called(context.cpu) if sweep.share >= MIN_PASS_SHARE]
    weights = [sweep.share for sweep in passes]
    coordinating = libc_coordination_share(context.cpu)
    own_libc = native_libc_share(context.cpu) - coordinating
    library = shares.torch + shares.libc - coordinating
    if library >= MIN_PASS_SHARE and shares.host < _INTERPRETED:
        weights.append(library)
    if len(weights) < 2:
        return None
    places = ", ".join(dict.fromkeys(sweep.where or plain_name(sweep.function) for sweep in passes))
    beside = _name_library(context.cpu, own_libc > library / 2)
    torch = f"; {beside} take {library:.0%}" if library >= MIN_PASS_SHARE else ""
    faults = system_share(context.cpu)
    copied = faults >= MIN_PASS_SHARE and copied_share(context.cpu) >= COPIED
    left = _without_faults(weights, faults)
    if copied:
        scale = sampled_scale(context.profile, context.cpu)
        left = [scale * sweep.share for sweep in passes] + [max(0.0, library - faults)]
    in_passes = 1 - shares.libm if sum(weights) >= _COVERED else sum(weights)
    fused = max(left)
    if sums := _column_sums(context.cpu, passes):  # they need the last row before a result can be used
        fused = max(left[i] for i in sums) + max(value for i, value in enumerate(left) if i not in sums)
    elif own_libc > library / 2 and passes and library == weights[-1]:  # no work of the task
        fused = max(left[: len(passes)])
    if faults >= MIN_PASS_SHARE and not copied and context.cpu.loops and context.cpu.loops[0].bits:
        fused = min(fused, 1 / context.reachable_gain)  # passes over fresh memory also miss caches and TLB
    working = 1 - coordination_share(context.profile, context.cpu)
    return Match(
        evidence=(
            Evidence("passes over the data", len(weights), 1),
            percent("time of the longest pass", max(weights)),
            Evidence("call time over the floor", context.headroom, FAR, "x"),
        ),
        cause=f"{len(weights)} loops pass over the data one after the other ({places}{torch}): intermediates "
        "go through memory",
        saved_share=working * (in_passes - (0.0 if copied else faults) - fused),
        basis=f"one fused pass costs about as much as the longest of the {len(weights)}, {fused:.0%} "
        "of the time" + (" without page faults" if left != weights else ""),
        where=passes[0].where if passes else "",
        claims=_claims(len(passes) < 2, own_libc > library / 2, copied),
    )


def _column_sums(cpu: CpuProfile, passes: Sequence[Sweep]) -> set[int]:
    """Indices of the passes that add rows to an array of sums and store nothing else, if they come before all
    other passes in the source."""
    sums = set()
    for index, sweep in enumerate(passes):
        loops = [loop for loop in cpu.loops if (loop.function, loop.where) == (sweep.function, sweep.where)]
        if loops and loops[0].count("store") == loops[0].updates > loops[0].carried:
            sums.add(index)
    lines = [int(line) if (line := sweep.where.rpartition(":")[2]).isdigit() else 0 for sweep in passes]
    others = [lines[index] for index in range(len(passes)) if index not in sums]
    return sums if others and all(lines[index] < min(others) for index in sums) else set()


def _claims(beside_one_pass: bool, own: bool, copied: bool) -> tuple[PartKind, ...]:
    """Parts that fusion removes: those of the libraries, where one pass of the candidate remains."""
    native: tuple[PartKind, ...] = ("native_code",) if own else ()
    claims = ("torch_operators", *native) if beside_one_pass else DIAGNOSTIC.claims
    return (*claims, "operating_system") if copied else claims


def _name_library(cpu: CpuProfile, own: bool) -> str:
    """What takes the libraries' time; `own`: mostly the C library, called by native code."""
    if not own:
        return "torch operators and copies"
    allocates = any(_ALLOCATES.match(name) for function in cpu.static.functions for name in function.calls)
    return "copies and fills of the C library" + (", and allocations," if allocates else "")


def _with_called(cpu: CpuProfile) -> list[Sweep]:
    """The sweeps, with the functions that their loops call and that have no loop of their own.

    If several sweeps call the same function, they share its time.
    """
    own = {sweep.function for sweep in cpu.sweeps}
    called = {function.name: function.share for function in cpu.functions if function.name not in own}
    callers = {name: _calling_sweeps(cpu, name) for name in called}
    return [
        replace(
            sweep,
            share=sweep.share
            + sum(called[name] / len(places) for name, places in callers.items() if index in places),
        )
        for index, sweep in enumerate(cpu.sweeps)
    ]


def _calling_sweeps(cpu: CpuProfile, name: str) -> set[int]:
    """Indices of the sweeps that call a function: at the line of a loop that does, else all around it."""
    loops = [loop for loop in cpu.loops if name in own_calls(loop)]
    around = {
        i for i, sweep in enumerate(cpu.sweeps) if any(loop.function == sweep.function for loop in loops)
    }
    at_line = {i for i in around if any(loop.where == cpu.sweeps[i].where for loop in loops)}
    return at_line or around


def _without_faults(weights: list[float], faults: float) -> list[float]:
    """The passes without the time of page faults: all but the shortest write fresh memory."""
    ordered = sorted(weights, reverse=True)
    each = faults / max(1, len(ordered) - 1)
    cleared = [max(weight - each, ordered[-1]) for weight in ordered[:-1]]
    return [*cleared, ordered[-1]] if faults >= MIN_PASS_SHARE else weights


DIAGNOSTIC = Diagnostic(
    name="cpu_excess_traffic",
    level="kernel",
    target="cpu",
    analyze=_analyze,
    trigger=f"two or more separate outermost loops (or torch operators) with at least {MIN_PASS_SHARE:.0%} "
    f"of the time each, and a call over {FAR:g}x its floor, unless arithmetic bounds the task",
    remedy="fuse the passes; work on rows or blocks that stay in cache",
    gain_basis="the time outside the longest pass, and the page faults",
    advice=(
        "fuse: do all steps on a row, or on a block that fits the L1 cache, before the next",
        "keep intermediates in registers or in a small buffer per thread",
        "allocate buffers once per thread, outside the loops, and without filling what is written anyway",
    ),
    claims=(
        "torch_operators",
        "vector_code",
        "scalar_code",
        "native_code",
    ),
)
