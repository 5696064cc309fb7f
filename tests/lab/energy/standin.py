"""A counter that adds up what the processes in our cells do, and two kernels that take the same time and not the same energy."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kernelpro.lab.energy import meter, track, window
from kernelpro.records import Candidate, Task

TASK = Task(
    """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2 + 1
def get_inputs():
    return [torch.randn(64, 1024)]
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
BUSY = "volatile float z = 0; while (now() < begun + 6) z = z + 1;"
ASLEEP = "double left = begun + 6 - now(); if (left > 0) usleep(1e3 * left);"


def kernel(rest: str = BUSY, head: str = "") -> Candidate:
    return Candidate(KERNEL.replace("REST", rest).replace("HEAD", head))


class Cells:
    """Counts what all processes below this one do, threads and descendants included."""

    name = "stand-in for RAPL"

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
    """Nanoseconds on a core, of all threads of the living descendants (the scheduler's own account)."""
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
    """The stand-in moves five times as often as an H200's counter: windows may be as much shorter. The machine may be busy."""
    monkeypatch.setattr(track, "SHORTEST_SECONDS", 0.4)
    monkeypatch.setattr(track, "FINEST", 0.03)
    monkeypatch.setattr(window, "_WARM_SECONDS", 0.1)
    monkeypatch.setattr(window, "_DWELL_SECONDS", 0.1)
    monkeypatch.setattr(window, "_LAG_SECONDS", 0.2)
    monkeypatch.setattr(meter, "_IDLE_SECONDS", 0.3)
    monkeypatch.setattr(meter, "_LONGEST", 20.0)
    monkeypatch.setattr(meter, "find", lambda target: Cells())
