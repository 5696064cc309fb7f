"""Candidates whose kernels are launched as one CUDA graph."""

from __future__ import annotations

import pytest
import torch
from playbook_harness import make_task, operator_graph_of

from kernelpro.authors.author import Assignment
from kernelpro.authors.cuda_graph import MIN_OPERATORS, in_cuda_graph
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.authors.playbook.schedule.design import parse_design

NETWORK = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.layer(x)).relu() + 1
"""


def model_of(source: str) -> torch.nn.Module:
    names: dict[str, type[torch.nn.Module]] = {}
    exec(source, names)
    return names["ModelNew"]()


def test_the_model_is_wrapped_and_keeps_its_weights() -> None:
    source = in_cuda_graph(NETWORK)
    assert source and source.count("class ModelNew") == 1
    assert model_of(source).state_dict().keys() == model_of(NETWORK).state_dict().keys()


def test_a_source_without_a_model_has_no_graph() -> None:
    assert in_cuda_graph("x = 1") is None


def test_long_programs_are_also_launched_as_a_graph() -> None:
    """Many products: each is a launch of its own. The first draft of each form and language has no graph."""
    layers = "; ".join(f"a = torch.tanh(a @ b + {i})" for i in range(MIN_OPERATORS))
    for forward, expected in ((f"{layers}; return a", True), ("torch.tanh(a @ b)", False)):
        task = make_task(forward, "torch.randn(32, 32), torch.randn(32, 32)")
        graph = operator_graph_of(task)
        drafts = Playbook().seed_drafts(Assignment(0, "seed", task, "cuda", "tf32", 0.0, {}, graph=graph))
        graphed = [draft for draft in drafts if parse_design(draft.source).graph]
        assert bool(graphed) is expected and drafts[0] not in graphed
        assert all("torch.cuda.CUDAGraph()" in draft.source for draft in graphed)


@pytest.mark.gpu
def test_replays_follow_inputs_weights_and_statistics() -> None:
    source = in_cuda_graph(NETWORK)
    assert source
    plain, graphed = model_of(NETWORK).cuda(), model_of(source).cuda()
    graphed.load_state_dict(plain.state_dict())
    outputs = []
    for step in range(4):
        x = torch.randn(16 if step < 3 else 8, 8, device="cuda")
        if step == 2:
            for model in (plain, graphed):
                model.layer.weight.data = torch.full((8, 8), 0.5, device="cuda")
        with torch.no_grad():
            outputs.append((graphed(x), plain(x)))
    for output, expected in outputs:  # later calls do not overwrite them
        torch.testing.assert_close(output, expected)
    torch.testing.assert_close(graphed.state_dict(), plain.state_dict())
