"""Unusual rows expose cancellation and a softmax that underflows, and convict no kernel for an order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.errors import measure_errors
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.tasks.inputs import AS_GIVEN, EQUAL_ROWS, ODD_ROWS
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Shape, Task

TASKS = Path(__file__).parents[1] / "exploits" / "tasks"


def oracle_of(task: str) -> Oracle:
    return Oracle(Reference(Task.from_file(TASKS / f"{task}.py"), "cpu", 1), 1 << 28)


def test_a_variance_that_cancels_is_wrong_and_one_of_differences_is_right() -> None:
    oracle = oracle_of("layernorm")
    limit = Tolerance(oracle, "fp32", 7, (ODD_ROWS,)).limits[ODD_ROWS]
    (x,), truth = oracle.inputs(7, ODD_ROWS)[1], oracle.truth(7, ODD_ROWS)
    weight, bias = (parameter.detach() for parameter in oracle.reference.model().parameters())
    mean = x.cumsum(-1)[:, -1:] / x.shape[1]  # the plainest sum
    squares = {
        "cancels": (x * x).mean(-1, keepdim=True) - mean * mean,
        "right": (x - mean).square().mean(-1, True),
    }
    share = {
        name: limit.share_used(
            measure_errors([(x - mean) * torch.rsqrt(found.clamp_min(0) + 1e-5) * weight + bias], truth)
        )
        for name, found in squares.items()
    }
    assert share["right"] < 0.5 and share["cancels"] > 2


def test_products_of_matrices_have_no_odd_rows() -> None:
    assert ODD_ROWS in Tolerance(oracle_of("attention"), "fp32", 7, (ODD_ROWS,)).skipped


def test_a_running_maximum_that_starts_at_zero_is_wrong_on_equal_rows() -> None:
    task = Task.from_file(TASKS / "attention.py")
    oracle = Oracle(Reference(replace(task, shapes=(Shape(constants={"length": 128}),)), "cpu", 1), 1 << 28)
    limit = Tolerance(oracle, "fp32", 7, (AS_GIVEN, EQUAL_ROWS)).limits[EQUAL_ROWS]
    (q, k, v), truth = oracle.inputs(7, EQUAL_ROWS)[1], oracle.truth(7, EQUAL_ROWS)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    highest = scores.amax(-1, keepdim=True)
    share = {}
    for name, start in (("right", highest), ("from zero", highest.clamp_min(0))):
        weights = torch.exp(scores - start)
        output = weights @ v / weights.sum(-1, keepdim=True)
        share[name] = limit.share_used(measure_errors([output], truth))
    assert share["right"] < 0.5 and share["from zero"] > 1


def test_only_a_softmax_of_products_gets_equal_rows() -> None:
    distributions = (AS_GIVEN, EQUAL_ROWS)
    assert EQUAL_ROWS in Tolerance(oracle_of("softmax"), "fp32", 7, distributions).skipped


def test_equal_values_may_come_in_any_order_where_the_operator_leaves_it_open() -> None:
    source = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return OPERATOR
def get_inputs():
    return [torch.randn(512, 300).mul(64).round()]
"""
    share = {}
    for operator in ("topk(x, 4)", "sort(x, stable=True)"):
        task = Task(source.replace("OPERATOR", f"torch.{operator}"), "orders")
        oracle = Oracle(Reference(task, "cpu", 1), 1 << 28)
        limit = Tolerance(oracle, "fp32", 7, (AS_GIVEN,)).limits[AS_GIVEN]
        (x,), truth = oracle.inputs(7)[1], oracle.truth(7)
        values, places = torch.sort(x.flip(-1), dim=-1, stable=True, descending="topk" in operator)
        outputs = [part[:, : truth[0].shape[1]] for part in (values, x.shape[1] - 1 - places)]
        share[operator] = limit.share_used(measure_errors(outputs, truth))
    assert share["topk(x, 4)"] <= 1 < share["sort(x, stable=True)"], share
