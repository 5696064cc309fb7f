"""A fake counter of the CPU time of sandboxed processes, and two kernels of equal time and different energy."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kernelpro.lab.energy import meter, updates, window
from kernelpro.records import Candidate, Task

TASK = Task(
    """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2 + 1
def get_inputs():
    return [torch.randn(24, 1024)]  # for one thread: no barrier waits for a thread whose core is taken
def get_init_inputs():
    return []
""",
    "tanh",
)
KERNEL = '''
import torch
from kernelpro import runtime
lib = runtime.cpp(r"""
#include <math.h>
#include <time.h>
#include <unistd.h>
static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec * 1e-6; }
extern "C" void go(const float* x, float* y, long n) {
    double begun = now();
    for (long i = 0; i < n; ++i) y[i] = tanhf(x[i]) * 2 + 1;
    double computed = now() - begun, end = begun + (computed < 3 ? 12 : 4 * computed);
    REST
}
""")
HEAD
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.go(x, y, x.numel())
        return y
'''
BUSY = "volatile float z = 0; while (now() < end) z = z + 1;"
ASLEEP = "double left = end - now(); if (left > 0) usleep(1e3 * left);"
"""Three quarters of a call at least, however slow the machine computes."""


def kernel(rest: str = BUSY, head: str = "") -> Candidate:
    return Candidate(KERNEL.replace("REST", rest).replace("HEAD", head))


class CpuTimeCounter:
    """Counts the CPU time of all descendants of this process: 5 W at idle, 100 W for each busy core."""

    name = "fake RAPL"

    def __init__(self) -> None:
        self._shown, self._joules = 0, 0.0

    def joules(self) -> float:
        now = int(time.perf_counter() / 0.02)
        if now != self._shown:
            self._shown, self._joules = now, 5 * time.perf_counter() + 100 * _busy_seconds()
        return self._joules

    def state(self) -> dict[str, int | None]:
        return {}


def _busy_seconds() -> float:
    """CPU time of all threads of the living descendants, by the scheduler's accounting."""
    total, queue = 0, [os.getpid()]
    while queue:
        pid = queue.pop()
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                queue += map(int, (task / "children").read_text().split())
                total += int((task / "schedstat").read_text().split()[0]) if pid != os.getpid() else 0
            except OSError:
                continue
    return total / 1e9


def quick_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten windows: the fake counter is updated five times as often as an H200's. The machine may be busy."""
    monkeypatch.setattr(updates, "MIN_WINDOW_SECONDS", 0.4)
    monkeypatch.setattr(updates, "MAX_UNCERTAINTY", 0.03)
    monkeypatch.setattr(window, "_WARM_SECONDS", 0.2)
    monkeypatch.setattr(window, "_CYCLE_SECONDS", 0.05)  # so that a warm-up calls all buffer sets
    monkeypatch.setattr(window, "_MAX_EXTRA_SECONDS", 0.1)
    monkeypatch.setattr(window, "_STOP_SLACK_SECONDS", 0.2)
    monkeypatch.setattr(meter, "_IDLE_SECONDS", 0.3)
    monkeypatch.setattr(meter, "_MAX_LOOP_TIME", 20.0)
    monkeypatch.setattr(meter, "find_counter", lambda target: CpuTimeCounter())
