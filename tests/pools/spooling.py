"""Small jobs for tests of spools, and workers as processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kernelpro.records import Candidate, Job, Options, Task

BAD = Path(__file__).parents[1] / "bad"
QUICK = Options(effort="quick", baselines=("eager_fp32",))
TASK = Task(
    """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1

def get_inputs():
    return [torch.randn(64, 1024)]

def get_init_inputs():
    return []
""",
    "relu",
)


def building(number: int) -> Job:
    """A job that a compiler does in a moment. Each is another one, so that nothing is found in a cache."""
    source = f"""
from kernelpro import runtime
lib = runtime.cpp(r'extern "C" int answer() {{ return {number}; }}')
"""
    return Job(f"build {number}", "build", candidate=Candidate(source, f"number {number}"), target="cpu")


def misbuilding(number: int) -> Job:
    """A job that a compiler refuses in a moment, with its number."""
    source = f"""
from kernelpro import runtime
lib = runtime.cpp(r'extern "C" int answer() {{ return number_{number}; }}')
"""
    return Job(f"build {number}", "build", candidate=Candidate(source, f"number {number}"), target="cpu")


def misspelt(number: int) -> Job:
    """A job that takes no time: the verdict names the line."""
    source = "\n" * (number - 1) + "this is no Python\n"
    return Job(f"line {number}", "judge", TASK, Candidate(source, f"line {number}"), "cpu", QUICK)


def judging(factor: str, name: str = "candidate") -> Job:
    head = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
    source = f"{head}        return torch.relu(x) * {factor} + 1\n"
    return Job(name, "judge", TASK, Candidate(source, name), "cpu", QUICK)


def wish(text: str) -> Job:
    """For a worker that does as its candidate says."""
    return Job(text, "judge", TASK, Candidate(text, text), "cpu", QUICK)


def stand_in(place: Path, *options: str) -> subprocess.Popen[str]:
    """A worker whose processes do as their candidates say, and need no torch."""
    idle = [sys.executable, str(Path(__file__).with_name("idle_worker.py"))]
    code = f"from kernelpro.pools import process; process.COMMAND = {idle!r}; from kernelpro.pools.spool.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, str(place), *options], stderr=subprocess.PIPE, text=True
    )


def worker(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kernelpro", "worker", str(folder), *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
