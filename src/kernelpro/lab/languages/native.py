"""Native code behind a C interface: parse the signatures, build a shared library, call it through ctypes.

1. `signatures` parses every `extern "C"` function of the source and maps its parameter types to ctypes.
2. `build` compiles to `<build dir>/<content hash>.so`; an existing library is reused.
3. `Library.<name>(...)` converts tensors to pointers, adds the current stream if the signature has one, and
   raises if a launcher that returns int returns non-zero.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelpro.records import digest, folders


class BuildError(RuntimeError):
    """The compiler rejected the source, or there is no compiler."""


class LaunchError(RuntimeError):
    """A launcher was called with wrong arguments or returned an error code."""


_SCALARS: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
    "short": ctypes.c_short,
    "int16_t": ctypes.c_int16,
    "uint16_t": ctypes.c_uint16,
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "unsigned": ctypes.c_uint,
    "unsigned int": ctypes.c_uint,
    "uint32_t": ctypes.c_uint32,
    "long": ctypes.c_long,
    "long long": ctypes.c_longlong,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "unsigned long": ctypes.c_ulong,
    "unsigned long long": ctypes.c_ulonglong,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_STREAMS = {"cudaStream_t", "CUstream"}
_STATUS_TYPES = {"int", "cudaError_t", "CUresult"}

_EXTERN = re.compile(
    r'extern\s*"C"\s+(?P<ret>[\w:]+(?:\s+[\w:]+)*?[\s*&]+)(?P<name>\w+)\s*\((?P<params>[^()]*)\)'
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_QUALIFIER = re.compile(
    r"\b(const|volatile|restrict|__restrict__|__restrict|struct|std::|static|inline|__host__)\b|std::"
)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a native function."""

    name: str
    kind: str
    """`pointer`, `stream`, or a key of _SCALARS."""


@dataclass(frozen=True)
class Signature:
    """The C signature of a native function."""

    name: str
    returns_status: bool
    parameters: tuple[Parameter, ...]


def signatures(source: str) -> dict[str, Signature]:
    """Every function declared `extern "C"` in the source, by name."""
    functions = {}
    for match in _EXTERN.finditer(_COMMENT.sub(" ", source)):
        params = []
        for text in filter(None, (p.strip() for p in match["params"].split(","))):
            if text == "void":
                continue
            params.append(_parameter(text, match["name"]))
        returns = _QUALIFIER.sub("", match["ret"]).strip()
        functions[match["name"]] = Signature(match["name"], returns in _STATUS_TYPES, tuple(params))
    if not functions:
        raise BuildError(
            'no extern "C" function in the source: declare a launcher such as extern "C" int launch(...)'
        )
    return functions


def _parameter(text: str, function: str) -> Parameter:
    bare = " ".join(_QUALIFIER.sub("", text.split("=")[0]).split())
    if "*" in bare or "[" in bare:
        return Parameter(re.sub(r"[*\[\]\d\s]", " ", bare).split()[-1], "pointer")
    words = bare.split()
    kind, name = (
        (bare, "argument") if bare in _SCALARS or bare in _STREAMS else (" ".join(words[:-1]), words[-1])
    )
    if kind in _STREAMS:
        return Parameter(name, "stream")
    if kind not in _SCALARS:
        raise BuildError(
            f"{function}: parameter '{text}' has a type that cannot be passed; use pointers, "
            f"{', '.join(_SCALARS)}"
        )
    return Parameter(name, kind)


def build_directory() -> Path:
    """The folder of built libraries: in the judge one private to the candidate, else the user's cache."""
    override = os.environ.get("KERNELPRO_BUILD_DIR")
    path = Path(override) if override else folders.cache("builds")
    path.mkdir(parents=True, exist_ok=True)
    return path


def build(language: str, source: str, suffix: str, command: Sequence[str]) -> Path:
    """Compile `source` with `command` (input and output are appended) and return the library's path.

    The file name is a hash of everything that affects the result. The file appears atomically.
    """
    directory = build_directory()
    stem = digest(language, source, *command)
    library = directory / f"{stem}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        text = Path(scratch) / f"kernel{suffix}"
        text.write_text(source, encoding="utf-8")
        output = Path(scratch) / "kernel.so"
        try:
            completed = subprocess.run(
                [*command, str(text), "-o", str(output)], capture_output=True, text=True, errors="replace"
            )
        except FileNotFoundError:
            raise BuildError(f"compiler not found: {command[0]}") from None
        (directory / f"{stem}.log").write_text(completed.stderr, encoding="utf-8")
        if completed.returncode or not output.exists():
            errors = completed.stderr.replace(str(text), f"kernel{suffix}")
            raise BuildError(_compiler_errors(errors, completed.returncode))
        text.rename(directory / f"{stem}{suffix}")  # profiles quote its lines
        # the profiler compiles the source again, with optimization remarks
        (directory / f"{stem}.command").write_text(json.dumps(list(command)))
        output.rename(library)
    return library


def _compiler_errors(stderr: str, code: int, limit: int = 4000) -> str:
    """The compiler's errors with a few lines of context but without warnings, at most `limit` characters."""
    lines = stderr.splitlines()
    keep = [
        i + j
        for i, line in enumerate(lines)
        if re.search(r"\berror\b|\bfatal\b|undefined reference", line)
        for j in range(-1, 4)
    ]
    selected = [lines[i] for i in sorted(set(keep)) if 0 <= i < len(lines)] or lines[-20:]
    return ("\n".join(selected)[:limit]) or f"the compiler exited with code {code} and no message"


class NativeCallStats:
    """The number of native calls and the seconds spent in them. The judge reads it after each call."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0


NATIVE_CALLS = NativeCallStats()


class Library:
    """A built library with its functions as attributes.

    It is loaded on first use, so that building needs no device.
    """

    def __init__(self, path: Path, source: str, stream: Callable[[], int] | None):
        self.path = path
        self._signatures = signatures(source)
        self._stream = stream
        self._handle: ctypes.CDLL | None = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        signature = self.__dict__["_signatures"].get(name)
        if signature is None:
            raise AttributeError(
                f'no extern "C" function {name!r}; the library has {", ".join(self._signatures)}'
            )
        if self._handle is None:
            self._handle = ctypes.CDLL(str(self.path))
        caller = _caller(getattr(self._handle, name), signature, self._stream)
        setattr(self, name, caller)
        return caller


def _caller(function: Any, signature: Signature, stream: Callable[[], int] | None) -> Callable[..., None]:
    import torch

    function.restype = ctypes.c_int if signature.returns_status else None
    function.argtypes = [
        ctypes.c_void_p if p.kind in ("pointer", "stream") else _SCALARS[p.kind] for p in signature.parameters
    ]
    names = [p.name for p in signature.parameters if p.kind != "stream"]
    slots = [i for i, p in enumerate(signature.parameters) if p.kind == "stream"]
    tensor = torch.Tensor

    def call(*arguments: Any) -> None:
        if len(arguments) != len(names):
            raise LaunchError(
                f"{signature.name} takes {len(names)} arguments ({', '.join(names)}), got {len(arguments)}"
            )
        values = [a.data_ptr() if isinstance(a, tensor) else a for a in arguments]
        for slot in slots:
            values.insert(slot, stream() if stream else 0)
        started = time.perf_counter()
        try:
            code = function(*values)
        except ctypes.ArgumentError as error:
            raise LaunchError(f"{signature.name}({', '.join(names)}): {error}") from None
        NATIVE_CALLS.seconds += time.perf_counter() - started
        NATIVE_CALLS.calls += 1
        if code:
            raise LaunchError(f"{signature.name} returned error code {code}")

    return call
