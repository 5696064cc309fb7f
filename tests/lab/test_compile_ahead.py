"""References that are compiled ahead: which of them give a candidate."""

from __future__ import annotations

import json
import subprocess
import sys

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
