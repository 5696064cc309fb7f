"""References that are compiled ahead: which of them give a candidate."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kernelpro.lab.compile_ahead.compilers import AheadRequest, AheadResult
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
