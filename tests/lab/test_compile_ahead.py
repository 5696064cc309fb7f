"""References that are compiled ahead: which of them give a candidate."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelpro.lab.compile_ahead import compilers
from kernelpro.lab.compile_ahead.compilers import AheadCompilers, AheadRequest, AheadResult
from kernelpro.records import Task

SPLIT = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        y = x.exp().unsqueeze(1)
        torch._dynamo.graph_break()
        return (y + 1).squeeze(1)

def get_inputs():
    return [torch.rand(4, 8)]

def get_init_inputs():
    return []
"""


CONSTANT = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.min(x + 0.5, torch.tensor(0.0, device=x.device))

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return []
"""
ENDLESS = "while True: pass"


@pytest.mark.long  # imports the compiler twice
def test_one_that_never_ends_is_stopped_and_the_next_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "_TIMEOUT", 45.0)
    ahead = AheadCompilers(1)
    first, second = (ahead.submit(AheadRequest(Task(text, "t"), "cpu")) for text in (ENDLESS, CONSTANT))
    assert first.result().reason == "its process ended"
    assert "class ModelNew" in second.result().seed
    study = second.result().study
    assert study and any(node.op == "aten.full.default" for node in study.graph.nodes), "a constant"
    ahead.close()


@pytest.mark.long  # imports the compiler
def test_the_code_of_one_of_several_graphs_is_no_candidate() -> None:
    request = AheadRequest(Task(SPLIT, "split"), "cpu")
    command = [sys.executable, "-m", "kernelpro.lab.compile_ahead.process"]
    output = subprocess.run(
        command, input=request.dumps() + "\n", capture_output=True, text=True, timeout=120
    ).stdout
    result = AheadResult.from_json(json.loads(output))
    assert result.seed == ""
    assert "one graph" in result.reason
    assert result.eager_bytes


STARTS_ONE_AND_WAITS = """
import sys, time
from pathlib import Path
from kernelpro.lab.compile_ahead import AheadCompilers, AheadRequest
from kernelpro.records import Task
ahead = AheadCompilers(1, Path(sys.argv[1]))
ahead.submit(AheadRequest(Task("while True: pass", "t"), "cpu"))
while not ahead._processes:
    time.sleep(0.01)
(process,) = ahead._processes
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.long  # imports the compiler
def test_one_that_never_ends_does_not_outlive_a_worker_that_was_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", STARTS_ONE_AND_WAITS, str(log)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert worker.stdout
    pid = int(worker.stdout.readline())
    deadline = time.monotonic() + 100
    while "imports took" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    worker.kill()
    worker.wait()
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
