"""Static facts about GPU kernels from their machine code. No GPU is needed.

1. `extract_cubins` finds the machine code in build artifacts: a .cubin, or the cubins inside a shared
   library.
2. nvdisasm prints each cubin with source lines; `sass_flow` derives the facts, with instruction kinds from
   `sass_opcodes`.
3. cuobjdump adds registers, stack and shared memory; the compiler's log (`compiler_log`) adds spills and
   warnings; Triton's metadata adds the launch configuration of a variant.
4. `find_variant` selects the variant that a profiler observed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import ChainMap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from kernelpro.lab.languages.machine_code import gpu_images
from kernelpro.lab.profile import compiler_log, sass_flow
from kernelpro.lab.profile.compiler_log import CompilerLog
from kernelpro.lab.profile.kernel_names import demangle, plain_name, template_arguments
from kernelpro.records import KernelCode, Skipped

_TOOL_SECONDS = 60.0
"""Time limit of one tool; the largest CuTe kernels take a few seconds."""
_INSTALL_HINTS = {
    "cuobjdump": "install nvidia-cuda-cuobjdump or the CUDA toolkit",
    "nvdisasm": "install nvidia-cuda-nvdisasm or the CUDA toolkit, of the compiler's version or newer",
}
_RESOURCES = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)")
_ARCHITECTURE = re.compile(r"sm_(\d+)|EF_CUDA_SM(\d+)")
_TRIG_TABLE = b"__cudart_i2opi"
"""The table with the digits of 2/pi, which sin, cos and tan use to reduce huge arguments."""
_RESERVED_SHARED_BYTES = 1024
"""Shared memory that the driver reserves from sm_90 on. cuobjdump adds it if a kernel uses shared memory."""


@dataclass
class StaticAnalysis:
    """The kernels in the build artifacts of a candidate."""

    kernels: dict[str, list[KernelCode]] = field(default_factory=dict)
    """All variants by plain name: instances of a template, configurations of an autotuner."""
    warnings: list[str] = field(default_factory=list)
    """Compiler warnings that belong to no kernel."""
    skipped: list[Skipped] = field(default_factory=list)


def find_tool(name: str) -> str | None:
    """Find `cuobjdump` or `nvdisasm` on the PATH, in a CUDA toolkit, in Python packages (NVIDIA's, Triton's)
    or in Nsight."""
    return shutil.which(name) or next(
        (str(path) for path in _tool_paths(name) if os.access(path, os.X_OK)), None
    )


def _tool_paths(name: str) -> Iterator[Path]:
    for home in filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")):
        yield Path(home) / "bin" / name
    for folder in _package_folders("nvidia"):
        yield from folder.glob(f"*/bin/{name}")
    for folder in _package_folders("triton"):
        yield folder / "backends/nvidia/bin" / name
    yield from Path("/opt/nvidia").glob(f"nsight-*/**/{name}")


def _package_folders(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


def analyze(files: dict[str, bytes], source: str = "") -> StaticAnalysis:
    """Analyze all kernels in build artifacts, given by file name.

    Artifacts are shared libraries and cubins. NAME.log next to NAME.so is the compiler's output. NAME.json
    and NAME.ptx next to NAME.cubin are Triton's. `source` is the candidate's text, in which each kernel's
    definition is located."""
    analysis = StaticAnalysis()
    logs = {
        _stem(name): compiler_log.parse(data.decode(errors="replace"))
        for name, data in files.items()
        if name.endswith(".log")
    }
    for log in logs.values():
        analysis.warnings += [text for text in log.general_warnings if text not in analysis.warnings]
    if find_tool("nvdisasm") is None:
        analysis.skipped.append(Skipped("machine code", "nvdisasm not found", _INSTALL_HINTS["nvdisasm"]))
        entries = (log.resources.items() for log in logs.values())
        symbols = [symbol for items in entries for symbol, resources in items if "registers" in resources]
        for symbol in dict.fromkeys(symbols):  # with registers and spills, but without instruction mix
            _add_kernel(analysis, symbol, KernelCode(), list(logs.values()), source)
        return analysis
    cubins = [
        (name, cubin)
        for name, data in sorted(files.items())
        for cubin in extract_cubins(name, data, analysis.skipped)
    ]
    # nvdisasm takes 0.6 s to start, and an autotuner leaves dozens of cubins
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        kernels_by_cubin = threads.map(
            lambda item: _disassemble(
                item[0], item[1], _sibling_text(files, item[0], ".ptx"), analysis.skipped
            ),
            cubins,
        )
    for (name, _), kernels in zip(cubins, kernels_by_cubin, strict=True):
        matching_logs = [logs[_stem(name)]] if _stem(name) in logs else list(logs.values())
        launch = _triton_launch(_sibling_text(files, name, ".json"))
        for symbol, code in kernels.items():
            _add_kernel(analysis, symbol, code, matching_logs, source, launch)
    return analysis


def _add_kernel(
    analysis: StaticAnalysis,
    symbol: str,
    code: KernelCode,
    logs: list[CompilerLog],
    source: str,
    launch: dict[str, int] | None = None,
) -> None:
    """Add a kernel with its resources and warnings from the logs."""
    name = plain_name(symbol)
    resources: dict[str, Any] = dict(ChainMap(*(log.resources.get(symbol, {}) for log in logs)))
    code = replace(
        code,
        warnings=tuple(text for log in logs for text in log.kernel_warnings.get(symbol, [])),
        symbol=symbol,
        signature=demangle(symbol),
        anchor=_definition_line(name, source),
        **resources | (launch or {}),
    )
    analysis.kernels.setdefault(name, []).append(code)


def find_variant(
    analysis: StaticAnalysis, name: str, registers: int, threads: int, dynamic_shared: int
) -> KernelCode | None:
    """Return the variant that a profiler observed; None if no kernel has that name.

    The variant is chosen by its name (mangled or not), then by threads and dynamic shared memory if it fixes
    them, then by the closest number of registers."""
    template_args = template_arguments(name)

    def similarity(code: KernelCode) -> tuple[bool, bool, int, int]:
        return (
            name in (code.symbol, code.signature),
            template_arguments(code.signature) == template_args,
            (code.threads == threads) + (code.dynamic_shared == dynamic_shared),
            -abs((code.registers or 0) - registers),
        )

    return max(analysis.kernels.get(plain_name(name), []), key=similarity, default=None)


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _sibling_text(files: dict[str, bytes], name: str, suffix: str) -> str:
    """Return the text of the file next to `name` with another suffix; empty if there is none."""
    return files.get(_stem(name) + suffix, b"").decode(errors="replace")


def extract_cubins(name: str, data: bytes, skipped: list[Skipped]) -> list[bytes]:
    """Return the cubins in a file: the file itself, those embedded in a library, or those that cuobjdump
    extracts."""
    if name.endswith(".cubin"):
        return [data]
    if not name.endswith(".so"):
        return []
    if images := list(gpu_images(data)):
        return images
    if b".nv_fatbin" not in data:
        return []
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "library.so").write_bytes(data)
        if _run("cuobjdump", ["-xelf", "all", "library.so"], scratch, name, skipped) is None:
            return []
        return [path.read_bytes() for path in sorted(Path(scratch).glob("*.cubin"))]


def _disassemble(name: str, cubin: bytes, ptx: str, skipped: list[Skipped]) -> dict[str, KernelCode]:
    """Return the kernels in one cubin, by symbol."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "code.cubin").write_bytes(cubin)
        text = _run("nvdisasm", ["-c", "-gi", "code.cubin"], scratch, name, skipped) or ""
        blocks_by_symbol = sass_flow.parse_kernels(text, sass_flow.inline_call_sites(ptx))
        if not blocks_by_symbol:
            return {}
        usage = _run("cuobjdump", ["--dump-resource-usage", "code.cubin"], scratch, name, skipped) or ""
    architecture = _ARCHITECTURE.search(text)
    reserved = _RESERVED_SHARED_BYTES if architecture and int(architecture[1] or architecture[2]) >= 90 else 0
    resources: dict[str, dict[str, Any]] = {
        symbol: {
            "registers": int(registers),
            "stack": int(stack),
            "shared": max(0, int(shared) - reserved),
        }
        for symbol, registers, stack, shared in _RESOURCES.findall(usage)
    }
    return {
        symbol: replace(
            sass_flow.analyze_kernel(blocks, has_trig=_TRIG_TABLE in cubin), **resources.get(symbol, {})
        )
        for symbol, blocks in blocks_by_symbol.items()
    }


def _run(
    name: str, arguments: Sequence[str], folder: str, input_name: str, skipped: list[Skipped]
) -> str | None:
    """Return the output of a tool; None, with a note in `skipped`, if it is missing or fails."""
    path = find_tool(name)
    try:
        if path is None:
            raise OSError(f"{name} not found")
        done = subprocess.run(
            [path, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_SECONDS,
        )
        if not done.returncode:
            return done.stdout
        reason = f"{name} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    note = Skipped(f"machine code of {input_name}", reason, _INSTALL_HINTS[name])
    if note not in skipped:
        skipped.append(note)
    return None


def _triton_launch(metadata: str) -> dict[str, int]:
    """Return the launch configuration in the metadata of a Triton kernel; empty if there is none."""
    try:
        launch = json.loads(metadata)
        return {
            "threads": launch["num_warps"] * launch["target"]["warp_size"],
            "dynamic_shared": launch["shared"],
            "num_warps": launch["num_warps"],
            "num_stages": launch["num_stages"],
        }
    except (ValueError, KeyError, TypeError):
        return {}


def _definition_line(name: str, source: str) -> str:
    """Return the location of a kernel's definition, such as `candidate.py:30`.

    It is the first line with the kernel's name before a parenthesis: in a launch, brackets follow the name.
    """
    match = re.search(rf"\b{re.escape(name)}\s*\(", source)
    return f"candidate.py:{source.count(chr(10), 0, match.start()) + 1}" if match else ""
