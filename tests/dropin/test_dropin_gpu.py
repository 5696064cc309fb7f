"""Drop-in modules on a GPU, with kernels in Triton and CUDA and with the compiler's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelpro.dropin.module import optimize_module
from kernelpro.lab.seeds import seed_source
from kernelpro.lab.tasks.reference import Reference, load_source
from kernelpro.pools import winners
from kernelpro.records import Task

pytestmark = pytest.mark.gpu
RMSNORM = Path(__file__).parents[2] / "examples" / "gpu" / "rmsnorm"


@pytest.fixture(params=["triton_registers", "cuda_registers", "compile"])
def fast(request: pytest.FixtureRequest) -> Any:
    task = Task.from_file(RMSNORM / "task.py").for_target("cuda")
    if request.param == "compile":
        source = seed_source(Reference(task, "cuda", 0), "compile")
    else:
        source = (RMSNORM / f"{request.param}.py").read_text()
    (spec,) = winners.describe_winner(task, [source], "cuda", None)
    assert (spec.noun == "kernel") == (request.param != "compile")
    module = winners.build_reference(task).cuda()
    optimized = optimize_module(module, winners.winner_factory(spec, source, task))
    with torch.device("cuda"):
        optimized.inputs = tuple(load_source(task).get_inputs())
    return optimized


@torch.no_grad()
def test_the_kernel_serves_and_falls_back(fast: Any) -> None:
    inputs, right = fast.inputs, fast._kernelpro_base.forward
    assert torch.allclose(fast(*inputs), right(fast, *inputs), atol=1e-3, rtol=1e-3)
    fast(*inputs)
    assert fast.stats.kernel == 2 and not fast.stats.fallback, fast.stats
    with pytest.warns(UserWarning, match="has shape"):
        fast(*(t[:3] for t in inputs))
    with torch.autocast("cuda", torch.bfloat16):
        fast(*inputs)
    assert "autocast is enabled" in fast.stats.reasons
    for parameter in fast.parameters():
        parameter.mul_(1.5)
    assert torch.allclose(fast(*inputs), right(fast, *inputs), atol=1e-3, rtol=1e-3)
    assert fast.stats.kernel == 3


@torch.no_grad()
def test_it_survives_compilers_and_cuda_graphs(fast: Any) -> None:
    inputs = fast.inputs
    right = fast(*inputs)
    compiled = torch.compile(fast, fullgraph=True)
    assert torch.allclose(compiled(*inputs), right, atol=1e-3, rtol=1e-3)
    program = torch.export.export(torch.nn.Sequential(fast), inputs) if len(inputs) == 1 else None
    if program is not None:
        assert torch.allclose(program.module()(*inputs), right, atol=1e-3, rtol=1e-3)
    graph, served = torch.cuda.CUDAGraph(), fast.stats.kernel
    with torch.cuda.graph(graph):
        captured = fast(*inputs)
    graph.replay()
    torch.cuda.synchronize()
    assert fast.stats.kernel == served + 1 and torch.allclose(captured, right, atol=1e-3, rtol=1e-3)
