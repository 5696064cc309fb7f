"""The judge's idle threads do not take cores from a timed call."""

from __future__ import annotations

import os
import time

import torch

from kernelpro.lab.measure.openmp import end_idle_threads


def test_idle_threads_end_and_start_again() -> None:
    data = torch.ones(1 << 22)
    before = len(os.listdir("/proc/self/task"))
    threads = torch.get_num_threads()
    torch.set_num_threads(max(2, threads))
    try:
        data.mul_(2)
        working = len(os.listdir("/proc/self/task"))
        assert working > 1
        end_idle_threads()
        spent = time.process_time()
        assert len(os.listdir("/proc/self/task")) < working
        time.sleep(0.05)
        assert time.process_time() - spent < 0.01, "nothing works in the background"
        data.mul_(2)
        assert float(data.sum()) == 4.0 * data.numel()
        assert len(os.listdir("/proc/self/task")) >= min(before, working)
    finally:
        torch.set_num_threads(threads)
