"""Profiles cases and their healthy twins on a GPU, many in a few processes.

 1. A pool of processes builds and disassembles the kernels.
 2. As they become ready, this process times each pair in turn (CUDA events, cold L2) and traces some calls.
 3. Few runs of ncu, over `ncu_target`, collect the counters of many cases each.

The rest is what `kernelpro profile` does, without its sandbox.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kernelpro.diagnose import roofline, runner
from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab import tree
from kernelpro.lab.languages import own_kernels
from kernelpro.lab.measure import environment, physics
from kernelpro.lab.measure.participant import Flusher
from kernelpro.lab.profile import ncu, sass, timeline
from kernelpro.lab.profile.collect import add_counters
from kernelpro.lab.profile.device_properties import device_properties
from kernelpro.lab.profile.kernel_names import plain_name
from kernelpro.lab.profile.trace import Trace
from kernelpro.lab.profile.tracers import trace_calls
from kernelpro.lab.tasks import work
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Bound, KernelCode, Profile, Task
from planted.case import Case
from planted.loading import import_source, load

_ROUNDS, _TRACED_CALLS = 9, 3
_AHEAD = 300_000
"""Clocks that the device sleeps before a timed call, so that the host is ahead as in a stream of calls."""
_CHUNK = 32
"""Cases in one run of ncu."""
_MAX_LAUNCHES = 24
"""In a call: ncu takes half a second to a second for each."""
_NCU_START, _NCU_LAUNCH = 14.0, 1.0
"""Seconds of a run of ncu, and of each launch in it; the second is measured anew after each run."""
_SUFFIXES = (".so", ".cubin", ".log", ".json", ".cu", ".ptx")


def measure(cases: list[Case], folder: Path, seconds: float) -> Iterator[dict[str, Any]]:
    """The rows of cases, in chunks, until the time is over."""
    end = time.monotonic() + seconds
    context = multiprocessing.get_context("fork")
    cores = len(os.sched_getaffinity(0))
    # before this process touches the device
    with context.Pool(max(1, cores - 1), initializer=os.nice, initargs=(10,)) as pool:
        builds = {
            (case.name, side): pool.apply_async(_build, (case, side, str(folder / case.name / side)))
            for case in cases
            for side in case.sides
        }
        gpu, pace = _Gpu(), _NCU_LAUNCH
        for start in range(0, len(cases), _CHUNK):
            chunk = cases[start : start + _CHUNK]
            rows: dict[str, Any] = {}
            launches = 0
            for case in chunk:  # as many as there is time to count
                if time.monotonic() + _NCU_START + pace * launches > end:
                    break
                rows[case.name] = _profile_pair(gpu, case, builds, folder, end)
                launches += sum(count for _, _, count in _countable(rows[case.name]))
            torch.cuda.empty_cache()
            began = time.monotonic()
            counted = _count(rows, folder, end)
            spent = time.monotonic() - began
            print(f"ncu: {spent:.1f} s for {launches} launches of {len(rows)} cases", flush=True)
            yield from rows.values()
            if len(rows) < len(chunk) or (launches and not counted):
                return
            pace = max(0.3, (spent - _NCU_START / 2) / max(1, launches))


def _build(case: Case, side: str, folder: str) -> dict[str, Any]:
    """Build and disassemble one kernel; Triton compiles in a first call on the device."""
    os.environ["KERNELPRO_CUDA_ARCH"] = "90a"
    source, own = getattr(case, side), Path(folder)
    try:
        if case.language == "triton":
            reference = Reference(Task(case.task, case.name), "cuda", 0)
            form, leaves = reference.inputs(1)
            with torch.no_grad():
                load(source, side, own, reference)(*tree.unflatten(form, leaves))
            torch.cuda.synchronize()
            del leaves
            torch.cuda.empty_cache()
        else:
            import_source(source, side, own)
        files = {
            f"{path.parent.name}/{path.name}": path.read_bytes()
            for path in own.rglob("*")
            if path.suffix in _SUFFIXES
            and path.is_file()
            and not path.name.startswith(("cuda_utils", "__triton"))
        }
        analysis = sass.analyze(files, source)
        return {name: [code.to_json() for code in codes] for name, codes in analysis.kernels.items()}
    except Exception as error:  # a case that cannot be built is a row too
        return {"error": f"{type(error).__name__}: {error}"[:500]}


class _Gpu:
    """The device as measured."""

    def __init__(self) -> None:
        self._name = environment.snapshot("cuda").device
        self.ceilings = physics.load_ceilings("cuda", self._name, "tf32")
        self.flusher = Flusher("cuda", self.ceilings.cache_bytes)
        self.properties = device_properties("cuda", self.ceilings)


def _profile_pair(gpu: _Gpu, case: Case, builds: Any, folder: Path, end: float) -> dict[str, Any]:
    started = time.monotonic()
    row: dict[str, Any] = {"case": case.to_json()}
    try:
        codes = {side: builds[case.name, side].get(max(1.0, end - time.monotonic())) for side in case.sides}
        for side, code in codes.items():
            if "error" in code:
                raise ValueError(f"{side}: {code['error']}")
        row |= _profiled(gpu, case, codes, folder)
    except Exception as error:  # one that fails is a row too
        row["error"] = f"{type(error).__name__}: {error}"[:500]
    row["seconds"] = round(time.monotonic() - started, 2)
    times = row.get("error") or " / ".join(f"{ms:.3f}" for ms in row["ms"].values()) + " ms"
    print(f"{case.name:50} {row['seconds']:5.1f} s  {times}", flush=True)
    return row


def _profiled(gpu: _Gpu, case: Case, codes: dict[str, Any], folder: Path) -> dict[str, Any]:
    task = Task(case.task, case.name)
    reference = Reference(task, "cuda", 0)
    form, leaves = reference.inputs(1)
    arguments = tree.unflatten(form, leaves)
    precision = "native" if leaves[0].dtype is not torch.float32 else "tf32"
    unit = physics.compute_unit("cuda", precision, leaves[0].dtype)
    with torch.no_grad():
        expected = reference.model()(*arguments).double()
        models = {
            side: load(getattr(case, side), side, folder / case.name / side, reference) for side in case.sides
        }
        calls = {side: (lambda model=model: model(*arguments)) for side, model in models.items()}
        for side, call in calls.items():
            error = (call().double() - expected).norm() / expected.norm()
            if not error < 1e-2:
                raise ValueError(f"the {side} kernel is wrong by {error:.2g}")
        del expected
        least, _ = work.count(reference, 1)
        times = _time_in_turn(calls, gpu.flusher)
        profiles = {}
        for side, call in calls.items():
            trace = Trace.from_json(trace_calls(call, torch.cuda.synchronize, _TRACED_CALLS))
            summary, kernels = timeline.summarize(trace.events, trace.calls, trace.source)
            analysis = sass.StaticAnalysis(
                {
                    name: [KernelCode.from_json(code) for code in listed]
                    for name, listed in codes[side].items()
                }
            )
            own = own_kernels(getattr(case, side))
            profiles[side] = Profile(
                target="cuda",
                time_ms=times[side],
                floor_ms=physics.floor_ms(least, gpu.ceilings, unit),
                work=least,
                ceilings=gpu.ceilings,
                device=gpu.properties,
                precision=precision,
                unit=unit,
                language=case.language,
                source=getattr(case, side),
                timeline=summary,
                kernels=tuple(
                    replace(
                        kernel,
                        code=sass.find_variant(
                            analysis,
                            kernel.name,
                            kernel.registers,
                            math.prod(kernel.block),
                            kernel.dynamic_shared,
                        ),
                        authored=plain_name(kernel.name) in own,
                    )
                    for kernel in kernels
                ),
            ).to_json()
    return {"ms": times, "profiles": profiles}


def _time_in_turn(calls: dict[str, Any], flusher: Flusher) -> dict[str, float]:
    """Median time of a call, by side."""
    samples: dict[str, list[float]] = {side: [] for side in calls}
    for _ in range(_ROUNDS):
        for side, call in calls.items():
            flusher.flush()
            torch.cuda.synchronize()
            torch.cuda._sleep(_AHEAD)
            begin, finish = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            finish.record()
            torch.cuda.synchronize()
            samples[side].append(begin.elapsed_time(finish))
    return {side: statistics.median(values[2:]) for side, values in samples.items()}


def _countable(row: dict[str, Any]) -> list[tuple[str, str, int]]:
    """The name, side and launches of the calls to count: none where the device mostly idles."""
    entries = []
    for side, data in row.get("profiles", {}).items():
        launches = round(sum(kernel["launches"] for kernel in data["kernels"]))
        idle = roofline.counted_class(Profile.from_json(data)) is Bound.LAUNCH
        if not idle and launches <= _MAX_LAUNCHES:
            entries.append((row["case"]["name"], side, launches))
    return entries


def _count(rows: dict[str, Any], folder: Path, end: float) -> bool:
    """Add counters to the profiles of these rows with one run of ncu; returns whether any were collected."""
    entries = [entry for row in rows.values() for entry in _countable(row)]
    program = ncu.find_ncu()
    if not entries or program is None:
        return False
    jobs = [
        {
            "name": name,
            "side": side,
            "task": rows[name]["case"]["task"],
            "source": rows[name]["case"][side],
            "launches": launches,
        }
        for name, side, launches in entries
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    target = [sys.executable, "-m", "planted.ncu_target", str(folder / "jobs.json"), str(folder)]
    metrics = runner.request_all(registry().values(), "cuda").metrics
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "KERNELPRO_CUDA_ARCH": "90a",
    }
    pages = []
    commands = ncu.commands(program, target, metrics, False, (), 2000, frozenset(ncu.BREAKDOWN_METRICS))
    for command in commands:
        limit = max(20.0, end - time.monotonic() + 30)
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            print("ncu timed out", flush=True)
            return False
        if done.returncode:
            print(f"ncu: {(done.stdout + done.stderr)[-1500:]}", flush=True)
        pages.append(done.stdout)
    print(pages[0][-120:].strip(), flush=True)
    for job, counters in zip(jobs, _by_entry(pages[1], [job["launches"] for job in jobs]), strict=True):
        name, side = job["name"], job["side"]
        profile = Profile.from_json(rows[name]["profiles"][side])
        rows[name]["profiles"][side] = add_counters(profile, counters, {}).to_json()
    return '"ID"' in pages[1]


def _by_entry(page: str, launches: list[int]) -> list[dict[str, ncu.KernelCounters]]:
    """The counters of each entry, which launched so many kernels."""
    lines = page[page.find('"ID"') :].splitlines(keepends=True)
    head, rows = "".join(lines[:2]), lines[2:]  # the names, and the units
    entries = []
    for count in launches:
        entries.append(ncu.parse_raw_page(head + "".join(rows[:count]), 1, marked=False)[0])
        rows = rows[count:]
    return entries
