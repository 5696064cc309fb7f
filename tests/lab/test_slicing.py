"""Outputs in slices of the batch: only where the reference allows it, and then the same as at once."""

from __future__ import annotations

import math

import pytest
import torch

from kernelpro.lab.judge import probes
from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.errors import first_wrong, is_finite, measure_errors, output_elements
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.measure.slicing import SlicedOutputs
from kernelpro.lab.tasks import work
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task

pytestmark = pytest.mark.together

TASK = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm1d(24), nn.Conv1d(24, 8, 3)
    def forward(self, x, y):
        return {expression}
def get_inputs():
    return [{x}, torch.randn(24, 16)]
def get_init_inputs():
    return []
"""
X = "torch.randn(40, 24)"


def oracle_for(expression: str, x: str = X) -> Oracle:
    return Oracle(Reference(Task(TASK.format(expression=expression, x=x)), "cpu", 1), 1 << 20)


@pytest.mark.parametrize(
    "expression",
    [
        "x.relu()",
        "x @ y",
        "x.softmax(1)",
        "(x.cumsum(1), x.argmax(1))",
        "self.conv(x[:, :, None].expand(40, 24, 9)) if len(x) == 40 else self.conv(x[:, :, None].expand(-1, 24, 9))",
    ],
)
def test_independent_rows_are_cut(expression: str) -> None:
    oracle = oracle_for(expression)
    whole = oracle.truth(5)
    assert oracle.find_slicing(3)
    oracle.output_spec(3)
    oracle.use_slices(6)
    sliced = oracle.expected(5)
    assert isinstance(sliced, SlicedOutputs) and len(sliced.ranges) == 6
    assert measure_errors(whole, sliced).element < 1e-12
    assert is_finite(sliced) and output_elements(sliced) == [leaf.numel() for leaf in whole]


@pytest.mark.parametrize(
    "expression",
    [
        "self.norm(x)",
        "x.sum()",
        "x.softmax(0)",
        "x.cumsum(0)",
        "x / len(x)",
        "x - 1e-3 * x.mean(0)",
        "x @ y.triu() if len(x) < 40 else (x @ y).triu()",
        "(x @ x.T).triu()",
        "x * torch.arange(len(x))[:, None]",
        "torch.cat([x[1:], x[:1]])",
    ],
)
def test_rows_that_depend_on_others_or_on_their_position_are_not(expression: str) -> None:
    assert not oracle_for(expression).find_slicing(3)


def test_of_a_square_product_only_the_left_matrix_is_cut() -> None:
    oracle = oracle_for("x @ y @ y.T", "torch.randn(24, 24)")
    assert oracle.find_slicing(3) and oracle._slicing and oracle._slicing.is_cut == (True, False)


def test_a_wrong_element_in_a_late_slice_is_located() -> None:
    oracle = oracle_for("x.exp()[:, :, None]")
    output = [leaf.float() for leaf in oracle.truth(5)]
    assert oracle.find_slicing(3)
    oracle.use_slices(7)
    assert measure_errors(output, oracle.expected(5)).element < 1e-6
    output[0][33, 17, 0] += 1
    errors = measure_errors(output, oracle.expected(5), locate=True)
    assert "worst at [33, 17, 0]" in errors.where
    assert first_wrong(output, oracle.expected(5), 1e-3, 0).startswith("first wrong at [33, 17, 0]")
    output[0][39, 0, 0] = math.nan
    assert measure_errors(output, oracle.expected(5)).norm == math.inf
    vector = oracle_for("x[:, 0]")
    wrong = [leaf.float() for leaf in vector.truth(5)]
    wrong[0][31] += 9
    assert vector.find_slicing(3)
    vector.use_slices(5)
    assert "worst at [31]" in measure_errors(wrong, vector.expected(5), locate=True).where


@pytest.mark.parametrize("expression", ["x @ y", "x.tanh() * 0.5", "x.relu()", "0 * x"])
def test_tolerance_and_probes_are_the_same_in_slices(expression: str) -> None:
    source = TASK.format(expression=expression, x="torch.randn(512, 24)")
    limits, reasons = [], []
    for slices in (1, 4):
        reference = Reference(Task(source), "cpu", 1)
        oracle = Oracle(reference, 1 << 24)
        oracle.output_spec(2)
        assert oracle.find_slicing(2)
        oracle.use_slices(slices)
        tolerance = Tolerance(oracle, "fp32", 7)
        limits.append(tolerance.limits)
        reasons.append(probes.probe(oracle, tolerance, list(range(10, 19)), work.count(reference, 3)[0]))
    assert limits[0].keys() == limits[1].keys()
    for name, limit in limits[0].items():
        assert limits[1][name].norm == pytest.approx(limit.norm, rel=0.05)
        assert limits[1][name].element == pytest.approx(limit.element, rel=0.05)
    assert reasons[0] == reasons[1]


def test_inputs_are_copied_only_for_a_reference_that_modifies_them() -> None:
    modest, rude = oracle_for("x.relu()"), oracle_for("x.relu_()")
    for oracle in (modest, rude):
        oracle.output_spec(3)
        before = oracle.inputs(4)[1][0].clone()
        outputs = oracle.run(None, *oracle.inputs(4))
        assert torch.equal(oracle.inputs(4)[1][0], before)
        assert torch.equal(outputs[0], before.relu())
        (same,) = oracle_for("x").run(None, *oracle.inputs(4))
        assert same.data_ptr() != oracle.inputs(4)[1][0].data_ptr(), "an output is never an input's memory"
    assert rude._modifies_inputs and not modest._modifies_inputs
