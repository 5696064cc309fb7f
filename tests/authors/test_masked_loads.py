"""Which loads a mask makes unnecessary, compared with counting."""

from __future__ import annotations

from itertools import product

import pytest
from playbook_harness import make_task, program_of

from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.cuda import backend as cuda
from kernelpro.authors.playbook.ir.indices import constant
from kernelpro.authors.playbook.schedule.masked_loads import masked_loads
from kernelpro.authors.playbook.triton import backend as triton

INDICES = "p = torch.arange(40); q = p[:, None]"
CAUSAL = "torch.ones(40, 40, dtype=torch.bool).triu(1)"
PAIRS = [(row, column) for row in range(40) for column in range(40)]


def needed_elements(result: str) -> dict[str, int]:
    """For each tensor with a masked load: at how many iterations of the loops in the predicate it is needed."""
    program = program_of(make_task(f"{INDICES}; return {result}", "torch.randn(3, 40, 40), torch.randn(40)"))
    counts: dict[str, int] = {}
    for stage in program.stages:
        for node, predicate in masked_loads(stage.expressions).items():
            loops = sorted(
                frozenset().union(*(index.variables for index in predicate)), key=lambda var: var.name
            )
            iterations = [
                dict(zip(loops, map(constant, point), strict=True))
                for point in product(*(range(v.extent) for v in loops))
            ]
            counts[node.data[0]] = sum(
                all(i.substitute(at).constant >= 0 for i in predicate) for at in iterations
            )
    return counts


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (f"a.masked_fill({CAUSAL}, -math.inf).softmax(-1)", sum(column <= row for row, column in PAIRS)),
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
def test_masked_loads_need_only_unmasked_elements(result: str, expected: int) -> None:
    assert needed_elements(result) == {"a": expected}


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
def test_loads_that_are_needed_everywhere_are_not_masked(result: str) -> None:
    """By a scan, by another use, or because the condition depends on data."""
    assert not needed_elements(result)


@pytest.mark.parametrize(
    ("backend", "loads", "guarded"),
    [(cuda.BACKEND, "load_vector(v", "if ("), (triton.BACKEND, "tl.load(", "mask=")],
)
def test_gpu_kernels_mask_the_loads(backend: Backend, loads: str, guarded: str) -> None:
    for result, masked in (
        (f"a.masked_fill({CAUSAL}, -math.inf).softmax(-1)", True),
        ("a.softmax(-1)", False),
    ):
        program = program_of(make_task(f"return {result}", "torch.randn(3, 40, 40)"))
        lines = [
            line
            for line in backend.write(program, backend.seeds(program)[0].design).splitlines()
            if loads in line
        ]
        assert lines and all((">= 0" in line and guarded in line) == masked for line in lines), lines
