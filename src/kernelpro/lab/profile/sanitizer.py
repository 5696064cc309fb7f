"""compute-sanitizer: locates a kernel's illegal memory accesses, and finds its races.

A candidate that the GPU stopped, or that accesses memory out of bounds, runs once more in the sandbox of
external profilers (`locate_error`). A candidate that is judged with full effort runs under all four tools
(`find_defects`). NVIDIA's manual: docs.nvidia.com/compute-sanitizer. The first error looks like

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
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from kernelpro.lab.languages import own_kernels
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.profile.profiler_sandbox import BUNDLE, ProfilerSandbox
from kernelpro.records import Candidate, Status, Verdict

_MEMORY_FAULT = re.compile(
    r"illegal memory access|illegal address|misaligned address|invalid address space|invalid program counter"
    r"|unspecified launch failure|hardware stack error"
)
"""The driver's messages for kernels that it stopped because of a memory access (errors 700, 714, 716-719)."""
_PREFIX = "========= "
_OUT_OF_BOUNDS = re.compile(r"(writes|accesses memory) out of bounds: ")
"""The beginning of the verdict's reason if guarded calls found an access out of bounds."""
_ERROR = re.compile(
    r"Invalid |Malloc/Free error|Uninitialized |Barrier error|(Error: )?Race reported"
    r"|.*\b(misaligned|out of bounds|exception)\b",
    re.IGNORECASE,
)
_MAX_LINES = 6
_TIMEOUT_SECONDS = 90.0
"""Enough for a kernel that fails early. Others are not worth more of the device's time."""
TOOLS = ("memcheck", "synccheck", "racecheck", "initcheck")
"""They find accesses out of bounds, wrong barriers, missing barriers between threads of a block, and reads of
memory that was never written."""
_MAX_PRINTED = {"memcheck": "3"}
"""How many errors a tool prints. The others print 50, because errors of library kernels may come first."""
_OPTIONS = (
    "--show-backtrace",
    "device",
    "--report-api-errors",
    "no",
)


def find_sanitizer() -> str | None:
    """Return its path from KERNELPRO_SANITIZER (empty disables it), the PATH, or the CUDA toolkit."""
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
    """Whether the GPU stopped the candidate because of a memory access, or guarded calls found one."""
    if verdict.status is Status.WRONG:
        return bool(_OUT_OF_BOUNDS.match(verdict.reason))
    return verdict.status is Status.CRASHED and bool(_MEMORY_FAULT.search(verdict.reason))


def command(program: str, tool: str = "memcheck") -> list[str]:
    """Return the command that checks the bundle's candidate."""
    return [
        program,
        "--tool",
        tool,
        "--print-limit",
        _MAX_PRINTED.get(tool, "50"),
        *_OPTIONS,
        sys.executable,
        "-m",
        "kernelpro.lab.profile.profiled_program",
        BUNDLE,
        "memcheck",
    ]


def first_error(text: str, kernels: Collection[str] = ()) -> str:
    """Return the first error in one line; empty if none was reported.

    `kernels`: if given, only errors that name one of these kernels count.
    """
    lines = [
        line.removeprefix(_PREFIX.rstrip()) for line in text.splitlines() if line.startswith(_PREFIX.rstrip())
    ]
    for start, line in enumerate(lines):
        if not (line.startswith(" ") and _ERROR.match(line.strip())):
            continue
        error_lines = [line.strip()]
        for following in lines[start + 1 : start + _MAX_LINES]:
            if not following.startswith("  ") or "backtrace" in following:
                break
            error_lines.append(following.strip())
        error = "; ".join(error_lines)
        if not kernels or any(re.search(rf"\b{re.escape(name)}\b", error) for name in kernels):
            return f"compute-sanitizer: {error}"
    return ""


def find_defects(bench: Bench, candidate: Candidate, report: Callable[[str], None]) -> dict[str, str]:
    """Run a candidate under all tools at the same time. Returns the first error of each tool that finds one.

    Only errors in the candidate's own kernels count. The result is empty if the sanitizer is not installed.
    """
    program, kernels = find_sanitizer(), own_kernels(candidate.source)
    if program is None or not kernels:
        return {}
    report("checking with compute-sanitizer")

    def run(tool: str) -> str:
        sandbox = ProfilerSandbox(bench, candidate)
        results, _ = sandbox.run([command(program, tool)], seconds=_TIMEOUT_SECONDS)
        return first_error(results[-1].output, kernels)

    with ThreadPoolExecutor(len(TOOLS)) as pool:
        errors = dict(zip(TOOLS, pool.map(run, TOOLS), strict=True))
    return {tool: error for tool, error in errors.items() if error}


def locate_error(bench: Bench, candidate: Candidate, report: Callable[[str], None]) -> str:
    """Run a candidate under compute-sanitizer. Returns the first error; empty if the sanitizer finds none or
    is not installed."""
    program = find_sanitizer()
    if program is None:
        return ""
    report("locating the failed access with compute-sanitizer")
    results, _ = ProfilerSandbox(bench, candidate).run([command(program)], seconds=_TIMEOUT_SECONDS)
    return first_error(results[-1].output)
