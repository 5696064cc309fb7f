"""Plain PyTorch, extensions built by torch (`load_inline`), as in KernelBench's kernels, and NVRTC."""

from __future__ import annotations

import os
import re
import shutil
import sys

from kernelpro.lab.languages import CandidateSource, Language, cuda_kernel_names

_BUILDERS = re.compile(r"\b(load_inline|cpp_extension|_compile_kernel|RawKernel|RawModule)\b")
"""Names that build native code: torch's extensions, and NVRTC through torch or CuPy."""
_EXPORTED = re.compile(r"\btorch::Tensor\s+(\w+)\s*\(")


def kernel_names(source: CandidateSource) -> set[str]:
    """The kernels of an inline extension or of NVRTC; if none is `__global__`, the exported functions."""
    if not _BUILDERS.search(source.code):
        return set()
    return cuda_kernel_names(source.code) or set(_EXPORTED.findall(source.code.replace("\\n", "\n")))


_BUILD_FAILURES = ("Error building extension", "Ninja is required")
"""Torch's messages for a failed build."""
_COMPILER_ERROR = re.compile(
    r"^.*(?:: (?:fatal |catastrophic )?error\b|undefined reference|\bfatal +: )", re.MULTILINE
)


def extension_build_error(message: str) -> str | None:
    """The compiler errors of a failed extension build, without commands; None if the message is about
    something else."""
    if not any(text in message for text in _BUILD_FAILURES):
        return None
    if requirement := missing():
        return requirement
    first = _COMPILER_ERROR.search(message)
    text = message[first.start() :] if first else message
    folder = os.environ.get("TORCH_EXTENSIONS_DIR")
    return text.replace(f"{folder}/", "") if folder else text


def missing() -> str | None:
    """What is missing to build extensions, for which torch needs ninja and a compiler named `c++`."""
    if not shutil.which(os.environ.get("CXX", "c++")):
        return "no C++ compiler for load_inline: install g++ (as c++ on the PATH), or set CXX"
    program = shutil.which("ninja", path=path_with_python_scripts())
    return None if program else "ninja is not installed, which load_inline needs: pip install ninja"


def path_with_python_scripts() -> str:
    """PATH plus the folder of Python's scripts (ninja), which only activated environments add to it."""
    return os.pathsep.join(filter(None, (os.environ.get("PATH"), os.path.dirname(sys.executable))))


LANGUAGE = Language(
    name="torch",
    marker=re.compile(r"torch\b"),
    kernels=kernel_names,
    missing=missing,
)
