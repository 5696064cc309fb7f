"""Integers are checked one by one, except those that the last bits of the inputs decide."""

from __future__ import annotations

import pytest
import torch

from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.tasks.inputs import AS_GIVEN
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task

SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, w=None):
        return OUTPUT
def get_inputs():
    return [INPUTS]
"""


def share_used(oracle: Oracle, tolerance: Tolerance, outputs: list[torch.Tensor], seed: int) -> float:
    errors = tolerance.measure(outputs, oracle.truth(seed), lambda: oracle.inputs(seed))
    return tolerance.limits[AS_GIVEN].share_used(errors)


def prepare(output: str, inputs: str) -> tuple[Oracle, Tolerance]:
    task = Task(SOURCE.replace("OUTPUT", output).replace("INPUTS", inputs), "integers")
    oracle = Oracle(Reference(task, "cpu", 1), 1 << 28)
    return oracle, Tolerance(oracle, "fp32", 7, (AS_GIVEN,))


def test_products_rounded_to_int8_may_be_summed_in_another_order() -> None:
    product = "((x @ w) * 4).round().clamp(-128, 127).to(torch.int8)"
    oracle, tolerance = prepare(product, "torch.randn(1024, 256), torch.randn(256, 256)")
    differing = 0
    for seed in range(20, 26):
        _, (x, w) = oracle.inputs(seed)
        sums = x[:, :99] @ w[:99] + x[:, 99:] @ w[99:]
        found = (sums * 4).round().clamp(-128, 127).to(torch.int8)
        differing += int((found != oracle.truth(seed)[0]).sum())
        assert share_used(oracle, tolerance, [found], seed) <= 1
        found[-1, -1] ^= 1
        assert share_used(oracle, tolerance, [found], seed) > 1, "one wrong element"
    assert differing, "a limit on their number would be a guess"


def test_one_wrong_index_beside_many_right_ones_is_wrong() -> None:
    oracle, tolerance = prepare("tuple(x.max(-1))", "torch.randn(16384, 32)")
    values, places = oracle.inputs(20)[1][0].max(-1)
    assert share_used(oracle, tolerance, [values, places], 20) <= 1
    places[-1] = -1
    assert share_used(oracle, tolerance, [values, places], 20) > 1


@pytest.mark.parametrize("output", ["tuple(torch.sort(x, stable=True))", "tuple(x.topk(20000))"])
def test_values_that_lie_close_together_do_not_hide_wrong_indices(output: str) -> None:
    oracle, tolerance = prepare(output, "torch.rand(2, 40000)")
    values, places = oracle.run(None, *oracle.inputs(20))
    assert share_used(oracle, tolerance, [values, places], 20) <= 1
    assert share_used(oracle, tolerance, [values, places.roll(100, -1)], 20) > 1


def test_the_order_of_equal_values_is_no_near_tie() -> None:
    oracle, tolerance = prepare(
        "torch.sort(x, dim=-1, stable=True).indices", "torch.randn(64, 300).mul(64).round()"
    )
    (x,) = oracle.inputs(20)[1]
    backwards = x.shape[1] - 1 - torch.sort(x.flip(-1), dim=-1, stable=True).indices
    assert (
        share_used(oracle, tolerance, [oracle.truth(20)[0]], 20)
        <= 1
        < share_used(oracle, tolerance, [backwards], 20)
    )


def test_infinities_and_zeros_are_ties_where_their_order_is_open() -> None:
    oracle, tolerance = prepare("tuple(x.topk(8))", "torch.randn(64, 300)")
    form, (x,) = oracle.inputs(20)
    x = x.clone()
    x[:, 7], x[:, 9], x[:, 11] = torch.inf, torch.inf, torch.inf
    x[5] = 0
    truth = oracle.compute(form, [x])
    values, places = torch.sort(x.flip(-1), dim=-1, descending=True, stable=True)
    outputs = [values[:, :8], 299 - places[:, :8]]
    assert not torch.equal(outputs[1], truth[1])
    tolerance.limits["infinities"] = tolerance.limits[AS_GIVEN]
    errors = tolerance.measure(outputs, truth, lambda: (form, [x]), "infinities")
    assert errors.outputs[1].norm == 0
