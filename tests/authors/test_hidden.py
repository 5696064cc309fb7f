"""Which elements a mask hides, held against counting them."""

from __future__ import annotations

from itertools import product

import pytest
from playing import program, task

from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.cuda import backend as cuda
from kernelpro.authors.playbook.schedule.masked_loads import masked_loads
from kernelpro.authors.playbook.ir.indices import constant
from kernelpro.authors.playbook.triton import backend as triton

PLACES = "p = torch.arange(40); q = p[:, None]"
AFTER = "torch.ones(40, 40, dtype=torch.bool).triu(1)"
PAIRS = [(row, column) for row in range(40) for column in range(40)]


def shown(result: str) -> dict[str, int]:
    """Of each tensor that is loaded by halves, as it were: how many places are, of those on which it depends."""
    read = program(task(f"{PLACES}; return {result}", "torch.randn(3, 40, 40), torch.randn(40)"))
    found: dict[str, int] = {}
    for stage in read.stages:
        for node, where in masked_loads(stage.expressions).items():
            loops = sorted(frozenset().union(*(index.variables for index in where)), key=lambda var: var.name)
            places = [
                dict(zip(loops, map(constant, turn), strict=True))
                for turn in product(*(range(v.extent) for v in loops))
            ]
            found[node.data[0]] = sum(
                all(i.substitute(at, lambda v: v).constant >= 0 for i in where) for at in places
            )
    return found


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (f"a.masked_fill({AFTER}, -math.inf).softmax(-1)", sum(column <= row for row, column in PAIRS)),
        ("a.triu(2) * 3", sum(column >= row + 2 for row, column in PAIRS)),
        (
            "a.masked_fill((p > q) | (p < q - 5), -math.inf).softmax(-1)",
            sum(row - 5 <= column <= row for row, column in PAIRS),
        ),
        (
            "torch.where((p >= q) & (p < 30), a, 0.0).sum(-1)",
            sum(row <= column < 30 for row, column in PAIRS),
        ),
        ("torch.where(~(p < 13), a * 2, 0.5).sum(-1)", 27),
        ("torch.where(p < 30, torch.where(p >= 10, a, 0.0), 1.0) + torch.where(p < 30, a, 2.0)", 30),
    ],
)
def test_what_a_mask_shows_is_what_is_needed(result: str, expected: int) -> None:
    assert shown(result) == {"a": expected}


@pytest.mark.parametrize(
    "result",
    [
        "torch.where(p >= 20, a.cumsum(-1), 1.0)",
        "torch.where(p < 20, a, 0.0) + a",
        "torch.where(b > 0, a, 0.0) + b",
        "torch.where(p == 20, a, 0.0)",
        "torch.where(p < 20, a, -a)",
        "torch.where(p < 20, a.sum(-1, keepdim=True), 0.0)",
    ],
)
def test_what_is_needed_elsewhere_too_is_not_hidden(result: str) -> None:
    """By a running sum, by others, or where nobody knows beforehand."""
    assert not shown(result)


@pytest.mark.parametrize(
    ("writer", "loads", "guarded"), [(cuda.BACKEND, "load_vector(v", "if ("), (triton.BACKEND, "tl.load(", "mask=")]
)
def test_a_gpu_loads_nothing_else(writer: Backend, loads: str, guarded: str) -> None:
    for result, hides in ((f"a.masked_fill({AFTER}, -math.inf).softmax(-1)", True), ("a.softmax(-1)", False)):
        read = program(task(f"return {result}", "torch.randn(3, 40, 40)"))
        lines = [
            line for line in writer.write(read, writer.seeds(read)[0].design).splitlines() if loads in line
        ]
        assert lines and all((">= 0" in line and guarded in line) == hides for line in lines), lines
