"""compute-sanitizer: where a kernel reads or writes memory that it does not own.

A candidate that the GPU stopped is run once more, in a cell like those of other profilers, by the same target program; `digest`
takes what was printed. NVIDIA's manual: docs.nvidia.com/compute-sanitizer. The first error looks like

    ========= Invalid __global__ write of size 4 bytes
    =========     at unaligned_kernel():0x160 in memcheck_demo.cu:6
    =========     by thread (0,0,0) in block (0,0,0)
    =========     Address 0x7f6510c00001 is misaligned
"""

from __future__ import annotations

import os
import re
import shutil
import sys

from kernelpro.lab.profile.collect import Collector
from kernelpro.records import Status, Verdict

_MEMORY_FAULT = re.compile(
    r"illegal memory access|illegal address|misaligned address|invalid address space|invalid program counter"
    r"|unspecified launch failure|hardware stack error"
)
"""What the driver says of a kernel that it stopped for its accesses: errors 700, 714 and 716 to 719."""
_PREFIX = "========= "
_ERROR = re.compile(r"Invalid |Malloc/Free error|.*\b(misaligned|out of bounds|exception)\b", re.IGNORECASE)
_MAX_LINES = 6
_TIMEOUT_SECONDS = 90.0
"""Enough for a kernel that fails early; one that does not is not worth a device's time."""
_OPTIONS = (
    "--tool",
    "memcheck",
    "--print-limit",
    "3",
    "--show-backtrace",
    "device",
    "--report-api-errors",
    "no",
)


def find_sanitizer() -> str | None:
    """Its path: KERNELPRO_SANITIZER (empty forbids it), the PATH, CUDA's folder."""
    configured = os.environ.get("KERNELPRO_SANITIZER")
    if configured is not None:
        return configured or None
    paths = [
        f"{home}/bin/compute-sanitizer" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home
    ]
    return shutil.which("compute-sanitizer") or next(
        (path for path in paths if os.access(path, os.X_OK)), None
    )


def is_memory_fault(verdict: Verdict) -> bool:
    """Did the GPU stop the candidate for what it did to memory?"""
    return verdict.status is Status.CRASHED and bool(_MEMORY_FAULT.search(verdict.reason))


def command(program: str) -> list[str]:
    return [
        program,
        *_OPTIONS,
        sys.executable,
        "-m",
        "kernelpro.lab.profile.profiled_program",
        "bundle.pt",
        "memcheck",
    ]


def first_error(text: str) -> str:
    """The first error in one line; empty where none was reported."""
    lines = [
        line.removeprefix(_PREFIX.rstrip()) for line in text.splitlines() if line.startswith(_PREFIX.rstrip())
    ]
    start = next(
        (at for at, line in enumerate(lines) if line.startswith(" ") and _ERROR.match(line.strip())), None
    )
    if start is None:
        return ""
    error_lines = [lines[start].strip()]
    for line in lines[start + 1 : start + _MAX_LINES]:
        if not line.startswith("  ") or "backtrace" in line:
            break
        error_lines.append(line.strip())
    return f"compute-sanitizer: {'; '.join(error_lines)}"


class Sanitizer(Collector):
    def locate_error(self) -> str:
        """The first error that it reports of the candidate; empty where it is not here, or finds none."""
        program = find_sanitizer()
        if program is None:
            return ""
        self._report("looking for the access that failed")
        results, _ = self._run_commands([command(program)], (), seconds=_TIMEOUT_SECONDS)
        return first_error(results[-1]["out"] + results[-1]["err"])
