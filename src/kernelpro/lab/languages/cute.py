"""CUDA C++ with the CUTLASS/CuTe headers: from KERNELPRO_CUTLASS, or the nvidia-cutlass wheel."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path

from kernelpro.lab.languages import Language, cuda_kernel_names
from kernelpro.lab.languages import cuda as plain
from kernelpro.lab.languages.native import BuildError, Library, build, signatures


def cutlass_root() -> Path | None:
    """The root of the CUTLASS sources, which contains include/cute; None if there is none."""
    if override := os.environ.get("KERNELPRO_CUTLASS"):
        path = Path(override)
        return path if (path / "include/cute").is_dir() else None
    spec = importlib.util.find_spec("cutlass_library")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "source/include/cute").is_dir():
            return Path(folder) / "source"
    return None


def cute(source: str, flags: Sequence[str] = ()) -> Library:
    """Build CUDA source that includes <cute/...> or <cutlass/...>; return its library."""
    root = cutlass_root()
    if root is None:
        raise BuildError(missing() or "no CUTLASS headers")
    signatures(source)
    headers = [
        f"-I{root / 'include'}",
        f"-I{root / 'tools/util/include'}",
        "--expt-relaxed-constexpr",
        "-DNDEBUG",
    ]
    return Library(
        build("cute", source, ".cu", plain.command([*headers, *flags])), source, plain.current_stream
    )


def missing() -> str | None:
    """What is missing to build with CUTLASS; None if nothing is."""
    if cutlass_root() is None:
        return (
            "CUTLASS headers not found: pip install --no-deps nvidia-cutlass, or set KERNELPRO_CUTLASS to "
            "a CUTLASS checkout"
        )
    return plain.missing()


LANGUAGE = Language(
    name="cute",
    marker=re.compile(r"(kernelpro\.)?runtime\.cute\b"),
    kernels=lambda source: cuda_kernel_names(source.code),
    missing=missing,
)
