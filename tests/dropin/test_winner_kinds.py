"""Drop-in modules with winners of each kind: C++ on the CPU; Triton, CUDA and torch.compile's on a GPU."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from two_files import scaling
from two_files.layers import RootNorm, Stack
from winner_kinds import WIDTH, inputs, optimized, winner

import kernelpro
from kernelpro import FallbackError, FallbackWarning
from kernelpro.engine.export import write_export

Kind = tuple[str, str]
_GPU = [pytest.param((kind, "cuda"), marks=pytest.mark.gpu) for kind in ("triton", "cuda", "compile")]
_KINDS = [("cpp", "cpu"), pytest.param(("compile", "cpu"), marks=pytest.mark.long), *_GPU]
pytestmark = [
    pytest.mark.parametrize("kind", _KINDS, ids="-".join),
    pytest.mark.usefixtures("no_grad", "fresh_compiler"),
]


def served(fast: Any, x: torch.Tensor) -> str:
    """Who serves a call; checks its result against the original class."""
    before = fast.stats.kernel
    assert torch.allclose(fast(x), RootNorm.forward(fast, x), atol=1e-5)
    return "kernel" if fast.stats.kernel > before else list(fast.stats.reasons)[-1]


def test_both_shapes_are_served_and_others_fall_back_with_one_warning(kind: Kind) -> None:
    fast, device = optimized(*kind), kind[1]
    assert [served(fast, inputs(device, number)) for number in (0, 1, 0, 1)] == ["kernel"] * 4
    with pytest.warns(FallbackWarning, match="x has shape") as caught:
        assert served(fast, inputs(device, rows=5)).startswith("x has shape (5, 512)")
        served(fast, inputs(device, rows=5))
    assert len(caught) == 1
    fast.act = "relu"
    assert served(fast, inputs(device)) == "act is 'relu', judged with 'none'"
    fast.act = "none"
    scaling.GAIN = 2.0
    try:
        assert served(fast, inputs(device)).startswith("GAIN in inverse_rms is 2.0")
    finally:
        scaling.GAIN = 1.0
    assert served(fast, inputs(device)) == "kernel"
    assert served(fast, inputs(device).half().float().t().contiguous().t()).startswith("x has other strides")
    with pytest.raises(FallbackError, match="x has shape"):
        optimized(*kind, strict=True)(inputs(device, rows=5))
    wide = type(fast)(256).to(device)
    assert wide(torch.randn(3, 256, device=device)).shape == (3, 256), "the constructor is the reference's"
    other = type(fast).from_module(RootNorm(WIDTH, act="relu").eval().to(device))
    assert served(other, inputs(device)) == "act is 'relu', judged with 'none'"


def test_gradients_autocast_and_vmap_fall_back(kind: Kind) -> None:
    fast, device = optimized(*kind), kind[1]
    x = inputs(device)
    assert served(fast, x) == "kernel"
    with torch.autocast(device, torch.bfloat16):
        assert served(fast, x) == "autocast is enabled"
    several = torch.stack([x, x + 1, x - 1])
    assert torch.allclose(torch.func.vmap(fast)(several), RootNorm.forward(fast, several), atol=1e-5)
    assert "a torch.func transform such as vmap is active" in fast.stats.reasons
    with torch.enable_grad():
        fast(x).sum().backward()
    assert fast.weight.grad is not None and "gradients are required" in str(fast.stats)
    assert served(fast, x) == "kernel" and fast.stats.fallback == 3


def test_state_behaves_as_the_original(kind: Kind, tmp_path: Path) -> None:
    fast, device = optimized(*kind), kind[1]
    x = inputs(device)
    original = RootNorm(WIDTH).to(device)
    assert served(fast, x) == "kernel" and list(fast.state_dict()) == list(original.state_dict())
    torch.save(original.state_dict(), tmp_path / "checkpoint.pt")
    fast.load_state_dict(torch.load(tmp_path / "checkpoint.pt"))
    assert served(fast, x) == "kernel" and torch.equal(fast.weight, original.weight)
    fast.weight.mul_(2)
    assert served(fast, x) == "kernel"
    original.load_state_dict(fast.state_dict())
    assert torch.equal(original.weight, fast.weight)
    fast.weight = torch.nn.Parameter(torch.ones(WIDTH, device=device))
    assert served(fast, x) == "kernel"
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        other.weight.add_(1)
        assert served(other, x) == "kernel" and not torch.allclose(other(x), fast(x))
    fast.double()
    assert served(fast, x.double()).startswith("x has dtype float64")
    fast.float()
    if device == "cuda":
        fast.cpu()
        assert served(fast, x.cpu()) == "x is on cpu, the kernel is for cuda"
        fast.cuda()
    assert served(fast, x) == "kernel"


def test_a_patched_model_is_compiled_as_one_graph_and_restored(kind: Kind) -> None:
    model, x = Stack(WIDTH).eval().to(kind[1]), inputs(kind[1])
    right, originals = model(x), [layer["norm"] for layer in model.layers]
    patch = kernelpro.patch(model, {"layers.*.norm": optimized(*kind)}, (x,))
    assert all(stats.kernel == 1 and not stats.fallback for stats in patch.stats.values()), patch
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, examples: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        seen.extend(str(node.target) for node in graph.graph.nodes)
        return compile_fx(graph, examples)

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    assert torch.allclose(compiled(x), right, atol=1e-4)
    assert sum(name.startswith("kernelpro.rootnorm") for name in seen) == 3
    model.layers[1]["norm"].weight.mul_(2)
    assert torch.allclose(compiled(x), model(x), atol=1e-4), "new weights are seen"
    model.layers[1]["norm"].weight.div_(2)
    patch.undo()
    assert [layer["norm"] for layer in model.layers] == originals and torch.equal(model(x), right)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_calls_the_operator(kind: Kind, strict: bool) -> None:
    fast, x = optimized(*kind), inputs(kind[1])
    right = fast(x)
    program, file = torch.export.export(torch.nn.Sequential(fast), (x,), strict=strict), io.BytesIO()
    assert any("kernelpro.rootnorm" in str(node.target) for node in program.graph.nodes)
    assert torch.allclose(program.module()(x), right, atol=1e-5)
    torch.export.save(program, file)
    file.seek(0)
    assert torch.allclose(torch.export.load(file).module()(x), right, atol=1e-5)


def test_a_cuda_graph_captures_the_kernel(kind: Kind) -> None:
    if kind[1] == "cpu":
        pytest.skip("there are no CUDA graphs on a CPU")
    fast, x = optimized(*kind), inputs("cuda")
    early = torch.cuda.CUDAGraph()
    with torch.cuda.graph(early):
        fast(x)
    assert "a CUDA graph is captured before the kernel is ready" in str(fast.stats)
    fast(x)
    graph, before = torch.cuda.CUDAGraph(), fast.stats.kernel
    with torch.cuda.graph(graph):
        captured = fast(x)
    assert fast.stats.kernel == before + 1
    for _ in range(2):
        x.copy_(inputs("cuda"))
        graph.replay()
        assert torch.allclose(captured, RootNorm.forward(fast, x), atol=1e-5)
    model = Stack(WIDTH).eval().cuda()
    with kernelpro.patch(model, {"layers.*.norm": fast}):
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for _ in range(4):
            x = inputs("cuda")
            assert torch.allclose(compiled(x), model(x), atol=1e-4)


def test_an_export_needs_neither_the_package_nor_kernelpro(kind: Kind, tmp_path: Path) -> None:
    path = write_export(winner(*kind), tmp_path / "fast.py")
    assert path.stat().st_size < 400_000, "weights and inputs are not in its text"
    assert "from fast import OptimizedRootNorm" in path.read_text()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, "fast.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0 and "self-test passed" in run.stdout, run.stdout + run.stderr
