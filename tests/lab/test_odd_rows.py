"""Inputs with odd rows expose cancellation, and convict no kernel for its order of sums."""

from __future__ import annotations

from pathlib import Path

import torch

from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.errors import measure_errors
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.tasks.inputs import ODD_ROWS
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task

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
