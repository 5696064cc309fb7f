"""The playbook's CUDA: kernels run on the CPU and are held against the reference; nvcc compiles some for a Hopper."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_on_cpu import compiler, guarded
from playing import Trial, program, task
from test_playbook_families import FAMILIES

from kernelpro import runtime
from kernelpro.authors.author import NoIdea
from kernelpro.authors.playbook.cuda import WRITER
from kernelpro.authors.playbook.cuda_moves import MOVES
from kernelpro.authors.playbook.design import Design, StageDesign, of_source
from kernelpro.lab.languages.cuda import nvcc
from kernelpro.lab.languages.native import LaunchError
from kernelpro.lab.profile import sass
from kernelpro.records import Task

_MOST = 20.0
"""Times the reference's own error against float64."""
_MOST_OF_HALVES = 40000.0
"""Where results are rounded to halves: what is wrong is wrong by more."""

WAYS = {
    "a block a row": StageDesign(threads=128, vector=4, keep=True),
    "warps": StageDesign(threads=128, together=8, vector=2, keep=True),
    "again and again": StageDesign(threads=64, together=1, vector=1),
    "strips": StageDesign(order="strips", threads=64, lanes=4, vector=2, keep=True),
    "one thread a row": StageDesign(order="strips", threads=64, vector=4),
    "shared rows": StageDesign(threads=64, vector=4, split=3),
    "shared strips": StageDesign(order="strips", threads=64, lanes=2, vector=2, split=3),
}
TASKS: dict[str, Task] = {
    "softmax": task("F.softmax(a * 2, -1)", "torch.randn(11, 1200)"),
    "two norms": task("y = F.layer_norm(a + b, (640,)); return y, y.mean(1, keepdim=True), y.softmax(-1)", "torch.randn(7, 640), torch.randn(7, 640)"),
    "down the middle": task("return a.softmax(1), a.var(1), a.argmax(1), a.sum((0, 1))", "torch.randn(3, 70, 36)"),
    "running": task("return a.cumsum(1), (a + 1).cumprod(0), b.flip(1).cumsum(1) - b, b.cumsum(1)", "torch.rand(9, 30), torch.randint(0, 9, (3, 1100))"),
    "totals": task("return F.mse_loss(a, b), a.max(), (a * b).sum(-1).mean()", "torch.randn(300, 12), torch.randn(300, 12)"),
}


@pytest.fixture(scope="session")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compiler(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(autouse=True)
def _emulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(tmp_path))
    if "on_cpu" in request.fixturenames:
        monkeypatch.setattr(runtime, "cuda", request.getfixturevalue("on_cpu"))
    yield


def held(trial: Trial, design: Design, monkeypatch: pytest.MonkeyPatch) -> None:
    with guarded(monkeypatch):
        errors = trial.errors(design)
    halves = any(t.dtype in ("bfloat16", "float16") for t in trial.program.tensors)
    assert max(errors) <= (_MOST_OF_HALVES if halves else _MOST), (errors, design.line())


@pytest.mark.parametrize("name", FAMILIES)
def test_first_designs_are_right(name: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(FAMILIES[name], tmp_path, WRITER)
    if any(stage.product for stage in trial.program.stages):
        with pytest.raises(NoIdea, match="Triton"):
            WRITER.write(trial.program, trial.designs()[0])
        return
    held(trial, trial.designs()[0], monkeypatch)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TASKS)
def test_every_way_is_right(name: str, way: str, on_cpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(TASKS[name], tmp_path, WRITER)
    held(trial, Design("cuda", (WAYS[way],) * len(trial.program.stages)), monkeypatch)
