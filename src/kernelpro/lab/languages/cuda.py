"""CUDA C++: nvcc builds a shared library without torch's headers."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from kernelpro.lab.languages import Language, cuda_kernel_names
from kernelpro.lab.languages.native import BuildError, Library, build, signatures


def nvcc() -> str | None:
    """nvcc from CUDA_HOME, /usr/local/cuda or the PATH."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for home in filter(None, homes):
        if os.access(path := f"{home}/bin/nvcc", os.X_OK):
            return path
    return shutil.which("nvcc")


def architecture() -> str:
    """The architecture to build for, such as `90a`: KERNELPRO_CUDA_ARCH if set, else that of the GPU."""
    return os.environ.get("KERNELPRO_CUDA_ARCH") or _device_architecture()


@lru_cache
def _device_architecture() -> str:
    import torch

    if not torch.cuda.is_available():
        raise BuildError(
            "no GPU here and KERNELPRO_CUDA_ARCH is not set: set it to the compute capability, e.g. 90a"
        )
    major, minor = torch.cuda.get_device_capability()
    return architecture_name(major, minor)


def architecture_name(major: int, minor: int) -> str:
    """The name of a compute capability. From 9.0 on, its `a` enables architecture-specific instructions
    (wgmma, tcgen05)."""
    return f"{major}{minor}a" if major >= 9 else f"{major}{minor}"


def command(flags: Sequence[str] = ()) -> list[str]:
    """The nvcc command without input and output."""
    found = nvcc()
    if found is None:
        raise BuildError(missing() or "no nvcc")
    arch = architecture()
    home = Path(found).resolve().parent.parent
    stubs = [
        f"-L{path}" for path in (home / "lib64/stubs", *home.glob("targets/*/lib/stubs")) if path.is_dir()
    ]
    return [
        found,
        "-std=c++17",
        "-O3",
        "-lineinfo",
        "-Xptxas",
        "-v",
        f"-gencode=arch=compute_{arch},code=sm_{arch}",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        *stubs,
        *flags,
        *(["-lcuda"] if stubs else []),
    ]


def current_stream() -> int:
    """The handle of torch's current CUDA stream."""
    import torch

    return int(torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice()))


def cuda(source: str, flags: Sequence[str] = ()) -> Library:
    """Build CUDA source with `extern "C"` launchers; return its library."""
    signatures(source)
    return Library(build("cuda", source, ".cu", command(flags)), source, current_stream)


def missing() -> str | None:
    """What is missing to build CUDA; None if nothing is."""
    return None if nvcc() else "nvcc not found: install the CUDA toolkit or set CUDA_HOME"


LANGUAGE = Language(
    name="cuda",
    marker=re.compile(r"(kernelpro\.)?runtime\.cuda\b"),
    kernels=lambda source: cuda_kernel_names(source.code),
    missing=missing,
)
