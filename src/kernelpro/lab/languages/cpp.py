"""C++ for the CPU target: g++ or clang++ with OpenMP, tuned for this machine (x86-64 or aarch64)."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Sequence

from kernelpro.lab.languages import Language
from kernelpro.lab.languages.native import BuildError, Library, build, signatures


def compiler() -> str | None:
    """The first of $CXX, g++, clang++ and c++ that is on the PATH; None if there is none."""
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def command(flags: Sequence[str] = ()) -> list[str]:
    """The compiler command without input and output."""
    path = compiler()
    if path is None:
        raise BuildError(missing() or "no C++ compiler")
    native = "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"
    return [path, "-std=c++17", "-O3", native, "-fopenmp", "-shared", "-fPIC", *flags]


def cpp(source: str, flags: Sequence[str] = ()) -> Library:
    """Build C++ source with `extern "C"` functions; return its library."""
    build_command = command(flags)
    signatures(source)
    return Library(build("cpp", source, ".cpp", build_command), source, None)


def missing() -> str | None:
    """What is missing to build C++; None if nothing is."""
    return None if compiler() else "no C++ compiler found: install g++ or clang++, or set CXX"


LANGUAGE = Language(
    name="cpp",
    marker=re.compile(r"(kernelpro\.)?runtime\.cpp\b"),
    kernels=lambda source: set(re.findall(r'extern\s*\\?"C\\?"\s+[\w\s*]+?\b(\w+)\s*\(', source.code)),
    missing=missing,
)
