"""Static facts of kernels from their machine code; no GPU is needed.

1. `cubins` finds the machine code in what a build left: a .cubin, or those inside a shared library.
2. nvdisasm prints each with source lines; `flow` makes facts of the text, by kinds of instructions from `opcodes`.
3. cuobjdump adds registers, stack and shared memory; the compiler's log (`remarks`) adds spills and warnings; the
   metadata of Triton adds how a variant is launched.
4. `match` finds the variant that a profiler saw.
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
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from kernelpro.lab.languages.machine_code import gpu_images
from kernelpro.lab.profile import flow, remarks
from kernelpro.lab.profile.symbols import SECONDS, arguments, demangled, instances, plain_name
from kernelpro.records import Skipped

__all__ = ["Static", "analyse", "instances", "match", "plain_name", "tool"]

_INSTALL = {
    "cuobjdump": "install nvidia-cuda-cuobjdump or the CUDA toolkit",
    "nvdisasm": "install nvidia-cuda-nvdisasm or the CUDA toolkit, of the compiler's version or newer",
}
_RESOURCES = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)")
_ARCHITECTURE = re.compile(r"sm_(\d+)|EF_CUDA_SM(\d+)")
_TRIGONOMETRY = b"__cudart_i2opi"
"""The table of digits of 2/pi by which huge arguments of sin, cos and tan are reduced."""
_RESERVED_SHARED = 1024
"""From sm_90 on the driver's own part, which cuobjdump counts as the kernel's where that has any."""


@dataclass
class Static:
    kernels: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By plain name, a dict of facts for every variant (instances of a template, configurations of an autotuner).

    `instructions`, `mix`, `widths`, `loops`, `where` as in flow.facts; `registers`, `stack`, `shared` (static, bytes);
    `spill_stores`, `spill_loads` (bytes) where the compiler's log tells; `warnings`; `symbol` and `signature` (mangled, demangled);
    `anchor`, the line of the candidate that defines the kernel; for Triton `threads`, `dynamic_shared`, `num_warps`, `num_stages`.
    Where nothing could be disassembled, only what the compiler's log tells.
    """
    warnings: list[str] = field(default_factory=list)
    """Remarks of the compiler that belong to no kernel."""
    skipped: list[Skipped] = field(default_factory=list)


def tool(name: str) -> str | None:
    """Where `cuobjdump` or `nvdisasm` is: the PATH, a CUDA toolkit, Python packages (NVIDIA's, Triton's), Nsight."""
    return shutil.which(name) or next((str(path) for path in _places(name) if os.access(path, os.X_OK)), None)


def _places(name: str) -> Iterator[Path]:
    for home in filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")):
        yield Path(home) / "bin" / name
    for folder in _package("nvidia"):
        yield from folder.glob(f"*/bin/{name}")
    for folder in _package("triton"):
        yield folder / "backends/nvidia/bin" / name
    yield from Path("/opt/nvidia").glob(f"nsight-*/**/{name}")


def _package(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


def analyse(files: dict[str, bytes], source: str = "") -> Static:
    """Facts of all kernels in what builds left, by file name.

    That is shared libraries and cubins; NAME.log beside NAME.so is what the compiler said, NAME.json and NAME.ptx beside NAME.cubin
    are Triton's. `source` is the candidate's text; it gives each kernel the line of its definition.
    """
    static = Static()
    logs = {
        _stem(name): remarks.read(data.decode(errors="replace"))
        for name, data in files.items()
        if name.endswith(".log")
    }
    for log in logs.values():
        static.warnings += [text for text in log.others if text not in static.warnings]
    if tool("nvdisasm") is None:
        static.skipped.append(Skipped("machine code", "nvdisasm not found", _INSTALL["nvdisasm"]))
        _reported(static, list(logs.values()), source)
        return static
    found = [
        (name, cubin) for name, data in sorted(files.items()) for cubin in cubins(name, data, static.skipped)
    ]
    with ThreadPoolExecutor(
        min(8, os.cpu_count() or 1)
    ) as threads:  # nvdisasm starts slowly (0.6 s), an autotuner leaves dozens
        read = list(
            threads.map(
                lambda one: _read(one[0], one[1], _text(files, one[0], ".ptx"), static.skipped), found
            )
        )
    names = demangled({symbol for kernels in read for symbol in kernels})
    for (name, _), kernels in zip(found, read, strict=True):
        told = [logs[_stem(name)]] if _stem(name) in logs else list(logs.values())
        launch = _triton(_text(files, name, ".json"))
        for symbol, facts in kernels.items():
            facts |= ChainMap(*(log.resources.get(symbol, {}) for log in told)) | launch
            _add(static, symbol, names[symbol], facts, told, source)
    return static


def _reported(static: Static, logs: list[remarks.Remarks], source: str) -> None:
    """What the compiler alone says of its kernels; there is no `mix` then."""
    entries = {
        symbol: facts for log in logs for symbol, facts in log.resources.items() if "registers" in facts
    }
    names = demangled(entries)
    for symbol, facts in entries.items():
        _add(static, symbol, names[symbol], dict(facts), logs, source)


def _add(
    static: Static,
    symbol: str,
    signature: str,
    facts: dict[str, Any],
    logs: list[remarks.Remarks],
    source: str,
) -> None:
    facts["warnings"] = [text for log in logs for text in log.on_kernels.get(symbol, [])]
    facts |= {"symbol": symbol, "signature": signature, "anchor": _definition(plain_name(symbol), source)}
    static.kernels.setdefault(plain_name(symbol), []).append(facts)


def match(static: Static, name: str, registers: int, block: int, dynamic_shared: int) -> dict[str, Any]:
    """The variant that ran, by what a profiler says of it: name (mangled or not), registers, threads, dynamic shared bytes.

    The name decides, then threads and shared memory where a variant fixes them, then the nearest number of registers.
    Empty where no kernel has that name.
    """
    wanted = arguments(name)

    def likeness(facts: dict[str, Any]) -> tuple[bool, bool, int, int]:
        agrees = (facts.get("threads") == block) + (facts.get("dynamic_shared") == dynamic_shared)
        same = name in (facts["symbol"], facts["signature"])
        return (
            same,
            arguments(facts["signature"]) == wanted,
            agrees,
            -abs(facts.get("registers", 0) - registers),
        )

    return max(static.kernels.get(plain_name(name), []), key=likeness, default={})


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _text(files: dict[str, bytes], name: str, suffix: str) -> str:
    """The file beside `name` with another suffix; empty where there is none."""
    return files.get(_stem(name) + suffix, b"").decode(errors="replace")


def cubins(name: str, data: bytes, skipped: list[Skipped]) -> list[bytes]:
    """The machine code in a file: itself, those that lie open in a library, else what cuobjdump unpacks."""
    if name.endswith(".cubin"):
        return [data]
    if not name.endswith(".so"):
        return []
    if found := list(gpu_images(data)):
        return found
    if b".nv_fatbin" not in data:
        return []
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "library.so").write_bytes(data)
        if _run("cuobjdump", ["-xelf", "all", "library.so"], scratch, name, skipped) is None:
            return []
        return [path.read_bytes() for path in sorted(Path(scratch).glob("*.cubin"))]


def _read(name: str, cubin: bytes, ptx: str, skipped: list[Skipped]) -> dict[str, dict[str, Any]]:
    """Facts of the kernels in one cubin, by symbol."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "code.cubin").write_bytes(cubin)
        text = _run("nvdisasm", ["-c", "-gi", "code.cubin"], scratch, name, skipped)
        if text is None or not (found := flow.kernels(text, flow.inlined(ptx))):
            return {}
        usage = _run("cuobjdump", ["--dump-resource-usage", "code.cubin"], scratch, name, skipped) or ""
    kernels = {symbol: flow.facts(blocks, _TRIGONOMETRY in cubin) for symbol, blocks in found.items()}
    architecture = _ARCHITECTURE.search(text)
    reserved = _RESERVED_SHARED if architecture and int(architecture[1] or architecture[2]) >= 90 else 0
    for symbol, registers, stack, shared in _RESOURCES.findall(usage):
        if symbol in kernels:
            kernels[symbol] |= {
                "registers": int(registers),
                "stack": int(stack),
                "shared": max(0, int(shared) - reserved),
            }
    return kernels


def _run(name: str, arguments: Sequence[str], folder: str, what: str, skipped: list[Skipped]) -> str | None:
    """The output of a tool; None, with a note, where it is absent or fails."""
    path = tool(name)
    try:
        if path is None:
            raise OSError(f"{name} not found")
        done = subprocess.run(
            [path, *arguments], cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
        if not done.returncode:
            return done.stdout
        why = f"{name} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    note = Skipped(f"machine code of {what}", why, _INSTALL[name])
    if note not in skipped:
        skipped.append(note)
    return None


def _triton(metadata: str) -> dict[str, int]:
    """How a variant of a Triton kernel is launched, from the metadata beside its cubin."""
    try:
        known = json.loads(metadata)
        return {
            "threads": known["num_warps"] * known["target"]["warp_size"],
            "dynamic_shared": known["shared"],
            "num_warps": known["num_warps"],
            "num_stages": known["num_stages"],
        }
    except (ValueError, KeyError, TypeError):
        return {}


def _definition(name: str, source: str) -> str:
    """`candidate.py:30`, where the source first writes the kernel's name before a parenthesis; a launch has brackets before it."""
    found = re.search(rf"\b{re.escape(name)}\s*\(", source)
    return f"candidate.py:{source.count(chr(10), 0, found.start()) + 1}" if found else ""
