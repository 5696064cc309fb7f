"""Triton kernels that are compiled without a GPU: in a build cell, for the first real call to find."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import torch
from quick_judge import QuickJudge

from kernelpro.lab.languages import triton_ahead
from kernelpro.lab.languages.triton import CACHE
from kernelpro.lab.sandbox.launcher import SandboxLauncher
from kernelpro.records import Candidate, Status, Task

DEVICE: triton_ahead.DeviceProperties = {
    "name": "a Hopper",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
}
TASK = Task(
    "import torch\nclass Model(torch.nn.Module):\n    def __init__(self, factor):\n        super().__init__()\n"
    "        self.factor = factor\n    def forward(self, x): return torch.relu(x) * self.factor\n"
    "def get_inputs(): return [torch.randn(4096, 333)]\ndef get_init_inputs(): return [3.0]\n"
)
KERNELS = """
import torch, triton
import triton.language as tl

@triton.jit
def plain(x, y, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=at < n), 0.0) * factor, mask=at < n)

@triton.autotune([triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 512})], key=["n"], cache_results=True)
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)

class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        assert x.is_cuda and torch.cuda.get_device_properties(x.device).major >= 7
        y = torch.empty_like(x)
        plain[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), self.factor, BLOCK=256)
        REST
        return y
"""
GENERATED = """
import torch, triton
import triton.language as tl
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import AutotuneHint, DeviceProperties, ReductionHint, TileHint

@triton_heuristics.pointwise(
    size_hints={"x": 2097152},
    filename=__file__,
    triton_meta={
        "signature": {"x": "*fp32", "y": "*fp32", "xnumel": "i32", "XBLOCK": "constexpr"},
        "device": DeviceProperties(
            type="cuda", index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536,
            max_threads_per_multi_processor=2048, warp_size=32,
        ),
        "constants": {},
        "configs": [{(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]}],
    },
    inductor_meta={
        "grid_type": "Grid1D", "autotune_hints": set(), "kernel_name": "generated", "mutated_arg_names": [],
        "num_load": 1, "num_reduction": 0,
    },
)
@triton.jit
def generated(x, y, xnumel, XBLOCK: tl.constexpr):
    at = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=at < xnumel), 0.0) * 3.0, mask=at < xnumel)

class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
    def forward(self, x):
        y = torch.empty_like(x)
        generated.run(x, y, x.numel(), stream=torch.cuda.current_stream().cuda_stream)
        return y
"""
"""As torch.compile writes them: compiled by the decorator's own launcher."""
TUNED = KERNELS.replace(
    "REST", "tuned[lambda meta: (triton.cdiv(x.numel(), meta['BLOCK']),)](x[1:], y, x.numel())"
)


def files(launcher: SandboxLauncher, source: str) -> dict[str, bytes]:
    """What a build leaves in Triton's cache."""
    given = io.BytesIO()
    torch.save({"task": TASK}, given)
    cell = launcher.start("build", environment={"CUDA_VISIBLE_DEVICES": ""})
    try:
        cell.channel.send({"op": "build", "source": source, "device": DEVICE}, given.getvalue())
        answer, artifacts = cell.channel.receive(120.0)
    finally:
        cell.kill()
    assert answer == {"ok": True}, answer
    with tarfile.open(fileobj=io.BytesIO(artifacts)) as archive:
        found = {
            member.name: archive.extractfile(member)
            for member in archive
            if member.name.startswith(f"{CACHE}/")
        }
    return {name.removeprefix(f"{CACHE}/"): content.read() for name, content in found.items() if content}


def machine_code(found: dict[str, bytes]) -> list[str]:
    return sorted(Path(name).stem for name in found if name.endswith(".cubin"))


def test_every_launch_is_compiled_and_none_is_made(launcher: SandboxLauncher) -> None:
    pytest.importorskip("triton")
    found = files(launcher, TUNED)
    assert machine_code(found) == ["plain", "tuned", "tuned"]
    assert all(content.startswith(b"\x7fELF") for name, content in found.items() if name.endswith(".cubin"))


def test_kernels_of_the_compiler_are_compiled_in_all_their_configurations(launcher: SandboxLauncher) -> None:
    pytest.importorskip("triton")
    assert set(machine_code(files(launcher, GENERATED))) == {"generated"}


def test_what_was_compiled_before_a_call_ended_early_is_kept(launcher: SandboxLauncher) -> None:
    pytest.importorskip("triton")
    assert machine_code(files(launcher, KERNELS.replace("REST", "if float(y[0, 0]) > 0: y = y + 1"))) == [
        "plain"
    ]
    assert machine_code(files(launcher, KERNELS.replace("REST", "raise KeyboardInterrupt"))) == ["plain"]


def test_what_was_compiled_elsewhere_is_at_home(tmp_path: Path) -> None:
    place = tmp_path / "HASH"
    place.mkdir()
    group, timings = place / "__grp__plain.json", place / "plain.autotune.json"
    group.write_text(json.dumps({"child_paths": {"plain.cubin": "/gone/HASH/plain.cubin"}}))
    timings.write_text("{}")
    triton_ahead.relocate_cache(tmp_path)
    assert json.loads(group.read_text())["child_paths"] == {"plain.cubin": str(place / "plain.cubin")}
    assert not timings.exists(), "nothing was measured where there was no GPU"


@pytest.mark.parametrize("end", ["", ".to('cuda')"])
def test_what_lies_nowhere_says_that_it_lies_on_the_gpu(end: str) -> None:
    with triton_ahead.MetaAsCuda(), torch.no_grad():
        made = torch.zeros(3, 5, device="cuda") if not end else torch.zeros(3, 5).to("cuda")
        assert made.is_cuda and made.device == torch.device("cuda", 0) and made.get_device() == 0
        assert made.data_ptr() == 0 and made[1:].data_ptr() == 20
        assert (made @ torch.zeros(5, 2).cuda()).is_cuda
        with torch.device("cuda"):
            assert torch.empty(2).is_cuda
        assert not torch.zeros(2).is_cuda
        assert torch.nn.Linear(5, 2).to("cuda")(made).shape == (3, 2)


@pytest.mark.gpu
def test_the_first_real_call_compiles_nothing(quick_judge: QuickJudge) -> None:
    listening = "\ncompiled = []\ntriton.knobs.compilation.listener = lambda **told: compiled.append(told['cache_hit'])\n"
    asserted = KERNELS.replace("REST", "assert x.is_meta or compiled == [True], compiled")
    verdict = quick_judge.judge(
        TASK, Candidate(asserted + listening), "cuda", disabled_tripwires=("patching",)
    )
    assert verdict.status is Status.PASSED, verdict.reason
