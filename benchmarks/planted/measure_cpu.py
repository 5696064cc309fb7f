"""Profiles a case and its healthy twin on the CPU, in one forked process.

Both kernels are called in turn with cold caches; the best call of each counts. Other work on the machine adds
time, to long calls more than to short ones; what threads wait for a core is therefore taken off (`_uncontended_seconds`).
The rest is what `kernelpro profile` does, without its sandbox.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.measure import environment, physics
from kernelpro.lab.measure.participant import Flusher
from kernelpro.lab.profile import cpu, cpu_shares
from kernelpro.lab.profile.device_properties import device_properties
from kernelpro.lab.tasks import work
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Profile, Task
from planted.case import Case
from planted.loading import load

_ROUNDS, _ROUND_SECONDS = (5, 40), 2.0
_OBSERVE_SECONDS = 0.4
_TOLERANCE = 2e-3
_TIMEOUT = 60.0
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""


def measure(case: Case, builds: Path) -> dict[str, Any]:
    """The row of a case: `profiles` and `ms` by side, or `error`. It runs in a process of its own."""
    started = time.monotonic()
    row = _in_child(_profile_pair, case, builds / case.name)
    return {"case": case.to_json(), "seconds": round(time.monotonic() - started, 1)} | row


def time_again(row: dict[str, Any], builds: Path) -> dict[str, Any]:
    """The row with both kernels timed again, as alone on the machine as they can be."""
    if "error" in row:
        return row
    case = Case(**row["case"])
    answer = _in_child(_time_pair, case, builds / case.name)
    if "error" in answer:
        return row
    profiles = {side: data | {"time_ms": answer["ms"][side]} for side, data in row["profiles"].items()}
    return row | {"ms": answer["ms"], "profiles": profiles}


def _in_child(work: Callable[[Case, Path], dict[str, Any]], case: Case, folder: Path) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(work, case, folder, send))
    process.start()
    send.close()
    row: dict[str, Any] = {"error": "timed out"}
    if receive.poll(_TIMEOUT):
        try:
            row = json.loads(receive.recv_bytes())
        except EOFError:
            row = {"error": "the process ended without a result"}
    process.kill()
    process.join()
    return row


def _child(work: Callable[[Case, Path], dict[str, Any]], case: Case, folder: Path, send: Any) -> None:
    _keep_memory()
    try:
        row = work(case, folder)
    except Exception as error:  # a case that cannot be built or run is a row too
        row = {"error": f"{type(error).__name__}: {error}"[:500]}
    send.send_bytes(json.dumps(row).encode())
    send.close()


def _keep_memory() -> None:
    """Keep freed memory as the sandbox does (sandbox/launcher.py). A copy's memory, returned to the system
    after its call, would cost the twin page faults in the next."""
    libc = ctypes.CDLL(None)
    for parameter, value in ((_TRIM_THRESHOLD, 2**31 - 1), (_MMAP_THRESHOLD, 32 << 20)):
        libc.mallopt(parameter, value)


def _profile_pair(case: Case, folder: Path) -> dict[str, Any]:
    task = Task(case.task, case.name)
    reference = Reference(task, "cpu", 0)
    form, leaves = reference.inputs(1)
    arguments = tree.unflatten(form, leaves)
    with torch.no_grad():
        expected = reference.model()(*arguments)
        models = {side: load(getattr(case, side), side, folder / side, reference) for side in case.sides}
        for side, model in models.items():
            error = (model(*arguments) - expected).norm() / expected.norm()
            if not error < _TOLERANCE:
                raise ValueError(f"the {side} kernel is wrong by {error:.2g}")
        least, _ = work.count(reference, 1)
        unit = physics.compute_unit("cpu", "fp32", torch.float32)
        ceilings = physics.load_ceilings("cpu", environment.snapshot("cpu").device, unit)
        calls = {side: (lambda model=model: model(*arguments)) for side, model in models.items()}
        times = _time_in_turn(calls, Flusher("cpu", ceilings.cache_bytes))
        profiles = {}
        for side, call in calls.items():
            code, sources = _analyze(folder / side)
            run, _ = cpu.observe_calls(call, _OBSERVE_SECONDS)
            profiles[side] = Profile(
                target="cpu",
                time_ms=times[side],
                floor_ms=physics.floor_ms(least, ceilings, unit),
                work=least,
                ceilings=ceilings,
                device=device_properties("cpu", ceilings),
                precision="fp32",
                unit=unit,
                language=case.language,
                source=getattr(case, side),
                cpu=cpu_shares.build_profile(code, run, sources),
            ).to_json()
    return {"ms": times, "profiles": profiles}


def _time_pair(case: Case, folder: Path) -> dict[str, Any]:
    reference = Reference(Task(case.task, case.name), "cpu", 0)
    arguments = tree.unflatten(*reference.inputs(1))
    with torch.no_grad():
        models = {side: load(getattr(case, side), side, folder / side, reference) for side in case.sides}
        calls = {side: (lambda model=model: model(*arguments)) for side, model in models.items()}
        return {"ms": _time_in_turn(calls, Flusher("cpu", physics.last_level_cache()))}


def _time_in_turn(calls: dict[str, Any], flusher: Flusher) -> dict[str, float]:
    """Time of the second best call, by side: clocks of threads can fail for one."""
    samples: dict[str, list[float]] = {side: [] for side in calls}
    started = time.monotonic()
    for index in range(_ROUNDS[1]):
        if index >= _ROUNDS[0] and time.monotonic() - started > _ROUND_SECONDS:
            break
        for side, call in calls.items():
            call()
            flusher.flush()
            samples[side].append(1e3 * _uncontended_seconds(call))
    return {side: sorted(values)[1] for side, values in samples.items()}


def _uncontended_seconds(call: Callable[[], object]) -> float:
    """Time of a call without the time for which its threads were ready to run and no core was free.

    The call lasts as long as its slowest thread: at least the CPU time of each (threads sleep while they wait
    for others, see `OMP_WAIT_POLICY`), and at least what is left without the longest delay of any.
    """
    before, begun = _thread_clocks(), time.perf_counter()
    call()
    wall = time.perf_counter() - begun
    spent = []
    for thread, (ran, delay) in _thread_clocks().items():
        ran_before, delay_before = before.get(thread, (0.0, 0.0))
        spent.append((ran - ran_before, delay - delay_before))
    return min(wall, max(wall - max(delay for _, delay in spent), max(ran for ran, _ in spent)))


def _thread_clocks() -> dict[str, tuple[float, float]]:
    """Seconds that each thread has run, and has waited for a core."""
    clocks = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            ran, delay, _ = (task / "schedstat").read_text().split()
            clocks[task.name] = int(ran) / 1e9, int(delay) / 1e9
    return clocks


def _analyze(folder: Path) -> Any:
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".so"}
    sources, commands = {}, {}
    for path in folder.glob("*.cpp"):
        sources["kernel.cpp"] = path.read_text()
        command = path.with_suffix(".command")
        commands["kernel.cpp"] = json.loads(command.read_text()) if command.exists() else []
    code, _ = cpu.analyze(files, sources, commands)
    return code, sources
