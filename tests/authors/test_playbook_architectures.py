"""The CUDA kernels that the playbook writes compile for every architecture since Ampere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playbook_harness import make_task, operator_graph_of
from test_playbook_families import FAMILIES

from kernelpro.authors.author import Assignment, NoProposal
from kernelpro.authors.playbook.cuda.backend import BACKEND
from kernelpro.authors.playbook.forms import programs_of
from kernelpro.authors.playbook.ir.stages import Program
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.authors.playbook.recurrent.module import recurrent_source
from kernelpro.authors.playbook.schedule.design import Design
from kernelpro.lab.languages.cuda import nvcc
from kernelpro.lab.tuning import tunables
from kernelpro.records import Hardware, Task

ARCHITECTURES = ("80", "86", "89", "90a", "100a", "120a")
WITH_WGMMA = "linear", "matrix products", "masked products"
TASKS: dict[str, Task] = {
    "product": make_task("F.gelu(a @ b) + c", "torch.randn(256, 64), torch.randn(64, 128), torch.randn(128)"),
    "linear": make_task("F.gelu(self.l(a))", "torch.randn(256, 64)", "self.l = nn.Linear(64, 128)"),
    "convolution": make_task(
        "self.n(F.relu(self.m(a)))",
        "torch.randn(2, 16, 34, 34)",
        "self.m = nn.ConvTranspose2d(16, 32, 3); self.n = nn.GroupNorm(4, 32)",
    ),
    "transposed convolution": make_task(
        "F.relu(self.m(a))", "torch.randn(2, 16, 34, 36)", "self.m = nn.ConvTranspose2d(16, 32, 3, stride=2)"
    ),
    **FAMILIES,
}


def cases() -> Iterator[Any]:
    """Products, whose instructions depend on the architecture, for the oldest, Hopper and the newest; the rest
    is left to `make test-long`."""
    for name in TASKS:
        for architecture in ARCHITECTURES:
            default = (name, architecture) in (("product", "80"), ("product", "120a"), ("linear", "90a"))
            yield pytest.param(name, architecture, marks=() if default else pytest.mark.long)


@pytest.mark.skipif(nvcc() is None, reason="needs nvcc")
@pytest.mark.parametrize(("name", "architecture"), list(cases()))
def test_first_designs_compile(
    name: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELPRO_CUDA_ARCH", architecture)
    monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(tmp_path))
    try:
        programs = programs_of(operator_graph_of(TASKS[name]), "cuda")
        sources = [BACKEND.write(p, first_design(p, architecture)) for p in programs.values()]
    except NoProposal as reason:
        pytest.skip(f"not written in CUDA: {reason}")
    on_hopper = architecture == "90a" and name in WITH_WGMMA
    assert any("wgmma_tf32(" in source for source in sources) == on_hopper
    for source in sources:
        exec(source, {})
    logs = [path.read_text() for path in tmp_path.glob("*.log")]
    assert logs and all(f"for 'sm_{architecture}'" in log for log in logs)


def first_design(program: Program, architecture: str) -> Design:
    """The first design that the architecture has the instructions for."""
    designs = (seed.design for seed in BACKEND.seeds(program))
    return next(d for d in designs if architecture == "90a" or not any(stage.wgmma for stage in d.stages))


LARGE: dict[str, Task] = {
    "product": make_task("F.gelu(a @ b)", "torch.zeros(2048, 2048), torch.zeros(2048, 2048)"),
    "strided product": make_task("a.t() @ b", "torch.zeros(2048, 2048), torch.zeros(2048, 2048)"),
    "convolution": make_task("self.m(a)", "torch.zeros(8, 64, 128, 128)", "self.m = nn.Conv2d(64, 128, 3)"),
    "reduced channels": make_task(
        "self.m(a).softmax(1)", "torch.zeros(8, 64, 64, 64)", "self.m = nn.Conv2d(64, 128, 3)"
    ),
    "transposed convolution": make_task(
        "self.m(a)", "torch.zeros(8, 64, 64, 64)", "self.m = nn.ConvTranspose2d(64, 64, 3, stride=2)"
    ),
}


@pytest.mark.parametrize(
    ("capability", "shared_bytes"), [("8.0", 166912), ("8.6", 101376), ("9.0", 232448), ("12.0", 101376)]
)
@pytest.mark.parametrize("name", LARGE)
def test_tiles_fit_into_the_shared_memory_of_the_device(
    name: str, capability: str, shared_bytes: int
) -> None:
    """Every design states its limit as a constraint, which parsing checks for the design's own tiles."""
    task, hardware = LARGE[name], Hardware(facts={"capability": capability})
    graph = operator_graph_of(task)
    assignment = Assignment(1, "seed", task, "cuda", "tf32", 0.1, {}, graph=graph, hardware=hardware)
    limited = 0
    for draft in Playbook().seed_drafts(assignment):
        texts = [constraint.text for constraint in tunables.parse(draft.source).constraints]
        limits = [text for text in texts if "PIPELINE_STAGES" in text]
        limited += bool(limits)
        assert all(text.endswith(f"<= {shared_bytes}") for text in limits), limits
    assert limited


@pytest.mark.long
@pytest.mark.skipif(nvcc() is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_recurrent_kernels_compile(
    cell: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELPRO_CUDA_ARCH", architecture)
    monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(tmp_path))
    task = make_task("self.m(a)[0]", "torch.randn(9, 10, 24)", f"self.m = nn.{cell}(24, 256, 2)")
    exec(recurrent_source(operator_graph_of(task)) or "", {})
    logs = [path.read_text() for path in tmp_path.glob("*.log")]
    assert logs and all(f"for 'sm_{architecture}'" in log for log in logs)
