"""Samples where this process spends CPU time: a timer interrupts each thread, a handler records its address.

The sampler uses POSIX timers that signal the process's own threads, and a handler in native code. Unlike
hardware counters, it needs no permission.

A sample is weighted by the CPU time that its thread has used since its previous sample, so that sleeping has
no weight. A sample that finds the thread asleep counts as waiting, because the thread spun before it slept.
Timers on CPU time would need no weights, but they fire only at the OS kernel's ticks, 100 to 1000 times a
second, and calls of a few ticks synchronize with them. Threads that start after `running` was entered are not
sampled."""

from __future__ import annotations

import os
import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from kernelpro.lab.languages.cpp import cpp
from kernelpro.records.cpu_profile import CpuSamples

MARKER_SYMBOL = "kernelpro_sampling_begin"
"""A function of the sampler's own library, by which it is distinguished from the candidate's libraries."""
_STATES = ("work", "host", "wait")
_MAX_SAMPLES = 1 << 16
_PERIOD_NS = 1_000_003
"""About 1 ms for up to eight threads, proportionally more for more threads. A prime, so that samples do not
synchronize with periodic code."""
_OPENMP_LIBRARY = re.compile(r"lib(g|i)?omp[\d.-]")
_HOST_LIBRARY = re.compile(r"python|libffi|_ctypes|vdso|unknown")
"""The interpreter and its foreign-function layer, whose work threads cannot share."""
_SOURCE = r"""
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static int64_t *places, *threads, *spent;
static int64_t most, used;
static int64_t last[4096];
static timer_t timers[4096];
static int started;
static struct sigaction before;

static int64_t cpu_time(clockid_t clock) {
    struct timespec now = {0, 0};
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void note(int, siginfo_t* info, void* context) {
    ucontext_t* state = (ucontext_t*)context;
    // Asleep on a futex: the system call will be restarted, and its number is still in its register.
#if defined(__aarch64__)
    const uint32_t* code = (const uint32_t*)state->uc_mcontext.pc;
    const bool in_syscall = code[0] == 0xd4000001 || code[-1] == 0xd4000001;
    const bool asleep = in_syscall && state->uc_mcontext.regs[8] == SYS_futex;
    const bool woken = in_syscall && (int64_t)state->uc_mcontext.regs[0] == -EINTR;
#else
    const uint8_t* code = (const uint8_t*)state->uc_mcontext.gregs[REG_RIP];
    const int64_t rax = state->uc_mcontext.gregs[REG_RAX];
    const bool asleep = code[0] == 0x0f && code[1] == 0x05 && rax == SYS_futex;
    const bool woken = code[-2] == 0x0f && code[-1] == 0x05 && rax == -EINTR;
#endif
    const int64_t now = cpu_time(CLOCK_THREAD_CPUTIME_ID);
    int64_t* previous = last + info->si_value.sival_int;
    if (now - *previous < 1000) return;  // the thread slept all the time
    if (woken) {  // it slept (nanosleep, poll), and what it spent is the cost of waking it
        *previous = now;
        return;
    }
    const int64_t i = __atomic_fetch_add(&used, 1, __ATOMIC_RELAXED), me = syscall(SYS_gettid);
    if (i >= most) return;
    places[i] = (int64_t)code;
    threads[i] = asleep ? -me : me;
    spent[i] = now - *previous;
    *previous = now;
}

extern "C" int kernelpro_sampling_begin(int64_t* where, int64_t* who, int64_t* cost, int64_t room,
                                        const int64_t* tids, int64_t count, int64_t period) {
    places = where, threads = who, spent = cost, most = room, used = 0, started = 0;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = note;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    if (sigaction(SIGPROF, &action, &before)) return 1;
    for (int64_t i = 0; i < count && started < 4096; ++i) {
        struct sigevent event;
        memset(&event, 0, sizeof event);
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = SIGPROF;
        event._sigev_un._tid = (int)tids[i];
        event.sigev_value.sival_int = started;
        last[started] = cpu_time((clockid_t)((~(unsigned)tids[i]) << 3 | 6));  // that thread's CPU-time clock
        if (timer_create(CLOCK_MONOTONIC, &event, &timers[started])) continue;  // the thread has ended
        struct itimerspec every = {{0, period}, {0, period}};
        timer_settime(timers[started++], 0, &every, 0);
    }
    return started ? 0 : 2;
}

extern "C" int kernelpro_sampling_count(int64_t* count) {
    *count = used < most ? used : most;
    return 0;
}

extern "C" int kernelpro_sampling_end() {
    while (started) timer_delete(timers[--started]);
    // A last signal may be pending: its default action would end the process.
    if (before.sa_handler == SIG_DFL) before.sa_handler = SIG_IGN;
    return sigaction(SIGPROF, &before, 0);
}
"""


class CpuSampler:
    """Samples the threads of this process.

    The constructor builds the native part, which takes 0.1 s. Raises BuildError if there is no compiler.
    """

    def __init__(self) -> None:
        self._library = cpp(_SOURCE)
        self._addresses = torch.zeros(_MAX_SAMPLES, dtype=torch.int64)
        self._threads = torch.zeros(_MAX_SAMPLES, dtype=torch.int64)
        self._spent = torch.zeros(_MAX_SAMPLES, dtype=torch.int64)
        self._count = torch.zeros(1, dtype=torch.int64)

    @contextmanager
    def running(self, threads: Sequence[str]) -> Iterator[None]:
        """Sample these threads until the block ends. Raises LaunchError if no timer can be created."""
        tids = torch.tensor([int(name) for name in threads], dtype=torch.int64)
        period = _PERIOD_NS * max(1, len(threads) // 8)
        self._library.kernelpro_sampling_begin(
            self._addresses, self._threads, self._spent, _MAX_SAMPLES, tids, len(tids), period
        )
        try:
            yield
        finally:
            self._library.kernelpro_sampling_end()

    def count(self) -> int:
        """Return the number of samples so far."""
        self._library.kernelpro_sampling_count(self._count)
        return int(self._count)

    def summary(self) -> CpuSamples:
        """Return CPU time by module, thread and address. Addresses cover only libraries outside the system
        and Python."""
        sample_count = self.count()
        mappings = _memory_mappings()
        starts = [image[0] for image in mappings]
        system_prefixes = ("/usr/", "/lib", sys.prefix, sys.base_prefix, os.path.dirname(torch.__path__[0]))
        modules: Counter[str] = Counter()
        threads: dict[int, Counter[str]] = {}
        addresses: dict[str, Counter[str]] = {}
        columns = (column[:sample_count].tolist() for column in (self._addresses, self._threads, self._spent))
        for address, thread, spent in zip(*columns, strict=True):
            index = bisect_right(starts, address) - 1
            _, end, base, path = mappings[index] if index >= 0 else (0, 0, 0, "")
            path = path if address < end else ""
            name = Path(path).name or "unknown"
            state = (
                "wait"
                if thread < 0 or _OPENMP_LIBRARY.match(name)
                else "host"
                if _HOST_LIBRARY.search(name)
                else "work"
            )
            threads.setdefault(abs(thread), Counter())[state] += spent
            if state != "wait":
                modules[name] += spent
            if path.endswith(".so") and not path.startswith(system_prefixes):
                addresses.setdefault(name, Counter())[str(address - base)] += spent
        return CpuSamples(
            count=sample_count,
            modules=dict(modules.most_common()),
            threads={
                str(thread): {state: counts[state] for state in _STATES} for thread, counts in threads.items()
            },
            addresses={name: dict(counts) for name, counts in addresses.items()},
        )


def _memory_mappings() -> list[tuple[int, int, int, str]]:
    """Return the memory mappings of this process: begin, end, address of the file's first page, path."""
    mappings = []
    base: dict[str, int] = {}
    for row in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, inode, *path = row.split(maxsplit=5)
        begin, end = (int(part, 16) for part in span.split("-"))
        name = path[0] if path else ""
        if inode != "0" and int(offset, 16) == 0:
            base.setdefault(name, begin)
        mappings.append((begin, end, base.get(name, begin), name))
    return mappings
