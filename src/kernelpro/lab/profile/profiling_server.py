"""The subject of a profile: a child that holds one candidate and can be watched at work.

It runs in a cell like any candidate. What it reports is advice's raw material, not a verdict: a candidate
that falsifies its own profile fools nobody but its author.

    trace      which buffer set, calls      -> what the device and the host did, event by event
    sustain    which buffer set, seconds    -> calls made; the parent reads clocks and power meanwhile
    disassemble the source                  -> static facts of the machine code, the compilers' remarks
    watch      seconds                      -> (CPU) threads, faults, counters while calls are made
    execute    commands, files              -> (tools) what they printed and left
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import torch

from kernelpro.lab.archive import unpack
from kernelpro.lab.sandbox.candidate_server import CandidateServer

_WARM_CALLS = 3
_MAX_OUTPUT_BYTES = 4 << 20
_TRITON_HELPERS = ("cuda_utils", "__triton_launcher")
_CODE_SUFFIXES = (".so", ".cubin", ".log", ".json", ".cu", ".cpp", ".command", ".ptx")


class ProfilingServer(CandidateServer):
    def _call(self, index: int) -> Any:
        with torch.no_grad():
            return self._model(*self._arguments[index])

    def _warm(self, index: int) -> None:
        for _ in range(_WARM_CALLS):
            self._call(index)
        if self._device.name == "cuda":
            torch.cuda.synchronize()

    def trace(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        from kernelpro.lab.profile import tracers

        index = request["set"]
        self._warm(index)
        return {
            "trace": tracers.trace_calls(lambda: self._call(index), torch.cuda.synchronize, request["calls"])
        }, b""

    def sustain(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        self._warm(request["set"])
        end, count = time.monotonic() + request["seconds"], 0
        while time.monotonic() < end:
            self._call(request["set"])
            count += 1
            if count % 8 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        return {"calls": count}, b""

    def watch(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        from kernelpro.lab.profile import cpu

        self._warm(request["set"])
        return {"watched": cpu.observe_calls(lambda: self._call(request["set"]), request["seconds"])}, b""

    def disassemble(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Facts from what compilers left in the cell's folders, and what autotuners chose."""
        files = _code_files()
        if self._device.name == "cpu":
            from kernelpro.lab.profile import cpu

            libraries = {Path(name).name: data for name, data in files.items() if name.endswith(".so")}
            sources, commands = {}, {}
            for index, name in enumerate(name for name in files if name.endswith(".cpp")):
                short = "kernel.cpp" if index == 0 else f"kernel{index}.cpp"
                sources[short] = files[name].decode(errors="replace")
                commands[short] = json.loads(files.get(name.removesuffix(".cpp") + ".command", b"[]"))
            return {"static": cpu.analyze(libraries, sources, commands), "sources": sources}, b""
        from kernelpro.lab.profile import sass

        static = sass.analyze(files, request["source"])
        answer = {
            "kernels": static.kernels,
            "warnings": static.warnings,
            "skipped": [skipped.to_json() for skipped in static.skipped],
            "sources": {
                name: data.decode(errors="replace")
                for name, data in files.items()
                if name.endswith((".cu", ".cpp"))
            },
            "configuration": _autotuned_configurations(),
        }
        return answer, b""

    def execute(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Run commands one after the other in the cell; `files` in `tail` (a tar) are there first."""
        if tail:
            unpack(tail, ".")
        ended = []
        for argv in request["commands"]:
            begun = time.monotonic()
            try:
                done = subprocess.run(
                    argv, capture_output=True, timeout=request["seconds"], stdin=subprocess.DEVNULL
                )
                code, out, err = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired as error:
                code, out, err = 124, error.stdout or b"", (error.stderr or b"") + b"\ntimed out"
            except OSError as error:
                code, out, err = 127, b"", str(error).encode()
            texts = [text[-_MAX_OUTPUT_BYTES:].decode(errors="replace") for text in (out, err)]
            ended.append(
                {"code": code, "out": texts[0], "err": texts[1], "seconds": time.monotonic() - begun}
            )
            if code:
                break
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name in request.get("collect", ()):
                if Path(name).is_file():
                    archive.add(name)
        return {"ended": ended}, buffer.getvalue()


def _code_files() -> dict[str, bytes]:
    """What compilers left: libraries, cubins with their metadata, logs, sources."""
    files = {}
    for variable in ("KERNELPRO_BUILD_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"):
        root = Path(os.environ.get(variable, "/nonexistent"))
        for path in sorted(root.rglob("*")):
            if path.suffix in _CODE_SUFFIXES and path.is_file() and not path.name.startswith(_TRITON_HELPERS):
                files[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    return files


def _autotuned_configurations() -> dict[str, str]:
    """What Triton's autotuners in the candidate's module decided."""
    configurations = {}
    for name, value in (
        vars(sys.modules.get("candidate", object())).items() if "candidate" in sys.modules else ()
    ):
        best = getattr(value, "best_config", None)
        if best is not None:
            configurations[name] = str(best)
    return configurations
