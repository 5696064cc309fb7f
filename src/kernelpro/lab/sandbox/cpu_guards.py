"""Guards around torch's buffers on the CPU: the parent builds the allocator, and the child installs it.

The source is in cpu_guard_source.py. It needs the compiler that C++ candidates need. Without a compiler,
candidates can hardly write out of bounds, and only inputs have guards.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch

from kernelpro.lab.languages import cpp
from kernelpro.lab.languages.native import BuildError, build, build_directory
from kernelpro.lab.sandbox import cpu_guard_source, heap_guard_source
from kernelpro.lab.sandbox.guards import MARGIN_BYTES, Damage

_MAX_ROWS = 64
_LIBRARY = "guards.so"


@lru_cache
def build_library() -> bytes:
    """The allocator as a shared library, built once per version of torch; empty if it cannot be built."""
    compiler, root = cpp.compiler(), Path(torch.__file__).parent
    if compiler is None:
        return b""
    source = "\n".join(
        [
            f"// torch {torch.__version__}",
            cpu_guard_source.ALLOCATOR,
            heap_guard_source.SOURCE,
            cpu_guard_source.INTERFACE,
        ]
    )
    flags = [
        "-std=c++20",
        "-O2",
        "-shared",
        "-fPIC",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-I{root}/include",
        f"-L{root}/lib",
        "-Wl,--no-as-needed,-lc10",
    ]
    try:
        return build("guards", source, ".cpp", [compiler, *flags]).read_bytes()
    except (BuildError, OSError):
        return b""


class CpuGuards:
    """In the child: replaces torch's CPU allocator by one with guards."""

    def __init__(self, library: bytes):
        path = Path(_LIBRARY).absolute()
        path.write_bytes(library)
        self._library = ctypes.CDLL(str(path))
        self._library.kernelpro_guards_install(ctypes.c_size_t(MARGIN_BYTES))

    def watch(self) -> None:
        """Guard what the libraries loaded until now will get from malloc."""
        for path in build_directory().glob("*.so"):  # before their first call: what it allocates may stay
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(path))
        self._library.kernelpro_guards_watch(os.getcwd().encode())

    def fill(self, byte: int) -> None:
        """Fill all margins, and from now on new buffers, with `byte`."""
        self.watch()
        self._library.kernelpro_guards_fill(byte)

    def damages(self, names: Mapping[int, str]) -> list[Damage]:
        """The damages since the last call. `names`: names of live buffers, by address."""
        rows = (ctypes.c_uint64 * (5 * _MAX_ROWS))()
        count = self._library.kernelpro_guards_damages(rows, _MAX_ROWS)
        damages = []
        for row in range(count):
            start, nbytes, after, first, last = rows[5 * row : 5 * row + 5]
            name = next(
                (name for at, name in names.items() if start <= at < start + nbytes), "a scratch buffer"
            )
            damages.append(Damage(name, nbytes, "after" if after else "before", first, last))
        return damages
