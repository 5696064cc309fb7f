"""Tasks with several shapes: how they are named, and what their times mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernelpro.lab.seeds.compose import reference_seed
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import BadInput, Interval, Shape, ShapeTimes, Task
from kernelpro.records.shapes import mean_times, parse_shape, shares, total_speedup
from kernelpro.tasks import load_task, with_shapes

FILE = """
import torch
SHAPES = [{"batch": 8, "weight": 3}, {"batch": 64}]
width = 16
class Model(torch.nn.Module):
    def forward(self, x): return torch.tanh(x)
def get_inputs(batch=4): return [torch.randn(batch, width)]
def get_init_inputs(): return []
"""


class Scaled(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return torch.tanh(x * self.weight) * scale


def input_shapes(task: Task) -> list[list[tuple[int, ...]]]:
    numbers = range(len(task.shapes))
    return [[tuple(t.shape) for t in Reference(task.at(n), "cpu", 0).inputs(1)[1]] for n in numbers]


def test_a_file_names_its_shapes(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(FILE)
    task = load_task(tmp_path / "several.py")
    assert shares(task.shapes) == [0.75, 0.25]
    assert input_shapes(task) == [[(8, 16)], [(64, 16)]]
    assert Task.from_json(task.to_json()) == task
    assert task.id != Task(task.source).id and task.at(0).id != task.at(1).id


def test_the_command_line_replaces_parameters_and_constants(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(FILE)
    task = with_shapes(load_task(tmp_path / "several.py"), ["batch=2,width=5", "width=7,weight=0.5"])
    assert input_shapes(task) == [[(2, 5)], [(4, 7)]]
    assert [shape.weight for shape in task.shapes] == [1.0, 0.5]


def test_an_unknown_constant_is_refused_before_a_worker_starts_and_by_the_worker(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(FILE)
    task = load_task(tmp_path / "several.py")
    message = "rows is neither a parameter of get_inputs nor a constant"
    with pytest.raises(BadInput, match=message):
        with_shapes(task, ["rows=3"])
    with pytest.raises(BadInput, match=message):
        load_task(tmp_path / "several.py", [{"rows": 3}, {"batch": 3}])
    with pytest.raises(BadInput, match=message):
        input_shapes(replace(task, shapes=(parse_shape("rows=3"),)))


@pytest.mark.parametrize("text", ["batch", "batch=", "=3", "batch=8,weight=-1", "batch=8,weight=many"])
def test_a_bad_shape_is_one_line(text: str) -> None:
    with pytest.raises(BadInput, match="--shape"):
        parse_shape(text)


def test_shapes_that_are_not_literals_are_refused() -> None:
    for line in ("SHAPES = make()", "SHAPES = []", "SHAPES = [8, 64]"):
        with pytest.raises(BadInput, match="SHAPES in line 1 must be a list of dicts"):
            load_task_from(line)


def load_task_from(line: str) -> object:
    from kernelpro.records.shapes import shapes_in_source

    return shapes_in_source(line, "t")


def test_a_module_gets_one_shape_for_each_tuple_of_inputs() -> None:
    small, large = torch.randn(4, 16), torch.randn(32, 16)
    task = load_task(Scaled(16), [(small,), (large,)], weights=[3, 1])
    assert input_shapes(task) == [[(4, 16)], [(32, 16)]]
    one = load_task(Scaled(16), [small])
    assert one.shapes == (Shape(),), "a single shape is a list of one"
    with pytest.raises(BadInput, match="weights: 1 for 2 shapes"):
        load_task(Scaled(16), [(small,), (large,)], weights=[1])
    with pytest.raises(BadInput, match="the same arguments"):
        load_task(Scaled(16), [{"x": small}, {"x": large, "scale": 2.0}])


def test_keyword_only_arguments_follow_the_positional_ones() -> None:
    module, x = Scaled(16), torch.randn(4, 16)
    task = load_task(module, {"x": x, "scale": 2.0})
    reference = Reference(task, "cpu", 0)
    assert reference.keyword_only == ("scale",) and reference.example_mismatch() == ""
    assert torch.equal(reference.model()(x, 2.0), module(x, scale=2.0))
    scope: dict[str, Any] = {}
    exec(reference_seed(reference), scope)
    candidate = scope["ModelNew"](16)
    candidate.load_state_dict(module.state_dict())
    assert torch.equal(candidate(x, 2.0), module(x, scale=2.0)), "torch's own code as a candidate"


def test_times_are_means_over_all_calls_and_speedups_are_of_the_total() -> None:
    def shape(weight: float, candidate: float, baseline: float) -> ShapeTimes:
        times = {"candidate": Interval(candidate, candidate, candidate), "eager": Interval(*[baseline] * 3)}
        return ShapeTimes("s", weight, times, {"eager": Interval(*[baseline / candidate] * 3)})

    shapes = [shape(0.9, 1.0, 2.0), shape(0.1, 100.0, 100.0)]
    times = mean_times(shapes)
    assert times["candidate"].value == pytest.approx(10.9) and times["eager"].value == pytest.approx(11.8)
    assert total_speedup(shapes)["eager"].value == pytest.approx(11.8 / 10.9)
