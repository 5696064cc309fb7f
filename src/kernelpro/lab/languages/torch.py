"""Plain PyTorch, and CUDA or C++ extensions built by torch itself (`load_inline`), as KernelBench's kernels use."""

from __future__ import annotations

import os
import re
import shutil
import sys

from kernelpro.lab.languages import Language, Source, cuda_kernel_names

_EXPORTED = re.compile(r"\btorch::Tensor\s+(\w+)\s*\(")


def kernel_names(source: Source) -> set[str]:
    """Kernels of an inline extension; a C++ one without `__global__` counts by its exported functions."""
    if not re.search(r"\bload_inline\b|\bcpp_extension\b", source.code):
        return set()
    return cuda_kernel_names(source.code) or set(_EXPORTED.findall(source.code.replace("\\n", "\n")))


_UNBUILT = ("Error building extension", "Ninja is required")
"""What torch says when it could not build one."""
_COMPLAINT = re.compile(r"^.*(?:: (?:fatal )?error\b|undefined reference)", re.MULTILINE)


def why_unbuilt(message: str) -> str | None:
    """Why torch could not build an extension: from the first error on, without its commands; None if it says something else."""
    if not any(text in message for text in _UNBUILT):
        return None
    if lacking := missing():
        return lacking
    first = _COMPLAINT.search(message)
    text = message[first.start() :] if first else message
    return text.replace(os.environ.get("TORCH_EXTENSIONS_DIR", "") + "/", "")


def missing() -> str | None:
    """What extensions lack: torch builds them with ninja, and with a compiler that it calls `c++`."""
    if not shutil.which(os.environ.get("CXX", "c++")):
        return "no C++ compiler for load_inline: install g++ (as c++ on the PATH), or set CXX"
    found = shutil.which("ninja", path=path_with_own_programs())
    return None if found else "ninja is not installed, which load_inline needs: pip install ninja"


def path_with_own_programs() -> str:
    """The PATH, and where pip puts programs such as ninja, which is on it only while a virtual environment is activated."""
    return os.pathsep.join(filter(None, (os.environ.get("PATH"), os.path.dirname(sys.executable))))


LANGUAGE = Language(
    name="torch",
    marker=re.compile(r"torch\b"),
    kernels=kernel_names,
    missing=missing,
)
