"""One kernel for all shapes, or one for each; exports of both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from elsewhere import SELF_TEST, Elsewhere, candidate, task

from kernelpro.engine.export import Winner, package_files, standalone_file
from kernelpro.engine.shape_dispatch import choose_by_shape, specialists
from kernelpro.records import (
    BadInput,
    Candidate,
    ComparableTimes,
    Interval,
    Shape,
    ShapeTimes,
    Status,
    Step,
    Verdict,
)
from kernelpro.records.shapes import mean_times, total_speedup

MEASURED = ComparableTimes()


def verdict(*times: float) -> Verdict:
    shapes = tuple(
        ShapeTimes(
            f"{n}x8",
            0.5,
            {"candidate": Interval(t, t, t), "eager_fp32": Interval(8.0, 8.0, 8.0)},
            {"eager_fp32": Interval(8 / t, 8 / t, 8 / t)},
            0.1,
        )
        for n, t in enumerate(times)
    )
    return Verdict(
        "c",
        Status.PASSED,
        "correct",
        times=mean_times(shapes),
        speedup=total_speedup(shapes),
        faster="yes",
        shapes=shapes,
    )


def test_shapes_get_their_own_kernels_if_one_for_all_costs_more_than_five_percent() -> None:
    passed = {3: verdict(1.0, 4.0), 4: verdict(4.0, 1.0), 5: verdict(2.0, 2.0)}
    steps, together = choose_by_shape(MEASURED, passed, 5)
    assert steps == (3, 4) and together.times["candidate"].value == 1.0
    assert together.speedup["eager_fp32"].value == 8.0 and "step 3 for 0x8" in together.reason
    near = {3: verdict(1.0, 1.05), 4: verdict(1.05, 1.0)}
    assert choose_by_shape(MEASURED, near, 3) == ((), near[3])
    single = {1: verdict(2.0)}
    assert choose_by_shape(MEASURED, single, 1) == ((), single[1])


def test_the_fastest_for_each_shape_is_a_finalist() -> None:
    steps = [
        Step(n, 0, "seed", verdict=v) for n, v in ((1, verdict(1, 9)), (2, verdict(3, 3)), (3, verdict(9, 1)))
    ]
    assert [step.number for step in specialists(MEASURED, steps)] == [1, 3]
    assert specialists(MEASURED, [Step(1, 0, "seed", verdict=verdict(1.0))]) == []


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path)


def test_an_export_has_a_kernel_for_each_shape(elsewhere: Elsewhere) -> None:
    several = replace(
        task(),
        source=task()
        .source.replace("(16, 8)", "(rows, 8)")
        .replace("import torch,", "rows = 16\nimport torch,"),
    )
    several = replace(several, shapes=(Shape(3.0), Shape(1.0, {"rows": 40})))
    one = candidate("x * self.scale")
    other = one.replace("return x * self.scale", "assert len(x) == 40\n        return x * self.scale")
    assert other != one
    winner = Winner(several, one, None, {"target": "cpu"}, (one, other))
    (elsewhere.folder / "kernel.py").write_text(standalone_file(winner))
    with pytest.raises(BadInput, match="an export with one kernel for each shape"):
        Candidate.from_file(elsewhere.folder / "kernel.py")
    output = elsewhere.passes(SELF_TEST)
    assert output.count("shape 1, seed") == output.count("shape 2, seed") == 3
    files = package_files(winner, "two_kernels")
    assert files["two_kernels/kernel.py"] == one and files["two_kernels/kernel_2.py"] == other
