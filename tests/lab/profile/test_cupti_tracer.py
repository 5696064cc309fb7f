"""The recorder inside a process: layouts of the real headers, records through callbacks, torch.profiler as stand-in."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from kernelpro.lab.profile.timeline import summarize
from kernelpro.lab.profile.trace import (
    CALL_RANGE,
    WAIT_RANGE,
    Trace,
    TracedCall,
    TraceEvent,
    calls_from_ranges,
)
from kernelpro.lab.profile.tracers import LAYOUT, parse_chrome_trace

HERE = Path(__file__).parent
OBSERVE = """
import json, sys
from kernelpro.lab.profile.tracers import trace_calls
json.dump(trace_calls(lambda: None, lambda: None), open(sys.argv[1], "w"))
"""


def headers() -> Iterator[Path]:
    """Folders with CUPTI's headers: of the CUDA toolkit and of Triton's wheel."""
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    roots = [Path(toolkit, "include")]
    if (spec := find_spec("triton")) and spec.origin:
        roots.append(Path(spec.origin).parent / "backends" / "nvidia" / "include")
    yield from (root for root in roots if (root / "cupti_activity.h").exists())


def structs(folder: Path) -> dict[str, str]:
    """The newest struct of each record: CUpti_ActivityKernel -> CUpti_ActivityKernel10."""
    text = (folder / "cupti_activity.h").read_text()
    found = {}
    for record in LAYOUT:
        versions = [int(number or 0) for number in re.findall(rf"^}} {record}(\d*);", text, re.M)]
        found[record] = f"{record}{max(versions) or ''}"
    return found


def compiled(source: Path, folder: Path, *flags: str) -> Path:
    out = source.with_suffix(".out")
    said = subprocess.run(
        ["gcc", f"-I{folder}", *flags, str(source), "-o", str(out)], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    return out


with_headers = pytest.mark.parametrize(
    "folder", [*headers()] or [pytest.param(None, marks=pytest.mark.skip("no CUPTI headers"))], ids=str
)
with_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")


@with_gcc
@with_headers
def test_the_layout_is_that_of_the_headers(folder: Path, tmp_path: Path) -> None:
    names = structs(folder)
    lines = [
        f'printf("{record} {field} %zu %zu\\n", offsetof({names[record]}, {field}), sizeof((({names[record]} *)0)->{field}));'
        for record, fields in LAYOUT.items()
        for field in fields
    ]
    (tmp_path / "offsets.c").write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <cuda.h>\n#include <cupti.h>\nint main() {\n"
        + "\n".join(lines)
        + "\n}\n"
    )
    said = subprocess.run(
        [compiled(tmp_path / "offsets.c", folder)], capture_output=True, text=True, check=True
    ).stdout
    sizes = {"B": 1, "H": 2, "i": 4, "I": 4, "Q": 8}
    ours = {
        f"{record} {field} {at} {sizes[code]}"
        for record, fields in LAYOUT.items()
        for field, (at, code) in fields.items()
    }
    assert set(said.splitlines()) == ours


def environment(libraries: Path | None) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": os.pathsep.join(sys.path)}


def observed(tmp_path: Path, libraries: Path) -> Trace:
    """`trace_calls` in a process of its own that finds its CUPTI in the folder `libraries`."""
    answer = tmp_path / "trace.json"
    said = subprocess.run(
        [sys.executable, "-c", OBSERVE, str(answer)],
        env=environment(libraries),
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    return Trace.from_json(json.loads(answer.read_text()))


@with_gcc
@with_headers
def test_records_come_through_cuptis_callbacks(folder: Path, tmp_path: Path) -> None:
    names = structs(folder)
    source = tmp_path / "cupti.c"
    source.write_text((HERE / "fake_cupti.c").read_text())
    kinds = [
        f"-D{record.removeprefix('CUpti_Activity').upper()}={name}"
        for record, name in names.items()
        if "API" not in record
    ]
    compiled(source, folder, "-shared", "-fPIC", *kinds).rename(tmp_path / "libcupti.so")
    trace = observed(tmp_path, tmp_path)
    assert not trace.note and trace.source == "cupti"
    # the clock moves by 1000 at every reading, and a call reads it four times
    assert trace.calls == tuple(
        TracedCall(start, start + 1000, start + 3000) for start in range(2000, 22000, 4000)
    )
    assert len(trace.events) == 25, "the record without a time is left out"
    api, inner, kernel, copy, memset = trace.events[:5]
    assert api == TraceEvent("api", "cudaLaunchKernel", 2100, 2300, correlation=10, thread=7)
    assert inner == TraceEvent("api", "cuLaunchKernelEx", 2150, 2250, correlation=10, thread=7)
    assert kernel == TraceEvent(
        "kernel", "_Z7softmaxPKfPfi", 2400, 2900, (132, 2, 3), (256, 4, 5), 40, 1024, 65536, correlation=10
    )
    assert copy == TraceEvent("copy", "DtoH", 3000, 3100, nbytes=4096, copy_kind="DtoH", correlation=90)
    assert memset == TraceEvent("memset", "memset", 3200, 3250, nbytes=512, correlation=70)
    timeline, kernels = summarize(trace.events, trace.calls)
    assert (timeline.call_us, timeline.busy_us, timeline.gaps_us, timeline.launches) == (3.0, 0.65, 0.2, 1)
    assert timeline.apis == {"cudaLaunchKernel": {"count": pytest.approx(1), "us": pytest.approx(0.2)}}
    assert kernels[0].name == "softmax(float const*, float*, int)" and kernels[0].microseconds == 0.5


def triton_cupti() -> Path | None:
    """The folder of the CUPTI in Triton's wheel: a real one, which without a GPU knows names and time but records nothing."""
    spec = find_spec("triton")
    folder = (
        Path(spec.origin).parent / "backends" / "nvidia" / "lib" / "cupti" if spec and spec.origin else None
    )
    return folder if folder and (folder / "libcupti.so").exists() else None


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUPTI works here")
def test_without_cupti_torch_profiler_stands_in_and_says_why(tmp_path: Path) -> None:
    libraries = triton_cupti()
    trace = observed(tmp_path, libraries or tmp_path)
    assert len(trace.calls) == 5 and not trace.events
    assert all(call.start_ns < call.returned_ns < call.end_ns for call in trace.calls)
    why = r"failed with error \d+ \(CUPTI_ERROR_\w+\)" if libraries else "not found"
    assert re.search(f"torch.profiler was used instead of CUPTI: .*{why}", trace.note)


@pytest.mark.skipif(not triton_cupti(), reason="no CUPTI in Triton's wheel")
def test_the_real_cupti_knows_names_and_time(tmp_path: Path) -> None:
    program = "print(r._api(2, 131), r._api(1, 652), r._api(2, 10**6), r.now())"
    program = f"from kernelpro.lab.profile.tracers import CuptiTracer; r = CuptiTracer(); {program}"
    said = subprocess.run(
        [sys.executable, "-c", program], env=environment(triton_cupti()), capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    stream, launch, unknown, now = said.stdout.split()
    assert (stream, launch, unknown) == (
        "cudaStreamSynchronize",
        "cuLaunchKernelEx",
        "cudaApi1000000",
    ) and int(now) > 0


def test_a_trace_of_torch_profiler_gives_the_same_events() -> None:
    def row(kind: str, name: str, start: float, took: float, **more: object) -> dict[str, object]:
        return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": took, "tid": 7, "args": more}

    ranges, events = parse_chrome_trace(
        {
            "traceEvents": [
                {"ph": "M", "name": "process_name"},
                row("user_annotation", CALL_RANGE, 1.0, 9.0),
                row("user_annotation", WAIT_RANGE, 4.0, 5.5),
                row("gpu_user_annotation", CALL_RANGE, 2.0, 3.0),
                row("cpu_op", "aten::add", 1.0, 1.0),
                row("cuda_runtime", "cudaLaunchKernel", 1.5, 0.5, correlation=3),
                row(
                    "kernel",
                    "add(float*)",
                    3.0,
                    2.25,
                    grid=[8, 1, 1],
                    block=[64, 1, 1],
                    correlation=3,
                    **{"registers per thread": 16, "shared memory": 32},
                ),
                row("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 6.0, 0.5, bytes=4, correlation=4),
                row("gpu_memset", "Memset (Device)", 7.0, 0.5, bytes=8, correlation=5),
            ]
        }
    )
    assert calls_from_ranges(ranges) == (TracedCall(1000, 4000, 10000),)
    assert events == [
        TraceEvent("api", "cudaLaunchKernel", 1500, 2000, correlation=3, thread=7),
        TraceEvent("kernel", "add(float*)", 3000, 5250, (8, 1, 1), (64, 1, 1), 16, 0, 32, correlation=3),
        TraceEvent("copy", "DtoH", 6000, 6500, nbytes=4, copy_kind="DtoH", correlation=4),
        TraceEvent("memset", "memset", 7000, 7500, nbytes=8, correlation=5),
    ]


KERNEL = TraceEvent("kernel", "k", 0, 1, (1, 1, 1), (128, 1, 1))


def test_a_forged_trace_is_refused() -> None:
    good = Trace("cupti", (TracedCall(0, 1, 2),), (KERNEL,)).to_json()
    assert Trace.from_json(json.loads(json.dumps(good))).events == (KERNEL,)
    row = good["events"][0]
    forgeries = [
        ["spell", *row[1:]],
        [*row[:2], "x", *row[3:]],
        [*row[:2], 5, 1, *row[4:]],
        row[:2],
        7,
        [*row[:4], 3, *row[5:]],
        [*row[:2], 0, 1e400, *row[4:]],
    ]
    for bad in forgeries:
        with pytest.raises(ValueError, match="not a trace"):
            Trace.from_json({**good, "events": [bad]})
    for bad in (None, [], {}, {**good, "calls": [[1, 2]]}, {**good, "calls": [[0, 1, float("inf")]]}):
        with pytest.raises(ValueError, match="not a trace"):
            Trace.from_json(bad)
