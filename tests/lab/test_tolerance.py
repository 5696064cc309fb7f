"""Tolerances are derived: they accept honest rounding and refuse the next lower precision."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.errors import Errors, first_wrong, measure_errors
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.measure.rounding import round_to_bits
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task

MATMUL = """
import torch
class Model(torch.nn.Module):
    def forward(self, a, b): return a @ b
def get_inputs(): return [torch.randn(96, 256), torch.randn(256, 96)]
def get_init_inputs(): return []
"""
GELU = MATMUL.replace("a @ b", "torch.nn.functional.gelu(a * b.T)")
LOSS = MATMUL.replace("a @ b", "((a - b.T) ** 2).mean()")


def prepared(source: str, precision: str) -> tuple[Oracle, Tolerance]:
    oracle = Oracle(Reference(Task(source), "cpu", 1), 1 << 26)
    return oracle, Tolerance(oracle, precision, 2)


def test_rounding_keeps_so_many_bits() -> None:
    x = torch.tensor([1 + 2**-11, 1 + 2**-10, -3.9999], dtype=torch.float32)
    assert round_to_bits(x, 11).tolist() == [1.0, 1 + 2**-10, -4.0]
    assert round_to_bits(x, 11, toward_zero=True)[2] > -4
    assert torch.equal(round_to_bits(x, 8).bfloat16().float(), round_to_bits(x, 8))


@pytest.mark.parametrize("bits", [53, 24, 11, 8, 4])
def test_rounding_is_that_of_the_mantissa(bits: int) -> None:
    special = [0.0, -0.0, math.inf, -math.inf, 1.0, 2 - 2.0**-30, -1e-30, 3e38]
    x = torch.cat([torch.tensor(special), torch.randn(4096) * torch.randn(4096).mul(8).exp()]).double()
    for toward_zero in (False, True):
        mantissa, exponent = torch.frexp(x)
        whole = (mantissa * 2.0**bits).trunc() if toward_zero else (mantissa * 2.0**bits).round()
        assert torch.equal(round_to_bits(x, bits, toward_zero), torch.ldexp(whole / 2.0**bits, exponent))
    assert round_to_bits(torch.tensor([math.nan]), bits).isnan().all()


@pytest.mark.parametrize("source", [MATMUL, GELU, LOSS])
def test_float32_passes_and_half_precision_does_not(source: str) -> None:
    oracle, tolerance = prepared(source, "fp32")
    form, leaves = oracle.inputs(77)
    truth, limit = oracle.truth(77), tolerance.limits["as given"]
    assert limit.share_used(measure_errors(oracle.run(None, form, leaves), truth)) < 0.5
    half = oracle.run(torch.bfloat16, form, leaves)
    assert limit.share_used(measure_errors(half, truth)) > 1


def test_tf32_is_between_float32_and_bfloat16() -> None:
    oracle, tolerance = prepared(MATMUL, "tf32")
    form, leaves = oracle.inputs(77)
    truth, limit = oracle.truth(77), tolerance.limits["as given"]
    assert limit.share_used(measure_errors(oracle.emulate(11, form, leaves)[0], truth)) < 1
    assert limit.share_used(measure_errors(oracle.emulate(8, form, leaves)[0], truth)) > 1
    assert limit.norm > 20 * prepared(MATMUL, "fp32")[1].limits["as given"].norm


def test_without_matrix_products_tf32_means_float32() -> None:
    _, loose = prepared(GELU, "tf32")
    _, strict = prepared(GELU, "fp32")
    assert loose.limits["as given"].norm == pytest.approx(strict.limits["as given"].norm, rel=0.5)


def test_bfloat16_tasks_refuse_float8() -> None:
    linear = MATMUL.replace("(96, 256)", "(96, 256).bfloat16()").replace("(256, 96)", "(256, 96).bfloat16()")
    oracle, tolerance = prepared(linear, "native")
    form, leaves = oracle.inputs(77)
    truth, limit = oracle.truth(77), tolerance.limits["as given"]
    assert limit.share_used(measure_errors(oracle.run(None, form, leaves), truth)) < 1
    eighth = [leaf.to(torch.float8_e4m3fn).bfloat16() for leaf in leaves]
    assert limit.share_used(measure_errors(oracle.run(None, form, eighth), truth)) > 1


def test_the_first_wrong_element_is_named_beside_the_worst() -> None:
    right = torch.randn(40, 32, generator=torch.Generator().manual_seed(1)).double() + 3
    output = right.clone()
    output[2, 7] += 0.5
    output[30, 1] += 9.0
    assert (
        first_wrong([output], [right], 1e-3, 0)
        == f"first wrong at [2, 7]: got {output[2, 7]:.7g}, should be {right[2, 7]:.7g}"
    )
    assert measure_errors([output], [right], locate=True).where.startswith("worst at [30, 1]: ")
    assert first_wrong([output], [right], 100.0, 0) == "" == first_wrong([right], [right], 0.0, 0)
    output[0, 0] = math.nan
    assert first_wrong([right, output], [right, right], 1e-3, 1).startswith(
        "output 1 first wrong at [0, 0]: got nan"
    )
    inf = torch.full((4,), math.inf)
    assert first_wrong([inf], [inf], 1e-3, 0) == "", "what should not be finite, and is not, is right"
    assert (
        first_wrong([torch.tensor([1, 2, 4])], [torch.tensor([1, 2, 3])], 0.0, 0)
        == "first wrong at [2]: got 4, should be 3"
    )


def test_float16_leaves_its_range_on_spikes() -> None:
    oracle, tolerance = prepared(MATMUL, "tf32")
    assert "spikes" in tolerance.limits
    form, leaves = oracle.inputs(5, "spikes")
    half = [leaf.half().float() for leaf in leaves]
    errors = measure_errors(oracle.run(None, form, half), oracle.truth(5, "spikes"))
    assert tolerance.limits["spikes"].share_used(errors) == math.inf


def test_distributions_that_break_the_task_are_dropped_with_the_reason() -> None:
    logs = MATMUL.replace("a @ b", "a.log()").replace("torch.randn", "0.1 + torch.rand")
    _, tolerance = prepared(logs, "fp32")
    assert tolerance.skipped["negated"] == "the reference is not finite for them in float64"
    assert "as given" in tolerance.limits


def test_a_wrong_element_shows_although_the_norm_is_fine() -> None:
    truth = torch.randn(1000, 1000, dtype=torch.float64)
    output = truth.float()
    output[17, 4] += 1.0
    errors = measure_errors([output], [truth], locate=True)
    assert errors.norm < 2e-3
    assert errors.element > 0.1
    assert "worst at [17, 4]" in errors.where


@pytest.mark.parametrize("shape", [(40, 30), (7, 5, 20), (1200,), (300, 4), ()])
def test_large_outputs_are_compared_piece_by_piece(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = torch.randn(shape, dtype=torch.float64)
    truth.view(-1)[-1:] = math.inf
    wrong, late = truth.float() * 1.001, truth.float()
    late.view(-1)[-1:] = -math.inf
    whole = [measure_errors([output], [truth], locate=True) for output in (wrong, late, truth.float() + 0.0)]
    cut = round_to_bits(wrong, 8)
    monkeypatch.setattr("kernelpro.lab.measure.errors._PIECE", 100)
    monkeypatch.setattr("kernelpro.lab.measure.rounding._PIECE", 100)
    for output, expected in zip((wrong, late, truth.float() + 0.0), whole, strict=True):
        found = measure_errors([output], [truth], locate=True)
        assert (found.norm, found.element) == pytest.approx(
            (expected.norm, expected.element)
        ) and found.where == expected.where
    assert torch.equal(round_to_bits(wrong, 8), cut)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_not_finite_never_passes_where_the_oracle_is_finite(bad: float) -> None:
    truth = torch.ones(8, dtype=torch.float64)
    output = truth.float()
    output[3] = bad
    assert measure_errors([output], [truth]).norm == math.inf


def test_infinities_of_the_oracle_must_be_matched() -> None:
    truth = torch.tensor([1.0, -math.inf, 2.0], dtype=torch.float64)
    assert measure_errors([truth.float()], [truth]).norm == 0
    assert measure_errors([torch.tensor([1.0, 0.0, 2.0])], [truth]).norm == math.inf


def test_integers_count_mismatches() -> None:
    assert measure_errors([torch.tensor([1, 2, 3, 5])], [torch.tensor([1, 2, 3, 4])]) == Errors(
        0.25, 0.25, "25.00% of the elements differ"
    )


def test_the_only_value_that_a_relu_leaves_of_a_row_may_have_lost_what_cancelled() -> None:
    truth = torch.randn(64, 32).relu().double()
    truth[5], truth[6] = 0.0, 0.01 * truth[7]
    truth[5, 3] = 5.928937e-4
    near, skipped = truth.clone(), truth.clone()
    near[5, 3] += 8e-8
    skipped[6] = 0.0
    assert measure_errors([near], [truth]).element < 1e-5
    assert measure_errors([skipped], [truth]).element > 0.1, (
        "a row of a hundredth of the usual size is not forgotten"
    )


def test_zeros_do_not_make_the_few_values_between_them_small() -> None:
    truth = torch.zeros(1000, 64, dtype=torch.float64)
    truth[::100, 3] = torch.linspace(0.1, 1.0, 10, dtype=torch.float64)
    truth[5, 9] = 5e-6
    near, wrong = truth.clone(), truth.clone()
    near[5, 9] = 5e-5
    wrong[5, 9] = 0.5
    assert measure_errors([near], [truth]).element < 0.01
    assert measure_errors([wrong], [truth]).element > 1


def test_not_a_number_stands_for_infinity_only_where_allowed() -> None:
    truth = [torch.tensor([1.0, torch.inf, -torch.inf], dtype=torch.float64)]
    compensated, other_sign = (
        torch.tensor([1.0, torch.nan, -torch.inf]),
        torch.tensor([1.0, torch.inf, torch.inf]),
    )
    undefined = torch.tensor([torch.nan, torch.inf, -torch.inf])
    assert measure_errors([compensated], truth).norm == torch.inf
    assert measure_errors([compensated], truth, with_infinities=True).norm == 0
    for wrong in (other_sign, undefined):
        assert measure_errors([wrong], truth, with_infinities=True).norm == torch.inf


def test_any_value_is_right_where_a_task_is_undefined_on_infinities() -> None:
    truth = [torch.tensor([1.0, torch.nan, torch.inf], dtype=torch.float64)]
    finite, wrong = torch.tensor([1.0, 0.0, torch.inf]), torch.tensor([1.0, 0.0, 5.0])
    assert measure_errors([finite], truth).norm == torch.inf
    assert measure_errors([finite], truth, with_infinities=True).norm == 0
    assert measure_errors([wrong], truth, with_infinities=True).norm == torch.inf


def test_each_output_has_limits_of_its_own() -> None:
    path = Path(__file__).parent.parent / "exploits" / "tasks" / "normalize.py"
    oracle = Oracle(Reference(Task.from_file(path), "cpu", 5))
    limit = Tolerance(oracle, "fp32", 7, ("as given",)).limits["as given"]
    truth = oracle.truth(7)
    exact, coarse, integers = limit.outputs
    assert exact.norm < 1e-4 < 1e-2 < coarse.norm == limit.norm and integers.norm < 1e-3
    outputs = [truth[0].to(torch.bfloat16).double(), *truth[1:]]
    errors = measure_errors(outputs, truth)
    assert limit.share_used(errors) > 100 and errors.norm < limit.norm
    assert limit.deciding(errors) == (0, exact, errors.outputs[0])


def test_padded_rows_ask_for_nothing_where_the_oracle_jumps() -> None:
    sort = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.argsort(-1)


def get_inputs():
    return [torch.randn(64, 64)]
"""
    tolerance = Tolerance(Oracle(Reference(Task(sort, "sort"), "cpu", 5)), "fp32", 7, ("padded rows",))
    assert "own error" in tolerance.skipped["padded rows"]
