"""The time of loops on the CPU: without that of their inner loops, and with that of their code elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kernelpro.records import CpuInstructionKind, CpuLoop, CpuProfile, Profile

_LoopKey = tuple[str, str, int]
_MIN_INSIDE = 0.25
"""Share of a function's time in its innermost loops, from which the rest of its time is theirs too."""

_POINTER = "?"
"""Callee of a call through a pointer: a virtual function, std::function."""
_HOT = 0.08
"""Share of the time from which a loop's instructions count."""
_ISSUED = 0.8
"""Arithmetic rate of a vector loop over that of a matrix product. Measured on two ARM cores: 0.79 to 0.86 (an
exponential, two clamps)."""
_VECTORIZED = 1.9
"""Instructions of vector code over the floating-point ones of scalar code with branches: selects and
conversions add to them. Measured on exponentials: 1.7 to 2.1."""
_INDEXED = 0.3
"""Share of the time from which sums by index bound a call."""
_INDEXED_SUM_NS = 1.4
"""Core time of a sum by index without atomics. Measured on ARM cores and three Xeons: 1.1 to 1.9 ns."""
_AVOIDABLE: tuple[CpuInstructionKind, ...] = ("double", "convert", "integer_division", "atomic")
"""Kinds of instructions that good code has outside its hot loops, or not at all."""


def without_overlap(loops: Iterable[CpuLoop]) -> tuple[CpuLoop, ...]:
    """The loops, each without the time of shorter ones whose code it shares.

    The loop around the retry loop of an atomic encloses it, or begins within it. A loop without time of its
    own is left out.
    """
    kept: list[CpuLoop] = []
    for loop in sorted(loops, key=lambda loop: loop.end - loop.begin):
        inner = [
            other
            for other in kept
            if (other.file, other.function) == (loop.file, loop.function)
            and other.share > 0
            and loop.begin < other.end
            and other.begin < loop.end
        ]
        share = max(0.0, loop.share - sum(other.share for other in inner))
        if not inner or share > 0:
            kept.append(replace(loop, share=share))
    return tuple(sorted(kept, key=lambda loop: -loop.share))


def with_outside_time(cpu: CpuProfile) -> tuple[CpuLoop, ...]:
    """The loops, each with the time of code that belongs to it and lies elsewhere.

    Compilers move parts of a loop behind its end, and functions that a loop calls do its work. C++ functions
    that nothing calls by name belong to the longest loop with a call through a pointer. If more than
    three quarters of a function's time lie outside its loops, that time is not attributed to them.
    """
    loops = without_overlap(cpu.loops)
    if not cpu.sampled:
        return loops
    callers = {name: loop for loop in reversed(loops) for name in own_calls(loop)}
    through_pointer = next((loop for loop in loops if _POINTER in loop.calls), None)
    named = {name for function in cpu.static.functions for name in function.calls}
    extra: dict[_LoopKey, float] = {}
    for function in cpu.functions:
        own = [loop for loop in loops if loop.function == function.name and loop.share > 0]
        inside = sum(loop.share for loop in own)
        outside = function.share - inside
        caller = callers.get(function.name)
        if caller is None and through_pointer and _is_internal(function.name) and function.name not in named:
            caller = through_pointer
        if outside <= 0:
            continue
        if caller is not None:
            extra[_key(caller)] = extra.get(_key(caller), 0.0) + outside
        elif inside >= _MIN_INSIDE * function.share:
            for loop in own:
                extra[_key(loop)] = extra.get(_key(loop), 0.0) + outside * loop.share / inside
    grown = (replace(loop, share=loop.share + extra.get(_key(loop), 0.0)) for loop in loops)
    return tuple(sorted(grown, key=lambda loop: -loop.share))


def _is_internal(name: str) -> bool:
    """Whether only code of the library itself can call a function: C++ functions, but no parallel regions."""
    return name.startswith("_Z") and "_omp_fn" not in name and ".omp_outlined" not in name


def _key(loop: CpuLoop) -> _LoopKey:
    return loop.file, loop.function, loop.begin


def _moved_floats(cpu: CpuProfile, loop: CpuLoop) -> int:
    """Floating-point instructions of a loop, with those that the compiler has moved behind its end; 0 if it
    spends no time there."""
    function = next((f for f in cpu.static.functions if (f.file, f.name) == (loop.file, loop.function)), None)
    if function is None or loop.share < (1 + _HOT) * _own_share(cpu, loop):
        return 0
    return function.mix.get("scalar_float", 0)


def _own_share(cpu: CpuProfile, loop: CpuLoop) -> float:
    return next(other.share for other in cpu.loops if _key(other) == _key(loop))


def folds_in_order(loop: CpuLoop) -> bool:
    """Whether a vector loop adds the lanes of its vectors one after the other, as compilers must without
    -ffast-math."""
    lanes = loop.bits // 32
    return lanes > 0 and loop.count("scalar_float") >= lanes and not loop.count("store", "double")


def own_calls(loop: CpuLoop) -> tuple[str, ...]:
    """Functions that the loop calls and that neither libm nor the OpenMP runtime provides."""
    return tuple(
        name
        for name in loop.calls
        if name not in loop.math and not name.startswith(("GOMP_", "omp_", "__kmpc_", "__aarch64_", "mem"))
    )


def arithmetic_ms(profile: Profile, cpu: CpuProfile) -> float:
    """Time that the arithmetic of the hot loops needs in good vector code, on all cores.

    Each loop is assumed to handle all outputs once. Of the longest vector loop, all instructions count that
    neither access memory nor branch; of the other loops, which a fused pass would include, only the
    arithmetic. Loops that store nothing (reductions combine their sums outside) and loops with double
    precision or divisions (good code avoids both) do not count.
    """
    per_second = _ISSUED * profile.ceilings.rates.get("fp32", 0.0) / (2 * cpu.lanes)
    if not per_second:
        return 0.0
    longest = arithmetic = 0.0
    for loop in with_outside_time(cpu):
        stores = loop.count("store")
        if loop.share >= _HOT and stores and loop.count("integer_division") and not loop.bits:
            vectors = profile.work.written_bytes / 4 / (stores * cpu.lanes)
            longest = max(longest, vectors * _VECTORIZED * _moved_floats(cpu, loop))
        if loop.share < _HOT or not stores or loop.count(*_AVOIDABLE) or loop.fixed_divisors:
            continue
        lanes = loop.bits // 32 or cpu.lanes
        scattered = min(stores, loop.strided_stores) if loop.bits else 0  # a lane each
        vectors = profile.work.written_bytes / 4 / ((stores - scattered) * lanes + scattered)
        arithmetic += vectors * loop.count("vector_float", "scalar_float")
        if loop.bits:
            others = loop.instructions - stores - loop.count("load", "branch")
            longest = max(longest, vectors * others)
    return 1e3 * max(longest, arithmetic) / per_second


def indexed_sums_ms(profile: Profile, cpu: CpuProfile) -> float:
    """Time that sums by index need on all cores; 0 if they do not take much of a call.

    No vector instruction adds by index. Each sum is assumed to read a float and a 64-bit index.
    """
    hot = [loop for loop in cpu.loops if loop.share >= _INDEXED and loop.indirect]
    if not any(loop.updates or loop.count("atomic") for loop in hot):
        return 0.0
    return 1e-6 * _INDEXED_SUM_NS * profile.work.read_bytes / 12 / cpu.cores
