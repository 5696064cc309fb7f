"""The operator graph: what an author without torch can read of a task."""

from __future__ import annotations

import pytest
from lab.written import source

from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import BadInput, Graph, Mode, Task


def graph(
    forward: str, inputs: str = "[torch.randn(4, 8)]", init: str = "pass", mode: Mode = "train"
) -> Graph:
    return operator_graph(Reference(Task(source(forward, inputs, init), mode=mode), "cpu", 0), 1)


def test_composite_operators_stay_whole_and_parameters_have_their_names() -> None:
    found = graph("return F.gelu(F.layer_norm(self.part(x[0]), (6,)))", init="self.part = nn.Linear(8, 6)")
    assert [node.op for node in found.nodes] == [
        "parameter",
        "parameter",
        "input",
        "aten.linear.default",
        "aten.layer_norm.default",
        "aten.gelu.default",
    ]
    weight, _, given, linear = found.nodes[:4]
    assert (weight.where, weight.shape, given.where, given.dtype) == ("part.weight", (6, 8), "0", "float32")
    assert linear.args[0] == {"value": given.name}
    assert found.outputs == (found.nodes[-1].name,) and found.single
    assert Graph.from_json(found.to_json()) == found


def test_the_tasks_mode_decides() -> None:
    init = "self.norm = nn.BatchNorm1d(8)"
    training = graph("return self.norm(x[0])", init=init, mode="train")
    assert any("batch_norm" in node.op and "no_training" not in node.op for node in training.nodes)
    evaluating = graph("return self.norm(x[0])", init=init, mode="eval")
    norm = next(node for node in evaluating.nodes if "batch_norm" in node.op)
    assert "no_training" in norm.op or norm.args[5] is False
    assert {"norm.running_mean", "norm.running_var"} <= {node.where for node in evaluating.nodes}


def test_a_reference_that_works_in_place_is_rewritten() -> None:
    found = graph("y = x[0] + 1; y.mul_(3); y[:, 0] = 0.5; return y")
    assert all("_." not in node.op for node in found.nodes)
    assert "aten.mul.Tensor" in {node.op for node in found.nodes}


def test_inputs_inside_lists_and_dicts_are_found_by_their_path() -> None:
    found = graph(
        "return x[0][1] + x[2]['scale']", "[[torch.randn(3), torch.randn(3)], 7, {'scale': torch.randn(3)}]"
    )
    assert [node.where for node in found.nodes if node.op == "input"] == ["0.0", "0.1", "2.scale"]


def test_several_outputs_and_infinity_survive() -> None:
    found = graph("v, i = x[0].masked_fill(x[0] > 1, float('-inf')).max(dim=-1); return v, i")
    assert not found.single and len(found.outputs) == 2
    fill = next(node for node in found.nodes if "masked_fill" in node.op)
    assert "-inf" in fill.args
    assert [node.dtype for node in found.nodes if node.op == "getitem"] == ["float32", "int64"]


@pytest.mark.parametrize(
    ("forward", "says"),
    [
        ("return x[0] * 2 if x[0].sum() > 0 else x[0]", "cannot be traced"),
        ("return x[0][x[0] > 0]", "depends on the values"),
        ("return {'a': x[0] + 1}", "tuple of tensors"),
        ("return x[0] + self.shift", "neither a parameter nor a persistent buffer"),
    ],
)
def test_what_has_no_graph_is_said_in_one_line(
    forward: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        graph(forward, init="self.shift = torch.arange(8.0)")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
