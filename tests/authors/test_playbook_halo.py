"""Convolutions in CUDA that read each input once: they run on the CPU and are compared with the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cuda_on_cpu import compiler, fenced, guarded
from playbook_harness import KernelChecker, make_task, operator_graph_of

from kernelpro import runtime
from kernelpro.authors.playbook.cuda.backend import BACKEND
from kernelpro.authors.playbook.cuda.halo_tiles import convolution_of, fit_halo_tiles
from kernelpro.authors.playbook.cuda.phase_tiles import fit_phase_tiles
from kernelpro.authors.playbook.forms import programs_of
from kernelpro.authors.playbook.schedule.design import Design, StageDesign, parse_design
from kernelpro.lab.languages.native import LaunchError
from kernelpro.records import Task

_MAX_ERROR = 8000.0
"""In units of the reference's own error in float32: operands are truncated to TF32. Wrong kernels are off by
more."""
_TILES = StageDesign(
    order="tiles", halo=True, tile_m=32, coarsening=2, tile_n=32, threads=64, pipeline_stages=2
)


def convolution(layer: str, x: str, forward: str = "self.c(a)") -> Task:
    return make_task(forward, f"torch.randn({x})", f"self.c = nn.{layer}")


FLIPPED = "F.conv2d(a, self.c.weight.transpose(0, 1).flip(2, 3), padding=1)"
CASES: dict[str, tuple[Task, int]] = {
    "no padding": (convolution("Conv2d(8, 32, 3)", "1, 8, 10, 20"), 4),
    "an epilogue": (
        convolution("Conv2d(16, 35, (3, 5), padding=(1, 2))", "2, 16, 9, 24", "F.relu(self.c(a)) * 2 + 1"),
        4,
    ),
    "stride and dilation": (
        convolution("Conv2d(11, 17, 3, padding=1, stride=2, dilation=2)", "2, 11, 13, 19"),
        1,
    ),
    "three dimensions": (
        convolution("Conv3d(4, 16, (3, 2, 3), stride=(2, 1, 2), padding=(1, 0, 1))", "2, 4, 5, 6, 20"),
        4,
    ),
    "one dimension": (convolution("Conv1d(8, 20, 4, dilation=2)", "2, 8, 90"), 1),
    "flipped weights": (convolution("ConvTranspose2d(10, 20, 3)", "2, 10, 7, 8", FLIPPED), 4),
}
"""Each with the elements of the input that are copied at a time."""
PHASED: dict[str, Task] = {
    "stride 2": convolution(
        "ConvTranspose2d(16, 36, 3, stride=2, padding=1, output_padding=1)",
        "2, 16, 9, 24",
        "F.relu(self.c(a)) * 2 + 1",
    ),
    "even kernel": convolution("ConvTranspose2d(12, 20, 4, stride=2, padding=1)", "2, 12, 6, 20"),
    "odd sizes": convolution(
        "ConvTranspose2d(8, 17, 3, stride=2)", "2, 8, 7, 19", "F.mish(self.c(a)) * a.mean()"
    ),
    "different strides": convolution("ConvTranspose2d(8, 16, (3, 5), stride=(1, 3))", "2, 8, 6, 18"),
    "many phases": convolution("ConvTranspose2d(8, 16, 5, stride=(2, 4), padding=2)", "1, 8, 9, 20"),
    "one dimension": convolution("ConvTranspose1d(9, 24, 3, stride=2)", "2, 9, 70"),
    "three dimensions": convolution(
        "ConvTranspose3d(8, 16, 3, stride=2, padding=1)", "2, 8, 3, 5, 18", "F.relu(self.c(a))"
    ),
    "whole third dimension": convolution("ConvTranspose3d(8, 16, (3, 4, 4), (1, 2, 2), 1)", "1, 8, 3, 5, 18"),
}
"""Transposed convolutions with a stride: each position has several phases."""


class HaloChecker(KernelChecker):
    """A check of the program without other forms, whose inputs are surrounded by poison values."""

    def __init__(self, task: Task, folder: Path, device: str = "cpu"):
        programs = programs_of(operator_graph_of(task), "cuda")
        program = programs.get("joint_phases") or programs["own"]
        super().__init__(task, folder, BACKEND, device, program)
        self._leaves = [fenced(leaf) for leaf in self._leaves]

    def small_tiles(self, tiles: int = 1) -> Design:
        """A design with several tiles along each axis."""
        stages = []
        for stage in self.program.stages:
            conv = convolution_of(stage, "tf32")
            fit = fit_phase_tiles if conv and conv.outputs > 1 else fit_halo_tiles
            design = replace(_TILES, tiles=tiles)
            stages.append(fit(conv, design, stage.max_shared_bytes) if conv else StageDesign())
        return replace(self.designs()[0], stages=tuple(stages))


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compiler(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(autouse=True)
def _emulated(
    on_cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(tmp_path))
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(runtime, "cuda", on_cpu)


def is_halo(source: str) -> bool:
    return "image_tiles" in source


@pytest.mark.parametrize("name", CASES)
def test_tiles_with_a_halo_are_correct(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, vector = CASES[name]
    checker = HaloChecker(task, tmp_path)
    conv = next(filter(None, (convolution_of(stage, "tf32") for stage in checker.program.stages)))
    assert conv.vector == vector
    design = checker.small_tiles()
    source = BACKEND.write(checker.program, design)
    assert is_halo(source) and parse_design(source) == design
    with guarded(monkeypatch):
        assert max(checker.source_errors(source)) <= _MAX_ERROR


@pytest.mark.parametrize("tiles", [1, 3])
@pytest.mark.parametrize("name", PHASED)
def test_phases_are_correct(name: str, tiles: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several tiles for a block, the weights stay in shared memory."""
    checker = HaloChecker(PHASED[name], tmp_path)
    design = checker.small_tiles(tiles=tiles)
    source = BACKEND.write(checker.program, design)
    assert source.count("bool KEEPS_WEIGHTS") == sum(stage.halo for stage in design.stages) > 0
    assert parse_design(source) == design
    with guarded(monkeypatch):
        assert max(checker.source_errors(source)) <= _MAX_ERROR


@pytest.mark.parametrize("name", ["an epilogue", *(pytest.param(n, marks=pytest.mark.long) for n in CASES)])
def test_the_first_design_has_tiles_with_a_halo(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = HaloChecker(CASES[name][0], tmp_path)
    source = BACKEND.write(checker.program, checker.designs()[0])
    assert is_halo(source)
    with guarded(monkeypatch):
        assert max(checker.source_errors(source)) <= _MAX_ERROR


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_tiles_with_a_halo_are_correct_on_a_gpu(name: str, tmp_path: Path) -> None:
    checker = HaloChecker(CASES[name][0], tmp_path, "cuda")
    for design in (checker.small_tiles(), *checker.designs()[:1]):
        assert max(checker.errors(design)) <= _MAX_ERROR, design.to_comment()


@pytest.mark.gpu
@pytest.mark.parametrize("name", PHASED)
def test_phases_are_correct_on_a_gpu(name: str, tmp_path: Path) -> None:
    checker = HaloChecker(PHASED[name], tmp_path, "cuda")
    for design in (checker.small_tiles(), checker.small_tiles(tiles=3), *checker.designs()):
        assert max(checker.errors(design)) <= _MAX_ERROR, design.to_comment()


@pytest.mark.parametrize("name", ["stride 2", *(pytest.param(n, marks=pytest.mark.long) for n in PHASED)])
def test_the_first_design_has_phases(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = HaloChecker(PHASED[name], tmp_path)
    source = BACKEND.write(checker.program, checker.designs()[0])
    assert "KEEPS_WEIGHTS" in source
    with guarded(monkeypatch):
        assert max(checker.source_errors(source)) <= _MAX_ERROR


@pytest.mark.parametrize("name", ["odd sizes", pytest.param("three dimensions", marks=pytest.mark.long)])
def test_phases_without_a_halo_are_correct(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other designs, which take part in no race: they compute phases of each tap that have no weight."""
    checker = HaloChecker(PHASED[name], tmp_path)
    first, *others = BACKEND.seeds(checker.program)
    assert not first.is_last_resort and others and all(seed.is_last_resort for seed in others)
    with guarded(monkeypatch):
        for seed in others:
            assert max(checker.errors(seed.design)) <= _MAX_ERROR, seed.design.to_comment()


def test_it_is_a_move_from_another_design_and_gives_way_after_a_failure(tmp_path: Path) -> None:
    checker = HaloChecker(CASES["an epilogue"][0], tmp_path)
    (move,) = (move for move in BACKEND.moves if move.name == "halo in shared memory")
    first, *others = checker.designs()
    assert move.apply(checker.program, first) is None
    plain = next(design for design in others if design.stages[0].order == "tiles")
    moved = move.apply(checker.program, plain)
    assert moved and moved.stages[0].halo
    assert not any(design.stages[0].halo for design in BACKEND.fallbacks(checker.program, first)[1:])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("async_wait<PIPELINE_STAGES - 2>();", "async_wait<PIPELINE_STAGES - 1>();"),
        ("unsigned(source_column) < 24u", "true"),
        ("unsigned(source_line) < 9u", "true"),
        ("ky * 1 * WIDTH", "ky * 1 * WIDTH + ky"),
        ("b[n][0], b[n][1]", "b[n][0], b[n][0]"),
    ],
)
def test_defects_are_detected(
    right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy without a wait, padding that is not zero, a wrong tap, half of the terms."""
    checker = HaloChecker(CASES["an epilogue"][0], tmp_path)
    source = BACKEND.write(checker.program, checker.small_tiles())
    assert right in source
    with pytest.raises((AssertionError, LaunchError)), guarded(monkeypatch):
        assert max(checker.source_errors(source.replace(right, wrong))) <= _MAX_ERROR


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("odd sizes", "(2 * further_x + phase_x) < 39", "(2 * further_x + phase_x) < 40"),
        ("odd sizes", "py + 2 - 2 * ty", "py + 1 - 2 * ty"),
        ("odd sizes", "step % PIPELINE_STAGES * IMAGE + place", "chunk % PIPELINE_STAGES * IMAGE + place"),
        ("stride 2", "phase_x + j]", "phase_x]"),
        ("stride 2", "if (next < steps)", "if (next < CHUNKS)"),
    ],
)
def test_defects_of_phases_are_detected(
    name: str, right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store beyond the result, a wrong weight, a wrong buffer, phases that are alike, a tile that is not
    copied."""
    checker = HaloChecker(PHASED[name], tmp_path)
    source = BACKEND.write(checker.program, checker.small_tiles(tiles=3))
    assert right in source
    with pytest.raises((AssertionError, LaunchError)), guarded(monkeypatch):
        assert max(checker.source_errors(source.replace(right, wrong))) <= _MAX_ERROR


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ("ConvTranspose2d(8, 32, 3, stride=2)", True),
        ("ConvTranspose2d(3, 32, 3, stride=2)", False),  # most of the 8 channels would be zero
        ("ConvTranspose2d(8, 32, 2, stride=2)", False),  # one tap
        ("ConvTranspose2d(8, 32, 3, stride=2, groups=2)", False),
        ("ConvTranspose2d(8, 32, 3, stride=2, dilation=2)", False),
        ("ConvTranspose2d(8, 32, 3)", False),  # no phases
    ],
)
def test_which_transposed_convolutions_have_phases(layer: str, expected: bool) -> None:
    channels = layer.split("(")[1].split(",")[0]
    programs = programs_of(operator_graph_of(convolution(layer, f"1, {channels}, 10, 20")), "cuda")
    stages = programs["joint_phases"].stages if "joint_phases" in programs else ()
    assert any(convolution_of(stage, "tf32") for stage in stages) == expected


@pytest.mark.parametrize(
    ("layer", "x", "expected"),
    [
        ("Conv2d(8, 32, 3)", "1, 8, 10, 20", True),
        ("Conv2d(8, 32, 1)", "1, 8, 10, 20", False),  # one tap
        ("Conv2d(3, 32, 3)", "1, 3, 10, 20", False),  # most of the 8 channels would be zero
        ("Conv2d(32, 32, 3, groups=2)", "1, 32, 10, 20", False),
        ("Conv2d(8, 32, 12)", "1, 8, 20, 20", False),  # too many taps
    ],
)
def test_which_convolutions_have_tiles_with_a_halo(layer: str, x: str, expected: bool) -> None:
    program = programs_of(operator_graph_of(convolution(layer, x)), "cuda")["own"]
    assert any(convolution_of(stage, "tf32") for stage in program.stages) == expected
    assert not any(convolution_of(stage, "fp32") for stage in program.stages)
