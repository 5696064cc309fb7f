"""torch.compile's code and the fastest baseline in a CUDA graph, among the first candidates."""

from __future__ import annotations

import pytest

from kernelpro.authors.cuda_graph import MIN_OPERATORS
from kernelpro.engine.task_facts import graphed_seeds
from kernelpro.records import BaselineSeed, Graph, Node, RunConfig, StudyData, Target, Task

SEEDS = (
    BaselineSeed("compile", "torch.compile", "class ModelNew(Module):\n    compiled = 1\n"),
    BaselineSeed("eager_tf32", "PyTorch", "class ModelNew(Model):\n    pass\n"),
)


def study(operators: int, where: str = "0") -> StudyData:
    nodes = [Node("x", "input", (4,), "float32", where=where)]
    nodes += [Node(f"n{i}", "aten.relu.default", (4,), "float32") for i in range(operators)]
    return StudyData(Graph(tuple(nodes), ("n0",)), seeds=SEEDS)


def names(data: StudyData, target: Target = "cuda", **baselines: float) -> list[str]:
    config = RunConfig(Task("class Model: pass"), target, "playbook")
    return [seed.name for seed in graphed_seeds(config, data, baselines or {"compile": 1.0})]


@pytest.mark.parametrize(
    ("eager", "expected"), [(2.0, ["torch.compile"]), (0.5, ["PyTorch", "torch.compile"])]
)
def test_the_compilers_code_and_the_fastest_baseline_are_captured(eager: float, expected: list[str]) -> None:
    graphed = [f"{name} in a CUDA graph" for name in expected]
    assert names(study(MIN_OPERATORS), compile=1.0, eager_tf32=eager) == graphed


def test_short_tasks_nested_inputs_and_cpus_have_none() -> None:
    assert names(study(MIN_OPERATORS - 1)) == []
    assert names(study(MIN_OPERATORS, "0.first")) == []
    assert names(study(MIN_OPERATORS), target="cpu") == []


def test_a_task_whose_operators_cannot_be_read_is_captured_too() -> None:
    unread = StudyData(graph_error="recurrent", seeds=SEEDS)
    assert names(unread, compile=1.0, eager_tf32=0.5)[0] == "PyTorch in a CUDA graph"
