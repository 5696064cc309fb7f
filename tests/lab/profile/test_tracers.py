"""On a GPU: CUPTI, torch.profiler and nsys tell the same of the same call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lab.profile.nsys_program import trace_program

from kernelpro.lab.profile import nsys
from kernelpro.lab.profile.timeline import summarize
from kernelpro.lab.profile.trace import Trace
from kernelpro.lab.profile.tracers import trace_calls, trace_with_torch
from kernelpro.records import Skipped

pytestmark = pytest.mark.gpu

TARGET = """
import torch
from kernelpro.lab.profile.nsys import run_under_nsys
x = torch.rand(1 << 20, device="cuda")
def call():
    float((x * 2 + 1).sum().cpu())
call()
run_under_nsys(call, torch.cuda.synchronize)
"""


def run(argv: list[str]) -> tuple[int, str]:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def check_real(trace: Trace) -> set[str]:
    """Three kernels (one may come with a memset), a copy of four bytes back, one synchronisation; names of the kernels."""
    assert len(trace.calls) == 5, f"calls seen: {len(trace.calls)}; note: {trace.note!r}"
    timeline, kernels = summarize(trace.events, trace.calls, trace.source)
    told = timeline.dumps()
    assert timeline.launches == 3, told
    assert {copy.kind: (copy.count, copy.nbytes) for copy in timeline.copies if copy.kind != "memset"} == {
        "DtoH": (1, 4)
    }, told
    assert timeline.syncs == {"cudaStreamSynchronize": 1}, told
    assert round(timeline.apis["cudaLaunchKernel"]["count"], 6) == 3, told
    assert 0 < timeline.busy_us <= timeline.busy_us + timeline.gaps_us <= timeline.call_us, told
    assert all(k.grid[0] > 0 and k.block[0] > 1 and k.registers > 0 for k in kernels), kernels
    assert sum(k.share for k in kernels) <= 1 + 1e-9
    return {k.name for k in kernels}


def test_a_real_call_through_cupti_torch_and_nsys(tmp_path: Path) -> None:
    """All tracers tell the same of the same call, down to the names."""
    x = torch.rand(1 << 20, device="cuda")

    def call() -> None:
        float((x * 2 + 1).sum().cpu())

    call()
    trace = Trace.from_json(json.loads(json.dumps(trace_calls(call, torch.cuda.synchronize))))
    assert not trace.note, trace.note
    names = check_real(trace)
    assert check_real(trace_with_torch(call, torch.cuda.synchronize, 5, "asked for")) == names
    if not nsys.find_nsys():
        pytest.skip("CUPTI and torch.profiler agree; nsys is not here")
    (tmp_path / "target.py").write_text(TARGET)
    traced = trace_program(run, [sys.executable, str(tmp_path / "target.py")], tmp_path)
    if isinstance(traced, Skipped):
        pytest.skip(f"CUPTI and torch.profiler agree; {traced.why}")
    assert check_real(traced) == names


def test_a_real_graph_is_one_launch() -> None:
    x = torch.rand(1 << 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    x.mul_(1.0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(6):
            x.mul_(1.0)
    trace = Trace.from_json(trace_calls(graph.replay, torch.cuda.synchronize))
    timeline, kernels = summarize(trace.events, trace.calls, trace.source)
    assert timeline.launches == 1 and sum(k.launches for k in kernels) == 6, (
        timeline.dumps(),
        kernels,
        trace.note,
    )
    assert timeline.syncs == {} and "cudaGraphLaunch" in timeline.apis, timeline.dumps()
