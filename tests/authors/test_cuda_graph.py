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


@pytest.mark.parametrize(
    ("layers", "size", "expected"),
    [
        (1, 32, "none"),
        (MIN_OPERATORS, 32, "all"),
        (MIN_OPERATORS, 1400, "first"),
        (MIN_OPERATORS, 4096, "none"),
    ],
)
def test_programs_are_launched_as_graphs_where_launches_take_long(
    layers: int, size: int, expected: str
) -> None:
    """Products: each is a launch of its own. Their time grows with their size."""
    forward = "; ".join(f"a = torch.tanh(a @ b + {i})" for i in range(layers))
    task = make_task(f"{forward}; return a", f"torch.zeros({size}, {size}), torch.zeros({size}, {size})")
    assignment = Assignment(0, "seed", task, "cuda", "tf32", 0.0, {}, graph=operator_graph_of(task))
    drafts = Playbook().trusted_designs(assignment)
    graphed = [draft for draft in drafts if parse_design(draft.source).graph]
    assert all("torch.cuda.CUDAGraph()" in draft.source for draft in graphed)
    found = "none" if not graphed else "all" if len(graphed) == len(drafts) else "first"
    assert found == expected and (found != "first" or drafts[0] not in graphed)


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
