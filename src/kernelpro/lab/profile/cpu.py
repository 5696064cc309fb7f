"""The profile of a candidate on the CPU: its machine code, the time of each loop, and the work of each
thread.

`analyze` reads the built libraries; it does not run them, and works in any process. `observe_calls` measures
calls in the process that holds the candidate. `cpu_shares.build_profile` combines both. The records and their
fields are in kernelpro/records/cpu_profile.py."""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import torch

from kernelpro.lab.languages.native import NATIVE_CALLS, BuildError, LaunchError
from kernelpro.lab.profile import cpu_code, cpu_remarks
from kernelpro.lab.profile.cpu_instructions import CpuInstruction
from kernelpro.lab.profile.cpu_operators import measure_operators
from kernelpro.lab.profile.cpu_sampler import MARKER_SYMBOL, CpuSampler
from kernelpro.lab.profile.perf_counters import PerfCounters
from kernelpro.records import Skipped
from kernelpro.records.cpu_profile import CpuCode, CpuRun, CpuSamples, ThreadTime, VectorizationRemark

_WARM_SECONDS = 0.05
"""Several ticks of the OS kernel, which updates the CPU time of running threads only at a tick."""
_TAKES_PART = 0.03
"""Threads with at least this share of the busiest thread's CPU time are sampled. A signal would wake the
sandbox's own thread, which waits for messages, and find it at work in libc."""
_MIN_ROUNDS = 4
_TARGET_SAMPLES = 500
"""With this many samples, a share of 10 % is known to within 2 %."""


def analyze(
    files: Mapping[str, bytes],
    sources: Mapping[str, str],
    commands: Mapping[str, Sequence[str]] | None = None,
) -> tuple[CpuCode, list[Skipped]]:
    """Analyze shared libraries (`files`) and the C++ sources they were built from (`sources`), both by name.

    `commands`: the build commands of sources, by name; the default command for others. Steps whose tools are
    missing are returned as skipped."""
    remarks: list[VectorizationRemark] = []
    skipped: list[Skipped] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        code: dict[str, dict[str, list[CpuInstruction]]] = {}
        for name, content in files.items():
            (folder / Path(name).name).write_bytes(content)
            try:
                code[name] = cpu_code.disassemble(folder / Path(name).name)
            except OSError as error:
                skipped.append(Skipped(f"machine code of {Path(name).name}", str(error), "install binutils"))
        code = {name: functions for name, functions in code.items() if MARKER_SYMBOL not in functions}
        for name, source in sources.items():
            file_name = Path(name).name
            try:
                library, output = cpu_remarks.compile_with_remarks(
                    source, file_name, (commands or {}).get(name, ()), folder
                )
                rebuilt = cpu_code.disassemble(library)
            except OSError as error:
                enable = "install g++ or clang++" if isinstance(error, cpu_remarks.NoCompiler) else ""
                skipped.append(Skipped(f"vectorization remarks for {name}", str(error), enable))
                continue
            opcodes = _opcode_sequence(rebuilt)
            match = next((file for file, body in code.items() if _opcode_sequence(body) == opcodes), None)
            if match is None and files:
                reason = "no library was built from this source with these flags"
                skipped.append(Skipped(f"lines and remarks of {name}", reason))
                continue
            code[match or name] = rebuilt
            remarks += cpu_remarks.parse(output, file_name)
    functions = tuple(
        cpu_code.analyze_function(Path(file).name, name, instructions)
        for file, body in code.items()
        for name, instructions in body.items()
        if instructions
    )
    return CpuCode(functions, tuple(remarks)), skipped


def _opcode_sequence(code: Mapping[str, Sequence[CpuInstruction]]) -> dict[str, list[tuple[int, str]]]:
    return {name: [(i.address, i.name) for i in body] for name, body in code.items()}


def observe_calls(call: Callable[[], object], seconds: float = 1.0) -> tuple[CpuRun, list[Skipped]]:
    """Measure calls in the candidate's process for about `seconds`, or up to `3 * seconds` if samples are
    rare.

    `call` runs at least six times.
    """
    skipped: list[Skipped] = []
    counters, sampler = PerfCounters(), None
    try:
        sampler = CpuSampler()  # before the warm calls: its buffers may take memory that they reuse
    except (BuildError, OSError) as error:
        skipped.append(Skipped("CPU samples", str(error)[:300], "install g++ or clang++"))
    call()
    warm_start, started = _thread_seconds(), time.perf_counter()
    while time.perf_counter() - started < _WARM_SECONDS:
        call()
    warm = {thread: spent - warm_start.get(thread, 0.0) for thread, spent in _thread_seconds().items()}
    least = _TAKES_PART * max(warm.values(), default=0.0)
    busy_threads = [thread for thread, spent in warm.items() if spent > least]
    call_seconds: list[float] = []
    faults: list[int] = []
    native_seconds: list[float] = []
    native_calls = 0
    with ExitStack() as stack:
        stack.enter_context(_pinned_threads(busy_threads))
        stack.enter_context(counters.running())
        if sampler is not None:
            try:
                stack.enter_context(sampler.running(busy_threads))
            except LaunchError as error:
                skipped.append(Skipped("CPU samples", str(error)))
                sampler = None
        threads_before, usage_before = _thread_seconds(), resource.getrusage(resource.RUSAGE_SELF)
        started = time.perf_counter()
        while (now := time.perf_counter()) - started < 3 * seconds:
            if now - started >= seconds and (sampler is None or sampler.count() >= _TARGET_SAMPLES):
                break
            # the sampler's own calls are native too
            meter_seconds, meter_calls = NATIVE_CALLS.seconds, NATIVE_CALLS.calls
            faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            call()
            call_seconds.append(time.perf_counter() - now)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before)
            native_seconds.append(NATIVE_CALLS.seconds - meter_seconds)
            native_calls += NATIVE_CALLS.calls - meter_calls
        usage, threads_after = resource.getrusage(resource.RUSAGE_SELF), _thread_seconds()
    calls, wall = len(call_seconds), sum(call_seconds)
    user, system = usage.ru_utime - usage_before.ru_utime, usage.ru_stime - usage_before.ru_stime
    samples = sampler.summary() if sampler else None
    if counters.skipped:
        skipped.append(counters.skipped)
    spent = {thread: after - threads_before.get(thread, 0.0) for thread, after in threads_after.items()}
    threads, effective_threads = _thread_times(spent, user + system, wall, calls, samples)
    with sampler.running([str(threading.get_native_id())]) if sampler else nullcontext():
        alone_ms, flushed_ms = _single_thread_ms(call, seconds / 4)
    alone_samples = replace(sampler.summary(), addresses={}) if sampler and alone_ms is not None else None
    run = CpuRun(
        calls=calls,
        call_ms=1e3 * statistics.median(call_seconds),
        best_ms=1e3 * min(call_seconds),
        native_ms=1e3 * statistics.median(native_seconds),
        native_calls=native_calls / calls,
        user_ms=1e3 * user / calls,
        system_ms=1e3 * system / calls,
        cpu_ms=1e3 * (user + system) / calls,
        concurrency=(user + system) / wall,
        minor_faults=statistics.median(faults),  # the allocator's memory grows in some calls
        voluntary_switches=(usage.ru_nvcsw - usage_before.ru_nvcsw) / calls,
        involuntary_switches=(usage.ru_nivcsw - usage_before.ru_nivcsw) / calls,
        threads=threads,
        effective_threads=effective_threads,
        alone_ms=alone_ms,
        flushed_ms=flushed_ms,
        alone_samples=alone_samples,
        operators=measure_operators(call),
        samples=samples,
        counters={name: value / calls for name, value in counters.values.items()},
    )
    return run, skipped


@contextmanager
def _pinned_threads(threads: Sequence[str]) -> Iterator[None]:
    """Pin each thread to a core of its own. On a busy machine the scheduler may keep all on one core."""
    cores = sorted(os.sched_getaffinity(0))
    before = {}
    for index, thread in enumerate(sorted(threads, key=int)):
        with suppress(OSError):  # the thread has ended, or the sandbox forbids it
            before[int(thread)] = os.sched_getaffinity(int(thread))
            os.sched_setaffinity(int(thread), {cores[index % len(cores)]})
    try:
        yield
    finally:
        for ended, mask in before.items():
            with suppress(OSError):
                os.sched_setaffinity(ended, mask)


def _thread_seconds() -> dict[str, float]:
    """Return the CPU time in seconds that each thread has used so far."""
    seconds = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            seconds[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            try:
                fields = (task / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # the thread has ended
            seconds[task.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def _thread_times(
    spent: Mapping[str, float], total: float, wall: float, calls: int, samples: CpuSamples | None
) -> tuple[tuple[ThreadTime, ...], float]:
    """Return the times of each thread, busiest first, and the effective number of threads.

    A thread's work is its CPU time multiplied by the share of its samples that are neither in the OpenMP
    runtime, where threads spin, nor in the interpreter. The effective number of threads is the sum of all
    work over the work of the busiest thread."""
    rows = []
    for thread, seconds in spent.items():
        counts = samples.threads.get(thread, {}) if samples else {}
        sampled = sum(counts.values())
        rows.append((seconds * (counts["work"] / sampled if sampled else 1.0), seconds))
    rows.sort(reverse=True)
    busiest = rows[0][0] if rows else 0.0
    effective = sum(work for work, _ in rows) / busiest if busiest > 0 else 1.0
    if (
        sum(spent.values()) < 0.8 * total
    ):  # threads that have ended did much of the work: only their sum is known
        effective = max(effective, total / wall)
    times = tuple(
        ThreadTime(1e3 * cpu / calls, 1e3 * work / calls) for work, cpu in rows if cpu > 0.01 * rows[0][1]
    )
    return times, effective


def _single_thread_ms(call: Callable[[], object], seconds: float) -> tuple[float | None, float | None]:
    """Return the least CPU time of a call with one thread in ms: as it is, and with subnormal numbers flushed
    to zero. Either is None if it cannot be measured; both are if torch uses only one thread anyway.

    torch's setting also limits the OpenMP threads of the candidate. On a busy machine, the duration of a call
    would be longer than its CPU time. The two modes take turns.
    """
    count = torch.get_num_threads()
    if count < 2:
        return None, None
    torch.set_num_threads(1)
    modes = (False, True) if torch.set_flush_denormal(True) else (False,)
    best = dict.fromkeys(modes, float("inf"))
    try:
        started, rounds = time.perf_counter(), 0
        while rounds < _MIN_ROUNDS or time.perf_counter() - started < seconds:
            for flush in modes:
                torch.set_flush_denormal(flush)
                spent = time.process_time()
                call()
                best[flush] = min(best[flush], time.process_time() - spent)
            rounds += 1
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(count)
    return 1e3 * best[False], 1e3 * best[True] if True in best else None
