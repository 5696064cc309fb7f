"""`kernelpro doctor`: reports what this machine supports, and how to enable what is missing."""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.table import Table

from kernelpro.cli.commands.doctor import DoctorOptions
from kernelpro.cli.output import table_console
from kernelpro.pools import local
from kernelpro.records import EnergyData, Job, Target
from kernelpro.records.energy import format_joules, format_ratio


def check_machine(options: DoctorOptions) -> int:
    """Print every check with its state: ok, weak or missing."""
    checks = list(_checks())
    if options.json:
        print(json.dumps([check._asdict() for check in checks]))
        return 0
    table = Table("what", "", "detail")
    colors = {"ok": "green", "missing": "red", "weak": "yellow"}
    for check in checks:
        table.add_row(check.what, f"[{colors[check.state]}]{check.state}[/]", check.detail)
    table_console(140).print(table)
    return 0


def calibrate_energy(options: DoctorOptions) -> int:
    """Calibrate the energy counter and print its resolution; return 1 if there is no counter."""
    with local.LocalPool("auto") as pool:
        result = pool.run(Job("energy", "energy", target=options.target))
    calibration = result.data
    if not isinstance(calibration, EnergyData):
        raise result.exception("calibration")
    if options.json:
        print(calibration.dumps())
    elif calibration.error:
        print(f"no energy counter for target {calibration.target}: {calibration.error}", file=sys.stderr)
    else:
        print(calibration_text(calibration))
    return 1 if calibration.error else 0


def calibration_text(calibration: EnergyData) -> str:
    """The calibration of an energy counter as six lines."""
    idle, load, control = calibration.idle, calibration.load, calibration.control
    assert idle and load and control
    latency = f"{calibration.latency_s:.2f} s" if calibration.latency_s is not None else "not observed"
    clocks = ", ".join(
        f"{name} {value:.0f}"
        for name, value in (("SM MHz", load.sm_mhz), ("C", load.temperature_c))
        if value is not None
    )
    return "\n".join(
        (
            f"counter       {calibration.counter}; a reading takes {calibration.read_us:.0f} us",
            f"resolution    {1e3 * load.period_s:.1f} ms +/- {1e3 * load.jitter_s:.1f}, "
            f"{format_joules(load.joules_per_update)} under load; "
            f"{1e3 * idle.period_s:.1f} ms, {format_joules(idle.joules_per_update)} idle",
            f"power         {idle.watts:.0f} W idle, {load.watts:.0f} W under load"
            + (f" ({clocks})" if clocks else ""),
            f"latency       {latency} from the start of a load until the counter shows it",
            f"windows       {calibration.window_s:.1f} s, between counter updates: "
            f"quantization error at most {calibration.quantization:.2%}",
            f"repeatability {calibration.windows} windows of the same load: spread {calibration.spread:.2%}, "
            f"minimum to maximum {calibration.range:.2%}; against itself {format_ratio(control)}",
        )
    )


class Check(NamedTuple):
    """The state of one feature of this machine."""

    what: str
    state: Literal["ok", "weak", "missing"]
    detail: str


_CAP_SYS_ADMIN = 21


def _checks() -> Iterator[Check]:
    yield Check("Python", "ok", f"{platform.python_version()} on {platform.machine()}")
    try:
        import torch
    except ImportError:
        yield Check("torch", "missing", "pip install torch")
        return
    yield Check("torch", "ok", torch.__version__)
    yield from _device(torch)
    yield from _energy()
    yield from _languages()
    yield from _sandbox()
    yield from _profilers()


def _device(torch: Any) -> Iterator[Check]:
    from kernelpro.lab.machine import cpu_name
    from kernelpro.lab.measure import environment

    yield Check("CPU target", "ok", f"{cpu_name()}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        snapshot = environment.snapshot("cuda")
        yield Check(
            "CUDA target",
            "ok",
            f"{snapshot.gpu}, compute capability {snapshot.compute_capability}, driver {snapshot.driver}",
        )
    elif torch.version.cuda is None:
        yield Check(
            "CUDA target",
            "missing",
            "this torch is a CPU build: install a CUDA build, or judge with --target cpu",
        )
    else:
        yield Check(
            "CUDA target",
            "missing",
            "torch sees no GPU: check the driver with nvidia-smi, or judge with --target cpu",
        )


def _energy() -> Iterator[Check]:
    from kernelpro.lab.energy.counter import NoEnergyCounter, find_counter

    targets: tuple[Target, ...] = ("cpu", "cuda")
    for target in targets:
        try:
            counter = find_counter(target)
            yield Check(
                f"energy, {target} target", "ok", f"{counter.name}; `kernelpro doctor --energy` calibrates it"
            )
        except NoEnergyCounter as reason:
            yield Check(f"energy, {target} target", "missing", str(reason))


def _languages() -> Iterator[Check]:
    from kernelpro.lab.languages import registry

    for language in registry().values():
        lacking = language.missing()
        yield Check(f"language {language.name}", "missing" if lacking else "ok", lacking or "ready")


def _sandbox() -> Iterator[Check]:
    from kernelpro.lab.sandbox.jail import landlock_abi
    from kernelpro.lab.sandbox.launcher import SandboxLauncher
    from kernelpro.lab.sandbox.process import CannotStart

    try:
        launcher = SandboxLauncher()
    except CannotStart as error:
        yield Check("sandbox", "missing", str(error))
        return
    try:
        state: Literal["ok", "weak"] = "ok" if launcher.level == "namespaces" else "weak"
        advice = (
            f"; {launcher.why_not_stronger}; allow unprivileged user namespaces for more"
            if launcher.why_not_stronger
            else ""
        )
        yield Check("sandbox", state, f"level {launcher.level}, Landlock ABI {landlock_abi()}{advice}")
    finally:
        launcher.close()


def _profilers() -> Iterator[Check]:
    from kernelpro.lab.profile import ncu, nsys, sanitizer, sass
    from kernelpro.lab.profile.perf_counters import PerfCounters

    path = ncu.find_ncu()
    if path and not _may_read_counters():
        yield Check("tool ncu", "weak", f"{path}: this user may not read GPU counters; {ncu.PERMISSION}")
    else:
        yield _program("ncu", path, "kernel counters: install Nsight Compute, or put ncu on the PATH")
    yield _program(
        "nsys", nsys.find_nsys(), "timelines with --tracer nsys: install Nsight Systems (CUPTI needs nothing)"
    )
    yield _program(
        "compute-sanitizer",
        sanitizer.find_sanitizer(),
        "location of illegal memory accesses: install the CUDA toolkit",
    )
    for name in ("cuobjdump", "nvdisasm"):
        yield _program(
            name, sass.find_tool(name), "machine code: install the CUDA toolkit, or Triton, which ships it"
        )
    yield _program("objdump", shutil.which("objdump"), "machine code of the CPU: install binutils")
    counters = PerfCounters()
    with counters.running():
        pass
    lacking = counters.skipped
    yield Check(
        "CPU counters",
        "weak" if lacking else "ok",
        f"{lacking.why}: {lacking.enable}" if lacking else ", ".join(counters.values),
    )


def _program(name: str, path: str | None, if_missing: str) -> Check:
    return Check(f"tool {name}", "ok" if path else "missing", path or if_missing)


def _may_read_counters() -> bool:
    """Whether the NVIDIA driver lets this user read performance counters."""
    try:
        restricted = "RmProfilingAdminOnly: 1" in Path("/proc/driver/nvidia/params").read_text()
        capabilities = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    except OSError:
        return True
    return not restricted or bool(capabilities and int(capabilities[1], 16) >> _CAP_SYS_ADMIN & 1)
