"""Candidates whose convolutions use the fastest of cuDNN's algorithms."""

from __future__ import annotations

import pytest
import torch
from playbook_harness import make_task, operator_graph_of

from kernelpro.authors.author import Assignment
from kernelpro.authors.cuda_graph import in_cuda_graph
from kernelpro.authors.cudnn_search import with_cudnn_search
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.lab.judge import tripwires

NETWORK = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(2, 3, 3)

    def forward(self, x):
        self.searches = torch.backends.cudnn.benchmark
        if x.shape[1] != 2:
            raise ValueError
        return self.layer(x).relu()
"""


def model_of(source: str) -> torch.nn.Module:
    names: dict[str, type[torch.nn.Module]] = {}
    exec(source, names)
    return names["ModelNew"]()


def test_the_search_is_on_inside_forward_alone_even_after_an_error() -> None:
    source = with_cudnn_search(NETWORK)
    assert source and not torch.backends.cudnn.benchmark
    model, plain = model_of(source), model_of(NETWORK)
    plain.load_state_dict(model.state_dict())
    x = torch.randn(1, 2, 5, 5)
    torch.testing.assert_close(model(x), plain(x))
    assert model.searches and not torch.backends.cudnn.benchmark
    with pytest.raises(ValueError):
        model(x.repeat(1, 2, 1, 1))
    assert not torch.backends.cudnn.benchmark


def test_sources_without_convolutions_or_a_model_stay() -> None:
    assert with_cudnn_search(NETWORK.replace("nn.Conv2d(2, 3, 3)", "nn.Linear(2, 3)")) is None
    assert with_cudnn_search(NETWORK.replace("class ModelNew", "class Other")) is None


def test_a_search_can_be_captured_in_a_graph_and_passes_the_tripwires() -> None:
    searched = with_cudnn_search(NETWORK)
    assert searched
    for source in (in_cuda_graph(searched), with_cudnn_search(in_cuda_graph(NETWORK) or "")):
        assert source and source.count("class ModelNew") == 1
        assert model_of(source).state_dict().keys() == model_of(NETWORK).state_dict().keys()
        assert tripwires.check(source) is None


def test_the_playbook_searches_where_torch_computes_convolutions_on_a_gpu() -> None:
    task = make_task("F.relu(self.m(a)) + 1", "torch.randn(2, 16, 9, 9)", "self.m = nn.Conv2d(16, 20, 3)")
    graph = operator_graph_of(task)
    drafts = Playbook().seed_drafts(Assignment(0, "seed", task, "cuda", "tf32", 0.0, {}, graph=graph))
    calls = ["torch.conv2d(" in draft.source for draft in drafts]
    assert any(calls) and not all(calls)
    assert ["cudnn.benchmark = True" in draft.source for draft in drafts] == calls
    on_cpu = Playbook().seed_drafts(Assignment(0, "seed", task, "cpu", "fp32", 0.0, {}, graph=graph))
    assert not any("cudnn" in draft.source for draft in on_cpu)
