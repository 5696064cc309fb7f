"""The first calls of vectorized functions are accurate in every forked process, with several threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.together

PROGRAM = """
import os, torch
from kernelpro.lab import vector_math
torch.set_num_threads(1)
threads = len(os.listdir("/proc/self/task"))
vector_math.initialize()
assert len(os.listdir("/proc/self/task")) == threads, "forks would lose others"
wrong = 0
for seed in range({processes}):
    if os.fork() == 0:
        torch.set_num_threads(2)
        values = torch.manual_seed(seed) and torch.randn(64, 256)
        first, second = torch.tanh(values + 0), torch.tanh(values + 0)
        os._exit(int((first - second).abs().max() > 1e-6))
    wrong += os.waitstatus_to_exitcode(os.wait()[1])
print(wrong)
"""


def wrong_processes(processes: int) -> int:
    program = PROGRAM.format(processes=processes)
    return int(subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE).stdout)


def test_the_first_call_is_accurate_in_forked_processes() -> None:
    assert wrong_processes(200) == 0


@pytest.mark.long
def test_the_first_calls_are_accurate_in_many_forked_processes() -> None:
    assert wrong_processes(2500) == 0
