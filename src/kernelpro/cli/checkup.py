"""`kernelpro doctor`: what this machine has, and what to do about what it lacks."""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def run(json_lines: bool) -> int:
    findings = [{"what": what, "state": state, "detail": detail} for what, state, detail in _findings()]
    if json_lines:
        print(json.dumps(findings))
        return 0
    table = Table("what", "", "detail")
    colours = {"ok": "green", "missing": "red", "weak": "yellow"}
    for row in findings:
        table.add_row(row["what"], f"[{colours[row['state']]}]{row['state']}[/]", row["detail"])
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    return 0


Finding = tuple[str, str, str]
_CAP_SYS_ADMIN = 21


def _findings() -> Iterator[Finding]:
    yield "Python", "ok", f"{platform.python_version()} on {platform.machine()}"
    try:
        import torch
    except ImportError:
        yield "torch", "missing", "pip install torch"
        return
    yield "torch", "ok", torch.__version__
    yield from _device(torch)
    yield from _energy()
    yield from _languages()
    yield from _sandbox()
    yield from _profilers()


def _device(torch: Any) -> Iterator[Finding]:
    from kernelpro.lab.machine import cpu_name
    from kernelpro.lab.measure import environment

    yield "CPU target", "ok", f"{cpu_name()}, {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        found = environment.snapshot("cuda")
        yield (
            "CUDA target",
            "ok",
            f"{found['gpu']}, compute capability {found['compute_capability']}, driver {found['driver']}",
        )
    elif torch.version.cuda is None:
        yield (
            "CUDA target",
            "missing",
            "this torch is a CPU build: install a CUDA build, or judge with --target cpu",
        )
    else:
        yield (
            "CUDA target",
            "missing",
            "torch sees no GPU: check the driver with nvidia-smi, or judge with --target cpu",
        )


def _energy() -> Iterator[Finding]:
    from kernelpro.lab.energy.counter import NoCounter, find

    for target in ("cpu", "cuda"):
        try:
            yield (
                f"energy, {target} target",
                "ok",
                f"{find(target).name}; `kernelpro energy` says how well it counts",
            )  # type: ignore[arg-type]
        except NoCounter as reason:
            yield f"energy, {target} target", "missing", str(reason)


def _languages() -> Iterator[Finding]:
    from kernelpro.lab.languages import registry

    for language in registry().values():
        lacking = language.missing()
        yield f"language {language.name}", "missing" if lacking else "ok", lacking or "ready"


def _sandbox() -> Iterator[Finding]:
    from kernelpro.lab.sandbox.cell import CannotStart, SandboxLauncher
    from kernelpro.lab.sandbox.jail import landlock_abi

    try:
        nursery = SandboxLauncher()
    except CannotStart as error:
        yield "sandbox", "missing", str(error)
        return
    try:
        state = "ok" if nursery.level == "namespaces" else "weak"
        advice = (
            f"; {nursery.why_not_better}; allow unprivileged user namespaces for more"
            if nursery.why_not_better
            else ""
        )
        yield "sandbox", state, f"level {nursery.level}, Landlock ABI {landlock_abi()}{advice}"
    finally:
        nursery.close()


def _profilers() -> Iterator[Finding]:
    from kernelpro.lab.profile import ncu, sanitizer, sass, timeline_nsys
    from kernelpro.lab.profile.cpu_counters import Counters

    found = ncu.find()
    if found and not _may_count():
        yield "tool ncu", "weak", f"{found}: this user may not read the GPU's counters; {ncu.PERMISSION}"
    else:
        absent = "kernel counters: install Nsight Compute, or put ncu on the PATH (profiles do without, and say what they lack)"
        yield "tool ncu", "ok" if found else "missing", found or absent
    nsys = timeline_nsys.find()
    yield (
        "tool nsys",
        "ok" if nsys else "missing",
        nsys or "timelines by --tracer nsys: install Nsight Systems (CUPTI needs nothing)",
    )
    advice = "where a kernel left its memory: install the CUDA toolkit (debuggers do without)"
    yield "tool compute-sanitizer", "ok" if (path := sanitizer.find()) else "missing", path or advice
    for name in ("cuobjdump", "nvdisasm"):
        advice = "machine code: install the CUDA toolkit, or Triton, whose wheel has it"
        yield f"tool {name}", "ok" if (path := sass.tool(name)) else "missing", path or advice
    path = shutil.which("objdump")
    yield "tool objdump", "ok" if path else "missing", path or "the CPU's machine code: install binutils"
    counters = Counters()
    with counters.running():
        pass
    lacking = counters.skipped
    yield (
        "CPU counters",
        "weak" if lacking else "ok",
        f"{lacking.why}: {lacking.enable}" if lacking else ", ".join(counters.values),
    )


def _may_count() -> bool:
    """Whether the NVIDIA driver lets this user read performance counters, as far as its parameters and our capabilities tell."""
    try:
        restricted = "RmProfilingAdminOnly: 1" in Path("/proc/driver/nvidia/params").read_text()
        capabilities = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    except OSError:
        return True
    return not restricted or bool(capabilities and int(capabilities[1], 16) >> _CAP_SYS_ADMIN & 1)
