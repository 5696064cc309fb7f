"""Convolutions in C++: blocked products with packed operands, and transposed convolutions phase by phase."""

from __future__ import annotations

from pathlib import Path

import pytest
from playbook_harness import KernelChecker, make_task, operator_graph_of

from kernelpro.authors.playbook.cpp.backend import BACKEND
from kernelpro.authors.playbook.forms import programs_of
from kernelpro.authors.playbook.ir.stages import Program
from kernelpro.records import Task

MAX_ERROR = 8.0
"""Relative to the reference's own error against float64. Wrong kernels exceed it by thousands."""

PLAIN = {
    "2, 6, 83": "Conv1d(6, 12, 5, padding=4, dilation=2)",
    "3, 8, 19, 40": "Conv2d(8, 34, (3, 5), stride=(2, 3), padding=(2, 1), dilation=(1, 2), groups=2)",
    "2, 20, 7, 7": "Conv2d(20, 24, 1, bias=False)",
    "2, 3, 6, 7, 9": "Conv3d(3, 12, (2, 3, 3), stride=(1, 2, 1), padding=1)",
}
"""Shapes of inputs, and layers for them."""
TRANSPOSED = {
    "2, 12, 21": "ConvTranspose1d(12, 9, 5, stride=3, dilation=2, padding=2, output_padding=1)",
    "2, 12, 9, 13": "ConvTranspose2d(12, 27, (3, 2), stride=(2, 1), padding=1, groups=3, bias=False)",
    "2, 6, 4, 5, 7": "ConvTranspose3d(6, 9, 3, stride=(2, 1, 1), padding=1)",
}
STRIDED = "ConvTranspose1d(8, 9, 3, stride=2, dilation=2, padding=1)"
"""One of its two phases has no taps."""


def task_with_layers(layers: dict[str, str]) -> Task:
    """All layers side by side, each followed by element-wise operators."""
    names = "abcdef"[: len(layers)]
    forward = ", ".join(f"F.relu(self.m_{name}({name})) * 2 + 1" for name in names)
    inputs = ", ".join(f"torch.randn({shape})" for shape in layers)
    init = (f"self.m_{name} = nn.{layer}" for name, layer in zip(names, layers.values(), strict=True))
    return make_task(forward, inputs, "; ".join(init))


def program_with_own_convolutions(task: Task) -> Program:
    return programs_of(operator_graph_of(task), "cpu")["own"]


@pytest.fixture(autouse=True)
def _own_builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(tmp_path))


@pytest.mark.parametrize("layers", [PLAIN, TRANSPOSED], ids=["plain", "transposed"])
def test_blocks_match_the_reference(layers: dict[str, str], tmp_path: Path) -> None:
    """Small blocks, so that there are several of each kind; the element-wise operators are fused."""
    task = task_with_layers(layers)
    program = program_with_own_convolutions(task)
    first = BACKEND.seeds(program)[0].design
    assert not program.library_calls and all(stage.packed for stage in first.stages)
    small = first.with_all_stages(block_m=64, block_n=4, block_k=8)
    checker = KernelChecker(task, tmp_path, program=program)
    assert max(checker.errors(small)) < MAX_ERROR


def test_plain_loops_compute_phases_too(tmp_path: Path) -> None:
    """The last resort, on a transposed convolution of which one phase is zero."""
    task = make_task("self.m(a)", "torch.randn(2, 8, 33)", f"self.m = nn.{STRIDED}")
    program = program_with_own_convolutions(task)
    seeds = BACKEND.seeds(program)
    assert seeds[-1].is_last_resort and not any(stage.packed for stage in seeds[-1].design.stages)
    checker = KernelChecker(task, tmp_path, program=program)
    assert max(checker.errors(seeds[-1].design)) < MAX_ERROR


def test_consumers_of_a_transposed_convolution(tmp_path: Path) -> None:
    """A norm, another convolution and a mean do not read it phase by phase, but from memory."""
    task = make_task(
        "y = self.m(a); return self.n(F.relu(y)), self.v(F.relu(y)), torch.tanh(y).mean((2, 3))",
        "torch.randn(2, 6, 5, 9)",
        "self.m, self.n = nn.ConvTranspose2d(6, 8, 3, stride=2), nn.GroupNorm(2, 8)\n"
        "        self.v = nn.ConvTranspose2d(8, 6, 3, stride=(2, 1))",
    )
    program = program_with_own_convolutions(task)
    checker = KernelChecker(task, tmp_path, program=program)
    assert max(checker.errors(BACKEND.seeds(program)[-1].design)) < MAX_ERROR


def test_element_wise_operators_join_every_phase() -> None:
    task = make_task(
        "F.relu(self.m(a)) + 1", "torch.randn(2, 6, 9, 13)", "self.m = nn.ConvTranspose2d(6, 10, 4, stride=2)"
    )
    program = program_with_own_convolutions(task)
    assert len(program.stages) == 4, "one stage per phase"
    assert [store.tensor for stage in program.stages for store in stage.stores] == ["out0"] * 4


def test_the_likely_fastest_form_comes_first() -> None:
    def forms(layer: str, shape: str, forward: str = "F.relu(self.m(a))") -> list[str]:
        task = make_task(forward, f"torch.randn({shape})", f"self.m = nn.{layer}")
        return list(programs_of(operator_graph_of(task), "cpu"))

    assert forms("Conv2d(16, 32, 3)", "1, 16, 40, 40") == ["own", "library"]
    assert forms("Conv2d(16, 32, 3)", "1, 16, 16, 16") == ["library", "own"], "few positions"
    assert forms("ConvTranspose2d(16, 8, 2, stride=2)", "1, 16, 40, 40") == ["library", "own"], "few channels"
    assert forms("ConvTranspose2d(16, 32, 3)", "1, 16, 40, 40")[0] == "own", "a convolution, flipped"
    layers = "Sequential(nn.Conv2d(16, 32, 3), nn.Flatten(2), nn.Linear(1444, 20))"
    assert forms(layers, "1, 16, 40, 40")[0] == "library", "a product of matrices"
