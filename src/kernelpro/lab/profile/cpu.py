"""Profile of a candidate on the CPU: what its machine code is like, where its time goes, and how its threads share it.

`analyse` reads the built libraries (any process, no run), `observe` watches calls in the process that holds the
candidate, `join` puts both together into `Profile.cpu`:

    {"cores": 2, "vector_bits": 128, "machine": "aarch64", "page_bytes": 4096,
     "static": {"functions": [{"file", "name", "begin", "end", "instructions", "mix", "calls", "loops": [...]}],
                "remarks": [{"file", "line", "reason"}],           # loops without vector code, and why
                "skipped": [{"what", "why", "enable"}]},
     "dynamic": {"calls", "call_ms" (median), "best_ms", "native_ms" (inside authored functions, of a call; median), "native_calls",
                 "user_ms", "system_ms", "cpu_ms", "concurrency" (CPU seconds per wall second),
                 "minor_faults", "voluntary_switches", "involuntary_switches",      # all of a call
                 "threads": [{"cpu_ms", "work_ms"}],      # busiest first; work excludes waiting and Python
                 "effective_threads",                     # sum of work over the busiest thread's: how many threads' worth was got
                 "alone_ms",                              # best call with one OpenMP thread; absent with one core
                 "operators": [{"name", "count", "ms"}],  # torch's, of a call, longest first (cpu_operators)
                 "samples": {...},                        # see cpu_samples.Sampler.summary
                 "counters": {"cycles", "instructions", "cache_references", "cache_misses", "branches", "branch_misses"},
                 "skipped": [...]},
     "sampled": True,            # whether shares below were measured; else estimated from the static cost of each loop
     "shares": {"native", "math" (libm), "torch", "memory" (libc: copies, fills, allocation), "host" (interpreter and the rest)},
     "functions": [{"name", "share"}],      # the candidate's own, where they were sampled
     "loops": [{"file", "function", "where": "kernel.cpp:12", "text", "share", "begin", "end", "instructions", "mix", "bits",
                "calls", "math" (functions of libm that it calls),
                "strided", "strided_bytes", "streamed", "streamed_bytes", "chain", "accumulators", "fixed_divisors",
                "updates", "remainder", "parallel", "reasons"}],
     "sweeps": [{"where", "function", "share"}]}      # outermost loops, with what they call: each is a walk over the data

Loops are the innermost ones, by share. Of a loop: `mix` counts instructions by kind (cpu_code.KINDS), `bits` is the width of its
vector arithmetic (0: scalar), `strided` and `streamed` count memory accesses that jump far (cpu_code.FAR_BYTES) or not,
`chain` is the longest scalar sum that waits for itself within one turn and `accumulators` how many such sums there are,
`fixed_divisors` divisions by a value that does not change, `updates` values that it reads, changes and writes back,
`remainder` whether it is the scalar rest of a loop that also exists as vector code, `reasons` why the compiler left it scalar.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from kernelpro.lab.languages.native import METER, BuildError, LaunchError
from kernelpro.lab.profile import cpu_code, cpu_operators, cpu_remarks
from kernelpro.lab.profile.perf_counters import PerfCounters
from kernelpro.lab.profile.cpu_instructions import CpuInstruction
from kernelpro.lab.profile.cpu_shares import build_profile
from kernelpro.lab.profile.cpu_sampler import MARKER_SYMBOL, CpuSampler
from kernelpro.records import Skipped

__all__ = ["analyze", "build_profile", "observe_calls"]

_WARM_SECONDS = 0.05
"""Several ticks of the kernel, which brings the CPU time of running threads up to date no more often."""
_MIN_SAMPLES = 500
"""A share of a tenth is then known to within 2 %."""


def analyze(
    files: Mapping[str, bytes],
    sources: Mapping[str, str],
    commands: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """The static half: `files` are shared libraries by name, `sources` C++ texts by name, `commands` what each of those was
    built with, where it is not the usual.

    Never raises for what a machine lacks: that is in `skipped`.
    """
    functions: list[dict[str, Any]] = []
    remarks: list[dict[str, Any]] = []
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
        code = {name: body for name, body in code.items() if MARKER_SYMBOL not in body}
        for name, source in sources.items():
            try:
                library, text = cpu_remarks.compile_with_remarks(
                    source, Path(name).name, (commands or {}).get(name, ()), folder
                )
                rebuilt = cpu_code.disassemble(library)
            except OSError as error:
                enable = "install g++ or clang++" if isinstance(error, cpu_remarks.NoCompiler) else ""
                skipped.append(Skipped(f"compiler's remarks on {name}", str(error), enable))
                continue
            matching_file = next(
                (file for file, body in code.items() if _opcode_sequence(body) == _opcode_sequence(rebuilt)),
                None,
            )
            if matching_file is None and not files:
                matching_file = name
            if matching_file is None:
                skipped.append(
                    Skipped(
                        f"lines and remarks of {name}", "no library was built from it with the usual flags"
                    )
                )
                continue
            code[matching_file] = rebuilt
            found = cpu_remarks.parse(text, Path(name).name)
            remarks += [
                {"file": Path(name).name, "line": remark.line, "reason": remark.reason} for remark in found
            ]
    for name, body in code.items():
        functions += [
            {"file": Path(name).name} | cpu_code.analyze_function(function, walked)
            for function, walked in body.items()
            if walked
        ]
    return {"functions": functions, "remarks": remarks, "skipped": [s.to_json() for s in skipped]}


def _opcode_sequence(code: Mapping[str, Sequence[CpuInstruction]]) -> dict[str, list[tuple[int, str]]]:
    return {name: [(i.address, i.name) for i in body] for name, body in code.items()}


def observe_calls(call: Callable[[], object], seconds: float = 1.0) -> dict[str, Any]:
    """The dynamic half: calls in the candidate's process for about `seconds`, up to three times that where samples
    come slowly. `call` runs at least six times."""
    skipped: list[Skipped] = []
    call()
    warm_start, started = _thread_seconds(), time.perf_counter()
    while time.perf_counter() - started < _WARM_SECONDS:
        call()
    busy_threads = [
        thread for thread, spent in _thread_seconds().items() if spent > warm_start.get(thread, 0.0)
    ]
    counters, sampler = PerfCounters(), None
    try:
        sampler = CpuSampler()
    except (BuildError, OSError) as error:
        skipped.append(Skipped("samples of where time goes", str(error)[:300], "install g++ or clang++"))
    call_seconds: list[float] = []
    with ExitStack() as stack:
        stack.enter_context(_pinned_threads(busy_threads))
        stack.enter_context(counters.running())
        if sampler is not None:
            try:
                stack.enter_context(sampler.running(busy_threads))
            except LaunchError as error:
                skipped.append(Skipped("samples of where time goes", str(error)))
                sampler = None
        threads, usage = _thread_seconds(), resource.getrusage(resource.RUSAGE_SELF)
        native_seconds: list[float] = []
        native_calls = 0
        started = time.perf_counter()
        while (now := time.perf_counter()) - started < 3 * seconds:
            if now - started >= seconds and (sampler is None or sampler.count() >= _MIN_SAMPLES):
                break
            native, before = (
                METER.seconds,
                METER.calls,
            )  # around the call alone: the sampler is native as well
            call()
            call_seconds.append(time.perf_counter() - now)
            native_seconds.append(METER.seconds - native)
            native_calls += METER.calls - before
        after, spent = resource.getrusage(resource.RUSAGE_SELF), _thread_seconds()
    calls, wall = len(call_seconds), sum(call_seconds)
    user, system = after.ru_utime - usage.ru_utime, after.ru_stime - usage.ru_stime
    samples = sampler.summary() if sampler else {}
    if counters.skipped:
        skipped.append(counters.skipped)
    result: dict[str, Any] = {
        "calls": calls,
        "call_ms": 1e3 * statistics.median(call_seconds),
        "best_ms": 1e3 * min(call_seconds),
        "native_ms": 1e3 * statistics.median(native_seconds),
        "native_calls": native_calls / calls,
        "user_ms": 1e3 * user / calls,
        "system_ms": 1e3 * system / calls,
        "cpu_ms": 1e3 * (user + system) / calls,
        "concurrency": (user + system) / wall,
        "minor_faults": (after.ru_minflt - usage.ru_minflt) / calls,
        "voluntary_switches": (after.ru_nvcsw - usage.ru_nvcsw) / calls,
        "involuntary_switches": (after.ru_nivcsw - usage.ru_nivcsw) / calls,
        "operators": cpu_operators.measure_operators(call),
        "samples": samples,
        "counters": {name: value / calls for name, value in counters.values.items()},
    }
    result |= _thread_times(
        {t: s - threads.get(t, 0.0) for t, s in spent.items()}, user + system, wall, calls, samples
    )
    result |= _single_thread_time(call, seconds / 4)
    return result | {"skipped": [s.to_json() for s in skipped]}


@contextmanager
def _pinned_threads(threads: Sequence[str]) -> Iterator[None]:
    """Each of these threads on a core of its own: on a busy machine the scheduler may keep all of them on one."""
    cores = sorted(os.sched_getaffinity(0))
    before = {}
    for index, thread in enumerate(sorted(threads, key=int)):
        with suppress(OSError):  # the thread has ended, or a sandbox forbids it
            before[int(thread)] = os.sched_getaffinity(int(thread))
            os.sched_setaffinity(int(thread), {cores[index % len(cores)]})
    try:
        yield
    finally:
        for ended, mask in before.items():
            with suppress(OSError):
                os.sched_setaffinity(ended, mask)


def _thread_seconds() -> dict[str, float]:
    """CPU time of each thread so far."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            try:
                fields = (task / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # the thread has ended
            found[task.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _thread_times(
    spent: Mapping[str, float], total: float, wall: float, calls: int, samples: Mapping[str, Any]
) -> dict[str, Any]:
    """Work of each thread: its CPU time by the share of its samples that lay neither in OpenMP's runtime, where threads
    wait busily, nor in the interpreter."""
    rows = []
    for thread, seconds in spent.items():
        counts = samples.get("threads", {}).get(thread, {})
        seen = sum(counts.values())
        rows.append((seconds * (counts["work"] / seen if seen else 1.0), seconds))
    rows.sort(reverse=True)
    busiest = rows[0][0] if rows else 0.0
    effective = sum(work for work, _ in rows) / busiest if busiest > 0 else 1.0
    if (
        sum(spent.values()) < 0.8 * total
    ):  # most of the work was done by threads that have ended: only the sum is known
        effective = max(effective, total / wall)
    return {
        "threads": [
            {"cpu_ms": 1e3 * s / calls, "work_ms": 1e3 * w / calls} for w, s in rows if s > 0.01 * rows[0][1]
        ],
        "effective_threads": effective,
    }


def _single_thread_time(call: Callable[[], object], seconds: float) -> dict[str, float]:
    """The best call with one OpenMP thread (torch's setting reaches the runtime that candidates share with it)."""
    count = torch.get_num_threads()
    if count < 2:
        return {}
    torch.set_num_threads(1)
    try:
        best, begun = float("inf"), time.perf_counter()
        while (now := time.perf_counter()) - begun < seconds:
            call()
            best = min(best, time.perf_counter() - now)
    finally:
        torch.set_num_threads(count)
    return {"alone_ms": 1e3 * best}
