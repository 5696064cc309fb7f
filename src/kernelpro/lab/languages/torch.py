"""Plain PyTorch, and CUDA or C++ extensions built by torch itself (`load_inline`), as KernelBench's kernels use."""

from __future__ import annotations

import re

from kernelpro.lab.languages import Language, Source, cuda_kernel_names

_EXPORTED = re.compile(r"\btorch::Tensor\s+(\w+)\s*\(")


def kernel_names(source: Source) -> set[str]:
    """Kernels of an inline extension; a C++ one without `__global__` counts by its exported functions."""
    if not re.search(r"\bload_inline\b|\bcpp_extension\b", source.code):
        return set()
    return cuda_kernel_names(source.code) or set(_EXPORTED.findall(source.code.replace("\\n", "\n")))


LANGUAGE = Language(
    name="torch",
    marker=re.compile(r"torch\b"),
    kernels=kernel_names,
    missing=lambda: None,
)
