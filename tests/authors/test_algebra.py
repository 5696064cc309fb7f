"""Algebra on the operator graph: each rule where it applies, and where it must not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from playbook_harness import make_task

from kernelpro.authors.playbook.algebra.simplify import simplify
from kernelpro.lab import tree
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Graph, Mode, Task


def evaluate(graph: Graph, inputs: list[Any], state: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of a graph, operator by operator."""
    values: dict[str, Any] = {}

    def resolve(argument: Any) -> Any:
        if isinstance(argument, dict) and "value" in argument:
            return values[argument["value"]]
        if isinstance(argument, (list, tuple)):
            return [resolve(item) for item in argument]
        return float(argument) if argument in ("inf", "-inf") else argument

    for node in graph.nodes:
        if node.op == "input":
            values[node.name] = inputs[int(node.where)]
        elif node.op == "parameter":
            values[node.name] = state[node.where]
        elif node.op == "getitem":
            values[node.name] = resolve(node.args[0])[node.args[1]]
        else:
            _, name, overload = node.op.split(".")
            call = getattr(getattr(torch.ops.aten, name), overload)
            kwargs = {
                k: resolve(v) for k, v in node.kwargs.items() if k not in ("device", "pin_memory", "dtype")
            }
            values[node.name] = call(*map(resolve, node.args), **kwargs)
        if node.op not in ("input", "parameter") and isinstance(values[node.name], torch.Tensor):
            assert tuple(values[node.name].shape) == node.shape, node
    return [values[name] for name in graph.outputs]


def rules(task: Task, scale: float = 1.0) -> list[str]:
    """The rules that apply to a task, after both graphs were found to agree on its inputs."""
    reference = Reference(task, "cpu", 0)
    graph = operator_graph(reference, 1)
    simplified, steps = simplify(graph)
    form, leaves = reference.inputs(1)
    inputs = tree.unflatten(
        form, [leaf.double() * scale if leaf.is_floating_point() else leaf for leaf in leaves]
    )
    state = {name: t.double() if t.is_floating_point() else t for name, t in reference.state().items()}
    expected, computed = (evaluate(g, inputs, dict(state)) for g in (graph, simplified))
    for one, other in zip(expected, computed, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-8, check_dtype=False)
    assert len(simplified.outputs) == len(graph.outputs)
    assert all(step.reason for step in steps)
    return [step.rule for step in steps]


LINEAR = "self.m = nn.Linear(24, 36)"
BEFORE = "reduction before product"


@pytest.mark.parametrize(
    ("forward", "inputs", "init"),
    [
        ("self.m(a).sum(1, keepdim=True)", "torch.randn(5, 24)", LINEAR),
        ("(self.m(a) / 2 * 1.5 + 3).sum(dim=1)", "torch.randn(5, 24)", LINEAR),
        ("torch.mean(self.m(a) - self.s, dim=1, keepdim=True)", "torch.randn(5, 24)",
         f"{LINEAR}; self.s = nn.Parameter(torch.randn(36))"),
        ("(self.s - self.m(a)).mean((0, 1))", "torch.randn(5, 24)",
         f"{LINEAR}; self.s = nn.Parameter(torch.randn(36))"),
        ("(self.m(a) * self.s).sum(-1)", "torch.randn(2, 5, 24)",
         f"{LINEAR}; self.s = nn.Parameter(torch.randn(5, 1))"),
        ("self.m(a).sum(1)", "torch.randn(3, 5, 24)", LINEAR),
        ("torch.matmul(a, b).sum(-1)", "torch.randn(6, 7), torch.randn(7, 8)", "pass"),
        ("torch.bmm(a, b).mean((1, 2))", "torch.randn(3, 6, 7), torch.randn(3, 7, 8)", "pass"),
        ("self.m(a).mean(dim=1, keepdim=True)", "torch.randn(2, 3, 8, 9)", "self.m = nn.Conv2d(3, 10, 3, padding=1)"),
        ("self.m(a).sum(dim=1)", "torch.randn(2, 3, 5, 6, 7)", "self.m = nn.ConvTranspose3d(3, 10, 3, stride=2)"),
        ("(self.m(a) * 0.5).mean((2, 3), keepdim=True)", "torch.randn(2, 3, 8, 9)",
         "self.m = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1)"),
        ("F.adaptive_avg_pool3d(self.m(a), 1)", "torch.randn(2, 3, 6, 5, 7)",
         "self.m = nn.Conv3d(3, 4, 3, padding=1, bias=False)"),
        ("self.m(a).sum((2, 3))", "torch.randn(2, 3, 9, 8)", "self.m = nn.Conv2d(3, 4, 3, dilation=2)"),
        ("self.m(a).sum(2)", "torch.randn(2, 3, 12)", "self.m = nn.ConvTranspose1d(3, 4, 3, stride=3, dilation=2, padding=2)"),
        ("self.m(a).mean(2, keepdim=True)", "torch.randn(2, 3, 6, 8, 9)", "self.m = nn.ConvTranspose3d(3, 4, 3, padding=1)"),
        ("self.m(a).sum((2, 4))", "torch.randn(2, 3, 6, 8, 9)",
         "self.m = nn.ConvTranspose3d(3, 4, (2, 3, 4), stride=2, padding=1, output_padding=(1, 0, 1))"),
        ("self.m(a).sum(3)", "torch.randn(2, 3, 6, 8)", "self.m = nn.Conv2d(3, 4, 3, padding=1, dilation=2, bias=False)"),
        ("(self.m(a) * 2).mean((3, 4))", "torch.randn(2, 3, 7, 8, 9)", "self.m = nn.Conv3d(3, 4, 3, stride=(2, 1, 1))"),
    ],
)  # fmt: skip
def test_reductions_move_before_products(forward: str, inputs: str, init: str) -> None:
    assert rules(make_task(forward, inputs, init)).count(BEFORE) == 1


@pytest.mark.parametrize(
    ("forward", "inputs", "init"),
    [
        ("self.m(a).relu().sum(1)", "torch.randn(5, 24)", LINEAR),  # not linear
        ("self.m(a).amax(1)", "torch.randn(5, 24)", LINEAR),
        ("x = self.m(a); return x.sum(1), x", "torch.randn(5, 24)", LINEAR),  # the product is needed anyway
        ("x = self.m(a); return (x * x).sum(1)", "torch.randn(5, 24)", LINEAR),
        ("(self.m(a) * b).sum(1)", "torch.randn(5, 24), torch.randn(5, 36)", LINEAR),  # differs along the sum
        ("(1 / self.m(a)).sum(1)", "torch.randn(5, 24)", LINEAR),
        ("self.m(a).sum(1)", "torch.randn(5, 24).half()", f"{LINEAR}; self.half()"),  # would not overflow alike
        ("self.m(a).mean((2, 3))", "torch.randn(2, 3, 33, 33)", "self.m = nn.Conv2d(3, 4, 1, stride=2)"),
        ("self.m(a).sum(1)", "torch.randn(2, 4, 8, 9)", "self.m = nn.Conv2d(4, 8, 3, groups=2)"),
        ("self.m(a).mean((1, 2, 3))", "torch.randn(2, 3, 8, 9)", "self.m = nn.Conv2d(3, 4, 3)"),
        ("self.m(a).sum(1, dtype=torch.float64)", "torch.randn(5, 24)", LINEAR),
        ("torch.add(self.m(a), self.s, alpha=2).sum(1)", "torch.randn(5, 24)",
         f"{LINEAR}; self.s = nn.Parameter(torch.randn(36))"),
        ("torch.div(self.m(a), 2, rounding_mode='floor').sum(1)", "torch.randn(5, 24)", LINEAR),
    ],
)  # fmt: skip
def test_reductions_stay_behind_products(forward: str, inputs: str, init: str) -> None:
    reference = Reference(make_task(forward, inputs, init), "cpu", 0)
    assert BEFORE not in [step.rule for step in simplify(operator_graph(reference, 1))[1]]


@pytest.mark.parametrize(
    ("inputs", "module", "applies"),
    [
        ("torch.randn(2, 3, 90)", "ConvTranspose1d(3, 4, 3)", True),
        (
            "torch.randn(2, 4, 18, 17)",
            "ConvTranspose2d(4, 6, (3, 2), padding=(1, 0), dilation=(2, 1), groups=2)",
            True,
        ),
        ("torch.randn(2, 3, 8, 9, 7)", "ConvTranspose3d(3, 4, (2, 3, 1), bias=False)", True),
        ("torch.randn(2, 3, 18, 17)", "ConvTranspose2d(3, 4, 3, stride=(1, 2))", False),
        ("torch.randn(2, 3, 18, 17)", "ConvTranspose2d(3, 4, 3, padding=3)", False),  # crops the inputs
        ("torch.randn(2, 3, 2, 3)", "ConvTranspose2d(3, 4, 3)", False),  # more weights than results
        ("torch.randn(3, 18, 17)", "ConvTranspose2d(3, 4, 3)", False),
    ],
)
def test_transposed_convolutions_with_stride_1_flip_their_weights(
    inputs: str, module: str, applies: bool
) -> None:
    assert rules(make_task("self.m(a)", inputs, f"self.m = nn.{module}")) == ["flipped weights"] * applies


INSIDE = "average inside a convolution"


@pytest.mark.parametrize(
    ("forward", "inputs", "init"),
    [
        ("F.avg_pool2d(self.m(a), 4)", "torch.randn(2, 3, 18, 17)", "self.m = nn.Conv2d(3, 6, 3)"),
        ("F.avg_pool2d(self.m(a), (2, 3), (2, 2))", "torch.randn(2, 4, 18, 17)",
         "self.m = nn.Conv2d(4, 6, (3, 4), padding=(2, 0), groups=2, bias=False)"),
        ("F.avg_pool1d(self.m(a), 3)", "torch.randn(2, 3, 40)", "self.m = nn.Conv1d(3, 4, 3, stride=1, dilation=1, padding=1)"),
        ("F.avg_pool1d(self.m(a), 4)", "torch.randn(2, 3, 40)", "self.m = nn.Conv1d(3, 4, 3, stride=2, padding=2)"),
        ("F.adaptive_avg_pool3d(self.m(a) / 3 + 1, (2, 3, 2))", "torch.randn(2, 3, 6, 8, 10)",
         "self.m = nn.Conv3d(3, 4, 3)"),
        ("F.avg_pool3d(self.m(a) * self.s, 2) + self.t", "torch.randn(2, 3, 5, 6, 7)",
         "self.m = nn.ConvTranspose3d(3, 4, 3, stride=2, padding=1); self.s = nn.Parameter(torch.tensor(0.5)); "
         "self.t = nn.Parameter(torch.randn(4, 1, 1, 1))"),
        ("F.avg_pool2d(self.m(a), 2)", "torch.randn(2, 3, 5, 6)",  # the inputs need zeros on one side only
         "self.m = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1)"),
        ("F.avg_pool2d(self.m(a), 4)", "torch.randn(2, 3, 9, 8)", "self.m = nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1)"),
        ("F.avg_pool2d(self.m(F.relu(a)), 2)", "torch.randn(2, 3, 9, 8)", "self.m = nn.Conv2d(3, 5, 1, bias=False)"),
        ("F.avg_pool2d(F.avg_pool2d(self.m(a), 2), 2)", "torch.randn(2, 3, 19, 18)", "self.m = nn.Conv2d(3, 5, 3)"),
    ],
)  # fmt: skip
def test_averages_move_inside_convolutions(forward: str, inputs: str, init: str) -> None:
    assert rules(make_task(forward, inputs, init)).count(INSIDE) == 1


@pytest.mark.parametrize(
    ("forward", "init"),
    [
        ("F.avg_pool2d(self.m(a).relu(), 2)", "self.m = nn.Conv2d(4, 6, 3)"),
        ("F.max_pool2d(self.m(a), 2)", "self.m = nn.Conv2d(4, 6, 3)"),
        ("x = self.m(a); return F.avg_pool2d(x, 2), x", "self.m = nn.Conv2d(4, 6, 3)"),
        ("F.avg_pool2d(self.m(a), 3, 1)", "self.m = nn.Conv2d(4, 6, 3)"),  # more work: 25 elements for 9
        ("F.avg_pool2d(self.m(a), 2, padding=1)", "self.m = nn.Conv2d(4, 6, 3)"),
        ("F.avg_pool2d(self.m(a), 2, ceil_mode=True)", "self.m = nn.Conv2d(4, 6, 4)"),
        ("F.avg_pool2d(self.m(a), 2, divisor_override=3)", "self.m = nn.Conv2d(4, 6, 3)"),
        ("F.avg_pool2d(self.m(a) + self.s, 2)",
         "self.m = nn.Conv2d(4, 6, 3); self.s = nn.Parameter(torch.randn(10, 11))"),  # differs within a window
        ("F.avg_pool2d(self.m(a), 3)", "self.m = nn.ConvTranspose2d(4, 6, 3, stride=2)"),  # windows differ
        ("F.avg_pool2d(self.m(a), 2)", "self.m = nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)"),
        ("F.avg_pool2d(self.m(a), 2)", "self.m = nn.Conv2d(4, 6, 2, stride=3)"),  # most inputs are not read
    ],
)  # fmt: skip
def test_averages_stay_behind_convolutions(forward: str, init: str) -> None:
    reference = Reference(make_task(forward, "torch.randn(2, 4, 12, 13)", init), "cpu", 0)
    assert INSIDE not in [step.rule for step in simplify(operator_graph(reference, 1))[1]]


@pytest.mark.parametrize(
    ("forward", "applies"),
    [
        ("F.max_pool2d(F.max_pool2d(a, 2), (3, 2))", True),
        ("F.avg_pool1d(F.avg_pool1d(a[0], 3), 2)", True),
        ("F.max_pool2d(F.max_pool2d(a, 3, 2), 2)", False),  # windows overlap
        ("F.avg_pool2d(F.max_pool2d(a, 2), 2)", False),
        ("F.max_pool2d(F.max_pool2d(a, 2, dilation=2), 2)", False),
        ("x = F.max_pool2d(a, 2); return F.max_pool2d(x, 2), x", False),
    ],
)
def test_poolings_in_a_row_are_merged(forward: str, applies: bool) -> None:
    assert rules(make_task(forward, "torch.randn(2, 3, 19, 17)")) == ["merged poolings"] * applies


def test_a_chain_collapses_to_one_dot_product() -> None:
    """Sum, maximum, mean and two logsumexps over one element."""
    forward = (
        "x = self.m(a).sum(1, keepdim=True); x = torch.max(x, 1, keepdim=True)[0]; x = x.mean(1, keepdim=True); "
        "x = torch.logsumexp(x, 1, keepdim=True); return torch.logsumexp(x, 1, keepdim=True)"
    )
    task = make_task(forward, "torch.randn(5, 24)", LINEAR)
    assert sorted(set(rules(task))) == [BEFORE, "reduction of one element"]
    graph, _ = simplify(operator_graph(Reference(task, "cpu", 0), 1))
    widest = max(
        node.shape[-1] for node in graph.nodes if node.op.startswith("aten.") and len(node.shape) == 2
    )
    assert widest == 24, "no value has the 36 features of the layer"


@pytest.mark.parametrize(
    ("forward", "rule", "applies"),
    [
        ("torch.softmax(self.m(a).amax(1, keepdim=True), 1)", "constant", True),
        ("x = self.m(a).amax(1, keepdim=True); return x - x.mean(1, keepdim=True)", "constant", True),
        ("torch.softmax(self.m(a).exp().amax(1, keepdim=True), 1)", "constant", False),  # inf - inf is NaN
        ("torch.softmax(self.m(a.log()).amax(1, keepdim=True), 1)", "constant", False),
        ("x = self.m(a).amax(1, keepdim=True); return torch.sub(x, x, alpha=2)", "constant", False),
        ("torch.softmax(self.m(a), 1)", "constant", False),
        ("torch.clamp(torch.tanh(self.m(a)), -1, 1)", "clamp without effect", True),
        ("torch.relu(torch.sigmoid(a))", "clamp without effect", True),
        ("torch.clamp(torch.tanh(a), -0.5, 1)", "clamp without effect", False),
        ("torch.clamp(torch.clamp(a, -1, 0.5), 0, 2)", "merged clamps", True),
        ("x = torch.clamp(a, -1, 0.5); return torch.clamp(x, 0, 2) + x", "merged clamps", False),
        (
            "torch.clamp(torch.minimum(a, torch.full_like(a, 0.0)), 0, 1)",
            "constant",
            False,
        ),  # full_like: no number
        ("torch.clamp(torch.clamp(a, max=0.0), min=0.0, max=1.0)", "constant", True),
        ("a * 2 / 4 + 1 - 3", "merged numbers", True),
        ("(a * 2 + 1) * 3", "merged numbers", False),
        ("x = a * 2; return x * 3, x", "merged numbers", False),
    ],
)
def test_constants_and_clamps(forward: str, rule: str, applies: bool) -> None:
    task = make_task(forward, "torch.rand(5, 24) + 0.1", LINEAR)
    assert (rule in rules(task)) is applies


def test_constants_keep_nan_of_float16() -> None:
    """In float16, the value before may overflow for inputs that are finite."""
    task = make_task(
        "torch.softmax(self.m(a).amax(1, keepdim=True), 1)",
        "torch.randn(5, 24).half()",
        f"{LINEAR}; self.half()",
    )
    assert not simplify(operator_graph(Reference(task, "cpu", 0), 1))[1]


@pytest.mark.parametrize(
    ("forward", "inputs", "init", "mode", "rule", "applies"),
    [
        ("torch.diag(a) @ b", "torch.randn(8), torch.randn(8, 9)", "pass", "train", "diagonal matrix", True),
        ("b @ torch.diag(a)", "torch.randn(8), torch.randn(9, 8)", "pass", "train", "diagonal matrix", True),
        ("torch.diag(a, 1) @ b", "torch.randn(7), torch.randn(8, 9)", "pass", "train", "diagonal matrix", False),
        ("torch.diag(a) @ b", "torch.randn(8, 8), torch.randn(8)", "pass", "train", "diagonal matrix", False),
        ("F.avg_pool1d(self.m(a).unsqueeze(1), 4).squeeze(1)", "torch.randn(5, 24)", LINEAR, "train", "averaged weights", True),
        ("F.avg_pool1d(self.m(a).relu().unsqueeze(1), 4)", "torch.randn(5, 24)", LINEAR, "train", "averaged weights", False),
        ("F.avg_pool1d(self.m(a).unsqueeze(1), 4, 2)", "torch.randn(5, 24)", LINEAR, "train", "averaged weights", False),
        ("F.avg_pool1d(self.m(a).unsqueeze(1), 4, padding=2)", "torch.randn(5, 24)", LINEAR, "train", "averaged weights", False),
        ("F.instance_norm(self.m(a))", "torch.randn(2, 3, 8, 9)", "self.m = nn.Conv2d(3, 4, 3)", "train", "bias before a norm", True),
        ("F.group_norm(self.m(a), 2)", "torch.randn(2, 3, 8, 9)", "self.m = nn.Conv2d(3, 4, 3)", "train", "bias before a norm", False),
        ("self.n(self.m(a))", "torch.randn(2, 3, 8, 9)", "self.m = nn.Conv2d(3, 4, 3); self.n = nn.BatchNorm2d(4)", "train", "bias before a norm", True),
        ("self.n(self.m(a))", "torch.randn(2, 3, 32, 32)", "self.m = nn.Conv2d(3, 4, 3); self.n = nn.BatchNorm2d(4)", "eval", "batch norm in weights", True),
        ("self.n(self.m(a))", "torch.randn(2, 3, 32, 32)", "self.m = nn.Conv2d(3, 4, 3, bias=False); self.n = nn.BatchNorm2d(4, affine=False)", "eval", "batch norm in weights", True),
        ("self.n(self.m(a))", "torch.randn(2, 3, 32, 32)", "self.m = nn.ConvTranspose2d(3, 4, 3); self.n = nn.BatchNorm2d(4)", "eval", "batch norm in weights", True),
        ("self.n(self.m(a))", "torch.randn(2, 3, 32, 32)", "self.m = nn.Conv2d(3, 4, 3); self.n = nn.BatchNorm2d(4)", "train", "batch norm in weights", False),
        ("self.n(self.m(a)).relu()", "torch.randn(2, 3, 32, 32)", "self.m = nn.Conv2d(3, 4, 3); self.n = nn.BatchNorm2d(4)", "eval", "batch norm in weights", False),
        ("x = self.m(a); return self.n(x), x", "torch.randn(2, 3, 32, 32)", "self.m = nn.Conv2d(3, 4, 3); self.n = nn.BatchNorm2d(4)", "eval", "batch norm in weights", False),
        ("self.n(self.m(a))", "torch.randn(2, 3, 5, 5)", "self.m = nn.Conv2d(3, 4, 3); self.n = nn.BatchNorm2d(4)", "eval", "batch norm in weights", False),
        ("F.max_pool2d(self.m(a) * 3, 2)", "torch.randn(2, 3, 32, 32)", "self.m = nn.Conv2d(3, 4, 3)", "train", "scale in weights", True),
        ("F.max_pool2d(torch.tanh(self.m(a)) * 3, 2)", "torch.randn(2, 3, 32, 32)", "self.m = nn.Conv2d(3, 4, 3)", "train", "scale in weights", False),
    ],
)  # fmt: skip
def test_products_norms_and_weights(
    forward: str, inputs: str, init: str, mode: Mode, rule: str, applies: bool
) -> None:
    assert (rule in rules(make_task(forward, inputs, init, mode))) is applies
