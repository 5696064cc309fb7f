"""The time account of a call on the CPU.

Samples of the program counter divide the time into interpreter, torch operators, the operating system and the
candidate's native code, and native code into innermost loops. A loop's time belongs to the first problem that
its machine code shows. Cores that idle while native code runs are a part of their own. The floor is
taken from the parts that do the task's work, in proportion.
"""

from __future__ import annotations

import re
from collections import defaultdict

from kernelpro.diagnose.account.loop_time import folds_in_order, own_calls, with_outside_time
from kernelpro.records import CpuLoop, CpuProfile, PartKind, Profile

Parts = defaultdict[PartKind, float]
_NO_WORK: tuple[PartKind, ...] = ("host", "operating_system", "idle_cores", "thread_coordination")
"""Parts that do none of the task's work."""
NATIVE: tuple[PartKind, ...] = (
    *("math_functions", "scalar_code", "strided_access", "indirect_access", "divisions"),
    *("dependency_chains", "vector_code", "native_code"),
)
"""Parts of native code that belong to the CPU alone."""
_SHARED = 1.2
"""Effective threads from which threads share the work."""
_WIDE_CHAIN = 4
"""Independent sums that hide the latency of an addition."""
_TAKES_PART = 0.1
"""CPU time of a thread over that of the busiest, from which it takes part in a call, or waits in it."""
SEVERAL_CALLS = 1.5
"""Native calls per call from which there are several."""
_SLOWS = 0.1
"""Share of their time in coordination, from which threads slow each other's work too."""
_LONG_CALL_MS = 0.1
"""Mean native call from which its time is the native code's. Shorter ones are mostly argument conversion."""
_ALWAYS = 0.25
"""Share of the system time that calls with one thread must have too."""
COPIED = 0.1
"""Share of a call in copies of tensors, from which its page faults are attributed to them: they allocate
memory."""
_COPIES = re.compile(r"clone|contiguous|copy_?|_to_copy")
_NO_CHAIN = 0.1
"""Time of other operators over that of the copies, up to which they do not form a chain."""
_FAULT_US, _CLEAR_US = 2.0, 1.0
"""Maximum cost of a page fault: the fault itself, and clearing 4 KiB. Measured: 1.8 us in total."""


def call_parts(profile: Profile, cpu: CpuProfile) -> Parts:
    """The parts of a call, in milliseconds."""
    parts = _sampled(profile, cpu) if cpu.sampled else _observed(profile.time_ms, cpu)
    working = {part: ms for part, ms in parts.items() if part not in _NO_WORK}
    total = sum(working.values())
    floor = min(profile.floor_ms, total)
    for part, ms in working.items():
        parts[part] -= floor * ms / total if total else 0.0
    parts["floor"] = floor
    return parts


def _sampled(profile: Profile, cpu: CpuProfile) -> Parts:
    call_ms, shares = profile.time_ms, cpu.shares
    parts: Parts = defaultdict(float)
    parts["operating_system"] = call_ms * system_share(cpu)
    parts["thread_coordination"] = coordination_share(profile, cpu) * (call_ms - parts["operating_system"])
    rest = call_ms - parts["operating_system"] - parts["thread_coordination"]
    own_libc = native_libc_share(cpu)
    library = shares.torch + shares.libc - own_libc
    scale = call_ms * sampled_scale(profile, cpu)
    if scale <= 0:
        parts["host"] = rest
        return parts
    parts["host"] = scale * shares.host
    native = scale * (shares.native + shares.libm + own_libc - libc_coordination_share(cpu))
    parts["torch_operators"] = max(0.0, rest - parts["host"] - native) if library > 0 else 0.0
    parts["idle_cores"] = native * (1 - (effective_threads(cpu) or float(cpu.cores)) / cpu.cores)
    _divide_native(parts, native - parts["idle_cores"], cpu)
    return parts


def sampled_scale(profile: Profile, cpu: CpuProfile) -> float:
    """Share of a call that a sampled share of 1 stands for, in native code and in the interpreter.

    Samples include page faults, and no waiting. If torch copies tensors, to fresh memory, its operators have
    the page faults, as far as their samples suffice; else all code has them alike.
    """
    shares, system = cpu.shares, system_share(cpu)
    total = shares.native + shares.libm + shares.torch + shares.libc + shares.host
    total -= libc_coordination_share(cpu)
    if total <= 0:
        return 0.0
    sampled = 1 - coordination_share(profile, cpu) * (1 - system)
    library = (shares.torch + shares.libc - native_libc_share(cpu)) / total
    if copied_share(cpu) < COPIED or library >= 1:
        return (sampled - system) / total
    return (sampled - max(0.0, system - library * sampled) / (1 - library)) / total


def copied_share(cpu: CpuProfile) -> float:
    """Share of a call in torch operators that copy a tensor; 0 if other operators form a chain with them."""
    run = cpu.dynamic
    operators = run.operators or ()
    copies = sum(operator.ms for operator in operators if _COPIES.fullmatch(operator.name))
    others = sum(operator.ms for operator in operators) - copies
    return copies / run.best_ms if run.best_ms and others <= _NO_CHAIN * copies else 0.0


def system_share(cpu: CpuProfile) -> float:
    """Share of the CPU time in the operating system, as far as page faults explain it.

    Linux divides CPU time into user and system time by sampling, which goes wrong on a busy machine.
    """
    run = cpu.dynamic
    if not run.cpu_ms or not run.system_ms:
        return 0.0
    if run.alone_ms and run.alone_ms < run.cpu_ms - (1 - _ALWAYS) * run.system_ms:
        return 0.0  # the best calls have no faults: the allocator kept their memory
    faults_ms = (run.minor_faults or 0.0) * (_FAULT_US + _CLEAR_US * cpu.page_bytes / 4096) / 1e3
    return min(1.0, run.system_ms / run.cpu_ms, faults_ms / run.cpu_ms)


def effective_threads(cpu: CpuProfile) -> float | None:
    """Mean number of threads that work at a time; None where calls were not observed.

    It is the work of all threads over that of the busiest. Other load on a core inflates the busiest thread's
    work, so two other estimates are lower bounds: the speed-up over a call with one thread, and that call's
    time over the part of it that the other threads leave. With a dynamic schedule, threads share the work
    evenly, whatever else the machine does.
    """
    run = cpu.dynamic
    if run.effective_threads is None:
        return None
    if run.effective_threads >= _SHARED and any("next" in name for name in coordination_calls(cpu)):
        return float(cpu.cores)
    effective = run.effective_threads
    if effective >= _SHARED and run.alone_ms and run.best_ms:
        others = sum(thread.work_ms for thread in run.threads[1:])
        busiest = max(run.alone_ms - others, run.alone_ms / cpu.cores)
        effective = max(effective, run.alone_ms / run.best_ms, run.alone_ms / busiest)
    return min(float(cpu.cores), effective)


def others_wait(cpu: CpuProfile) -> bool:
    """Whether other threads take part: the hot loop is in an OpenMP region, and a second thread runs."""
    times = [thread.cpu_ms for thread in cpu.dynamic.threads]
    in_region = bool(cpu.loops) and cpu.loops[0].parallel
    return in_region and len(times) > 1 and times[1] >= _TAKES_PART * times[0]


def _divide_native(parts: Parts, ms: float, cpu: CpuProfile) -> None:
    """Divide the time of native code by the problem of each innermost loop."""
    shares = defaultdict[PartKind, float](float, {"math_functions": cpu.shares.libm})
    for loop in with_outside_time(cpu):
        shares[_loop_part(loop)] += loop.share
    own = cpu.shares.native + cpu.shares.libm + native_libc_share(cpu) - libc_coordination_share(cpu)
    shares["native_code"] += max(0.0, own - sum(shares.values()))
    total = sum(shares.values())
    for part, share in shares.items():
        parts[part] += ms * share / total if total else 0.0


def _loop_part(loop: CpuLoop) -> PartKind:
    """What the time of an innermost loop is spent on."""
    floats = loop.count("scalar_float")
    computes = loop.count("scalar_float", "vector_float")
    if loop.math:
        return "math_functions"
    if loop.count("integer_division"):
        return "divisions"
    if loop.indirect and not loop.updates and not loop.count("atomic"):
        return "indirect_access"
    if loop.strided and 4 * loop.strided_bytes >= loop.streamed_bytes:
        return "strided_access"
    if computes and 2 * loop.count("double") >= computes:
        return "double_precision"
    serial = loop.chain and loop.accumulators < _WIDE_CHAIN
    if ((serial or loop.carried) and not loop.bits and not loop.count("atomic")) or folds_in_order(loop):
        return "dependency_chains"
    if (floats or own_calls(loop)) and not loop.bits:
        return "scalar_code"
    return "vector_code" if loop.bits else "native_code"


LOCKS = re.compile(
    r"GOMP_critical_(name_)?start|GOMP_atomic_start|__kmpc_critical|omp_set_lock|mutex_lock|mtx_lock"
)
"""Functions that take a lock."""
STARTS_THREADS = re.compile(r"pthread_create|_M_start_thread")
_COORDINATES = re.compile(
    r"GOMP_(parallel|loop_\w*next|barrier|sections_next)|__kmpc_(fork|critical|dispatch_next|barrier)\w*"
)


def coordination_calls(cpu: CpuProfile) -> list[str]:
    """Functions that a loop of the candidate calls to coordinate threads: parallel regions, chunks, locks,
    new threads."""
    return sorted(
        {
            name
            for function in cpu.static.functions
            for loop in function.loops
            for name in loop.calls
            if _COORDINATES.fullmatch(name) or LOCKS.search(name) or STARTS_THREADS.search(name)
        }
    )


def coordination_share(profile: Profile, cpu: CpuProfile) -> float:
    """Share of the threads' time in the OpenMP runtime, or in mutexes and new threads, where a loop calls
    them; or in the runtime where Python makes short native calls, which each wake the threads.

    Otherwise, a thread waits there only at the end of a call, or because of other load on the machine.
    Threads that coordinate also slow each other's work: cache lines move between cores, and prefetchers see
    pieces. So where they wait much, all time beyond that of one thread alone, divided among the threads, is
    coordination too. Memory that all cores share explains the time up to the floor.
    """
    threads = list(cpu.dynamic.samples.threads.values()) if cpu.dynamic.samples else []
    total = sum(sum(states.values()) for states in threads)
    if not total:
        return 0.0
    if not coordination_calls(cpu):
        return _wait_between_calls(cpu, threads)
    waiting = sum(states.get("wait", 0) for states in threads) / total
    sampled = waiting + (1 - waiting) * libc_coordination_share(cpu)
    if sampled < _SLOWS or not profile.time_ms:
        return sampled
    alone = undisturbed_ms(cpu) / (effective_threads(cpu) or float(cpu.cores))
    return max(sampled, 1 - max(alone, profile.floor_ms) / profile.time_ms)


def _wait_between_calls(cpu: CpuProfile, threads: list[dict[str, int]]) -> float:
    """Share of the calling thread's time in the OpenMP runtime, where Python makes several short native
    calls. In long ones, it waits because the work is divided unevenly."""
    run = cpu.dynamic
    calls = run.native_calls or 0.0
    if calls < SEVERAL_CALLS or (run.native_ms or 0.0) >= _LONG_CALL_MS * calls:
        return 0.0
    caller = max(threads, key=lambda states: states.get("host", 0))
    return caller.get("wait", 0) / max(1, sum(caller.values()))


def undisturbed_ms(cpu: CpuProfile) -> float:
    """CPU time of a call with one thread, which waits for no other, without what it spends on coordination:
    opening regions, fetching chunks, taking free locks. Infinite if it was not measured."""
    run = cpu.dynamic
    if not run.alone_ms:
        return float("inf")
    samples = run.alone_samples
    total = sum(sum(states.values()) for states in samples.threads.values()) if samples else 0
    if not samples or not total:
        return run.alone_ms
    runtime = sum(states.get("wait", 0) for states in samples.threads.values())
    if any("next" not in name for name in coordination_calls(cpu)):  # they use the C library
        runtime += sum(ns for name, ns in samples.modules.items() if name.startswith("libc."))
    return run.alone_ms * (1 - runtime / total)


def native_libc_share(cpu: CpuProfile) -> float:
    """Share of the samples in the C library, called by the candidate's native code: copies, fills, memory,
    threads, locks. The rest of the C library's time is torch's."""
    run, shares = cpu.dynamic, cpu.shares
    if not run.native_calls or not run.native_ms or not run.call_ms:
        return 0.0
    if run.native_ms < _LONG_CALL_MS * run.native_calls:
        return 0.0
    inside = min(1.0, run.native_ms / run.call_ms)
    return min(shares.libc, max(0.0, inside - shares.native - shares.libm))


def libc_coordination_share(cpu: CpuProfile) -> float:
    """The same, where a loop opens parallel regions, takes locks or starts threads, which all end in the C
    library: what else it calls there costs little beside that."""
    coordinates = any("next" not in name for name in coordination_calls(cpu))
    return native_libc_share(cpu) if coordinates else 0.0


def _observed(call_ms: float, cpu: CpuProfile) -> Parts:
    """Without samples: page faults, then native code, torch operators and the rest, in proportion."""
    run = cpu.dynamic
    parts: Parts = defaultdict(float)
    native = min(1.0, run.native_ms / run.call_ms) if run.native_ms and run.call_ms else 0.0
    operators = sum(operator.ms for operator in run.operators or ())
    torch = min(1 - native, operators / run.best_ms) if run.best_ms else 0.0
    parts["operating_system"] = call_ms * system_share(cpu)
    rest = call_ms - parts["operating_system"]
    parts["native_code"], parts["torch_operators"] = rest * native, rest * torch
    parts["host"] = rest * (1 - native - torch)
    return parts


def part_lines(cpu: CpuProfile, part: PartKind, limit: int = 2) -> tuple[str, ...]:
    """The innermost loops of a part, longest first."""
    lines = (loop.where for loop in cpu.loops if loop.where and _loop_part(loop) == part)
    return tuple(dict.fromkeys(lines))[:limit]
