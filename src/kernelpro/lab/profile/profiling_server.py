"""The server in the sandboxed process of a profile: it holds one candidate and answers these requests.

    trace        buffer set, calls       -> events on the device and the host
    sustain      buffer set, seconds     -> number of calls; meanwhile the parent reads clocks and power
    disassemble  source                  -> facts of the machine code, compiler output
    observe      buffer set, seconds     -> (CPU) threads, page faults, counters and samples of calls
    execute      commands, files         -> (external profilers) their output and files

Like any candidate, it runs in a sandbox. Its answers are used for advice, not for a verdict: a candidate that
falsifies its own profile misleads only its author."""

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
    """Serves the requests of a profile."""

    def _call(self, index: int) -> Any:
        with torch.no_grad():
            return self._model(*self._arguments[index])

    def _warm(self, index: int) -> None:
        for _ in range(_WARM_CALLS):
            self._call(index)
        if self._device.name == "cuda":
            torch.cuda.synchronize()

    def trace(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Trace a few calls."""
        from kernelpro.lab.profile.tracers import trace_calls

        index = request["set"]
        self._warm(index)
        trace = trace_calls(lambda: self._call(index), torch.cuda.synchronize, request["calls"])
        return {"trace": trace}, b""

    def sustain(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Call the candidate back to back."""
        self._warm(request["set"])
        end, count = time.monotonic() + request["seconds"], 0
        while time.monotonic() < end:
            self._call(request["set"])
            count += 1
            if count % 8 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        return {"calls": count}, b""

    def observe(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Measure calls on the CPU."""
        from kernelpro.lab.profile.cpu import observe_calls

        self._warm(request["set"])
        run, skipped = observe_calls(lambda: self._call(request["set"]), request["seconds"])
        return {"run": run.to_json(), "skipped": [note.to_json() for note in skipped]}, b""

    def disassemble(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Analyze the build artifacts, and report the configurations that autotuners chose."""
        files = _code_files()
        if self._device.name == "cpu":
            from kernelpro.lab.profile import cpu

            libraries = {Path(name).name: data for name, data in files.items() if name.endswith(".so")}
            sources, commands = {}, {}
            for index, name in enumerate(name for name in files if name.endswith(".cpp")):
                short = "kernel.cpp" if index == 0 else f"kernel{index}.cpp"
                sources[short] = files[name].decode(errors="replace")
                commands[short] = json.loads(files.get(name.removesuffix(".cpp") + ".command", b"[]"))
            code, skipped = cpu.analyze(libraries, sources, commands)
            answer: dict[str, Any] = {"code": code.to_json(), "sources": sources}
        else:
            from kernelpro.lab.profile import sass

            analysis = sass.analyze(files, request["source"])
            skipped = analysis.skipped
            answer = {
                "kernels": {
                    name: [code.to_json() for code in variants] for name, variants in analysis.kernels.items()
                },
                "warnings": analysis.warnings,
                "sources": {
                    name: data.decode(errors="replace")
                    for name, data in files.items()
                    if name.endswith((".cu", ".cpp"))
                },
                "configuration": _autotuned_configurations(),
            }
        return answer | {"skipped": [note.to_json() for note in skipped]}, b""

    def execute(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Unpack `tail` (a tar) and run commands until one fails. Returns their output and files."""
        if tail:
            unpack(tail, ".")
        results = []
        for argv in request["commands"]:
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
            results.append({"code": code, "out": texts[0], "err": texts[1]})
            if code:
                break
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name in request.get("collect", ()):
                if Path(name).is_file():
                    archive.add(name)
        return {"results": results}, buffer.getvalue()


def _code_files() -> dict[str, bytes]:
    """Return the build artifacts: libraries, cubins with their metadata, logs, sources."""
    files = {}
    for variable in ("KERNELPRO_BUILD_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"):
        folder = os.environ.get(variable)
        for path in sorted(Path(folder).rglob("*")) if folder else ():
            if path.suffix in _CODE_SUFFIXES and path.is_file() and not path.name.startswith(_TRITON_HELPERS):
                files[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    return files


def _autotuned_configurations() -> dict[str, str]:
    """Return the configurations that Triton's autotuners in the candidate's module chose, by kernel."""
    module = sys.modules.get("candidate")
    values = vars(module).items() if module else ()
    return {
        name: str(best) for name, value in values if (best := getattr(value, "best_config", None)) is not None
    }
