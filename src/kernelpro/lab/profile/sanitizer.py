"""compute-sanitizer: where a kernel accesses memory that it does not own.

A candidate that the GPU stopped runs once more in the sandbox of external profilers; `first_error` parses the
output. NVIDIA's manual: docs.nvidia.com/compute-sanitizer. The first error looks like

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
from collections.abc import Callable

from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.profile.profiler_sandbox import BUNDLE, ProfilerSandbox
from kernelpro.records import Candidate, Status, Verdict

_MEMORY_FAULT = re.compile(
    r"illegal memory access|illegal address|misaligned address|invalid address space|invalid program counter"
    r"|unspecified launch failure|hardware stack error"
)
"""The driver's messages for kernels that it stopped for their memory accesses: errors 700, 714 and 716 to
719."""
_PREFIX = "========= "
_ERROR = re.compile(r"Invalid |Malloc/Free error|.*\b(misaligned|out of bounds|exception)\b", re.IGNORECASE)
_MAX_LINES = 6
_TIMEOUT_SECONDS = 90.0
"""Enough for a kernel that fails early; others are not worth the device's time."""
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
    """Return its path: KERNELPRO_SANITIZER (empty disables it), the PATH, or the CUDA toolkit."""
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
    """Whether the GPU stopped the candidate for a memory access."""
    return verdict.status is Status.CRASHED and bool(_MEMORY_FAULT.search(verdict.reason))


def command(program: str) -> list[str]:
    """Return the command that checks the bundle's candidate."""
    return [
        program,
        *_OPTIONS,
        sys.executable,
        "-m",
        "kernelpro.lab.profile.profiled_program",
        BUNDLE,
        "memcheck",
    ]


def first_error(text: str) -> str:
    """Return the first error in one line; empty if none was reported."""
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


def locate_error(bench: Bench, candidate: Candidate, report: Callable[[str], None]) -> str:
    """Run a candidate under compute-sanitizer; return the first error, empty if it is not installed or finds
    none."""
    program = find_sanitizer()
    if program is None:
        return ""
    report("locating the failed access with compute-sanitizer")
    results, _ = ProfilerSandbox(bench, candidate).run([command(program)], seconds=_TIMEOUT_SECONDS)
    return first_error(results[-1].output)
