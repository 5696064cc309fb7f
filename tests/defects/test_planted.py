"""The generator of planted defects: every kind in every family, reproducible and with a healthy twin."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from planted.case import Family, generate, make_case
from planted.examples import example_cases, print_examples
from planted.families import CPU, CUDA
from planted_defects import read

from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab.languages import detect
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task

FAMILIES = (*CPU, *CUDA)
KNOWN = registry()


@pytest.mark.parametrize("families", [CPU, CUDA], ids=["cpu", "cuda"])
def test_a_seed_gives_the_same_cases_and_covers_the_kinds(families: tuple[Family, ...]) -> None:
    cases = generate(families, 7, 60)
    assert cases == generate(families, 7, 60) != generate(families, 8, 60)
    kinds = {kind for family in families for kind in family.defects}
    assert len(kinds) >= 20 and kinds <= {kind for case in cases for kind in case.defects}
    assert sum(len(case.defects) == 2 for case in cases) >= 5


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_defect_changes_the_kernel_and_not_the_task(family: Family) -> None:
    for kind, names in family.defects.items():
        assert names and set(names) <= KNOWN.keys()
        case = make_case(family, (kind,), 3)
        for source in (case.defective, case.healthy):
            compile(source, case.name, "exec")
            assert kind == "torch_chain" or detect(source).name == family.language
    reference = Reference(Task(case.task, case.name), "meta", 0)
    assert reference.inputs(0)[1]


def test_pairs_combine_defects_that_different_diagnostics_name() -> None:
    for family in FAMILIES:
        pairs = [
            (first, second)
            for first in family.defects
            for second in family.defects
            if first < second and family.can_combine(first, second)
        ]
        for pair in pairs:
            case = make_case(family, pair, 5)
            singles = [make_case(family, (kind,), 5).defective for kind in pair]
            assert case.defective not in (*singles, case.healthy)


def test_every_kernel_of_the_examples_is_a_case_with_a_healthy_side_only() -> None:
    cases = example_cases()
    assert len(cases) >= 30 and {case.sides for case in cases} == {("healthy",)}
    assert {case.language for case in cases} == {"cuda", "cute", "triton"}
    assert make_case(CUDA[0], (next(iter(CUDA[0].defects)),), 3).sides == ("defective", "healthy")


def test_examples_report_the_account_and_severe_findings(capsys: pytest.CaptureFixture[str]) -> None:
    record = Path(__file__).parents[2] / "benchmarks/results/2026-11-18-h200-planted.jsonl.gz"
    print_examples(read([record])[-3:])
    *kernels, last = capsys.readouterr().out.splitlines()
    assert len(kernels) == 3 and all("account off by 0.0%, counted" in line for line in kernels)
    assert last == "examples: 3, account off by at most 0.00%, severe findings: 0"
