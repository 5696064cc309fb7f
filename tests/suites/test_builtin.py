"""Our own suite: every task is sound, has sizes for both targets, and a sample of them goes through the judge's probe."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kernelpro.lab import tree
from kernelpro.lab.judge.probes import PROBE_SEEDS, probe
from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.tasks import work
from kernelpro.lab.tasks.reference import Reference, load_source
from kernelpro.records import Target, Task
from kernelpro.suites.problems import BUILTIN, find_problems

FILES = sorted(BUILTIN.glob("level*/*.py"))
GIB = 2**30
SHORT = ("embedding_bag", "int4_linear")
"""They take less on a GPU; what was measured of them stays comparable."""
SAMPLE = (
    "top_k_gating",
    "causal_softmax",
    "int4_linear",
    "mixture_of_experts",
    "selective_scan",
    "small_convnet",
)


def name(path: Path) -> str:
    return path.stem


def tensors(value: Any) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = []
    tree.flatten(value, leaves)
    return leaves


def test_there_are_enough_at_three_levels() -> None:
    levels = [problem.level for problem in find_problems("builtin", (), "", "cpu")]
    assert len(levels) == len(FILES) >= 60
    assert set(levels) == {1, 2, 3} and min(levels.count(level) for level in (1, 2, 3)) >= 20


@pytest.mark.parametrize("path", FILES, ids=name)
def test_the_file_says_what_it_is_and_has_both_sizes(path: Path) -> None:
    text = path.read_text()
    assert re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem)
    assert ast.get_docstring(ast.parse(text))
    assert text.count('TARGET = "cuda"\n') == 1, "KernelBench itself runs the size for a GPU"
    module = load_source(Task.from_file(path))
    assert set(module.SIZES) == {"cuda", "cpu"} and len(module.SIZES["cuda"]) == len(module.SIZES["cpu"])
    assert (
        Task.from_file(path).for_target("cpu").id
        != Task.from_file(path).id
        == Task.from_file(path).for_target("cuda").id
    )


@pytest.mark.parametrize("path", FILES, ids=name)
def test_the_task_runs_on_the_cpu_and_its_output_is_alive(path: Path) -> None:
    reference = Reference(Task.from_file(path).for_target("cpu"), "cpu", seed=3)
    outputs = []
    for seed in (1, 2):
        form, leaves = reference.inputs(seed)
        with torch.no_grad():
            outputs.append(tensors(reference.model()(*tree.unflatten(form, leaves))))
    for first, second in zip(*outputs, strict=True):
        assert torch.isfinite(first).all() and (first.numel() == 1 or first.double().std() > 0)
        assert first.shape == second.shape and not torch.equal(first, second), "the inputs matter"


@pytest.mark.parametrize(
    "path", [path for path in FILES if "mixture" not in path.stem and "moe" not in path.stem], ids=name
)
def test_the_size_for_a_gpu_is_a_fair_one(path: Path) -> None:
    """As docs/guides/benchmarking.md counts it. Without data, so that it costs nothing here; the two left out have shapes that depend on it."""
    module = load_source(Task.from_file(path))
    with torch.no_grad(), torch.device("meta"):
        model, inputs = module.Model(*module.get_init_inputs()), module.get_inputs()
        with FlopCounterMode(display=False) as counter:
            outputs = tensors(model(*inputs))
    read = (*tensors(inputs), *model.state_dict().values())
    moved = sum(t.numel() * t.element_size() for t in (*read, *outputs))
    rate = 700e12 if any(t.dtype is torch.bfloat16 for t in read) else 380e12
    ms = 1e3 * max(moved / 4e12, counter.get_total_flops() / rate)
    assert (0.05 < ms < 2) != path.stem.endswith(SHORT) and moved < 4 * GIB


@pytest.mark.parametrize("which", SAMPLE)
def test_the_probe_finds_nothing(which: str) -> None:
    (path,) = (path for path in FILES if path.stem.endswith(which))
    target: Target = "cpu"
    reference = Reference(Task.from_file(path).for_target(target), target, seed=3)
    oracle = Oracle(reference, GIB)
    tolerance = Tolerance(oracle, reference.precision(), seed=5)
    assert probe(oracle, tolerance, list(range(7, 7 + PROBE_SEEDS)), work.count(reference, 6)[0]) is None
    assert oracle.exact and tolerance.limits["as given"].separates
