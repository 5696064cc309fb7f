"""Plain PyTorch, and CUDA or C++ extensions built by torch itself (`load_inline`), as KernelBench's kernels use."""

from __future__ import annotations

import re

from kernelpro.lab.languages import Language, cuda_kernel_names

_EXPORTED = re.compile(r"\btorch::Tensor\s+(\w+)\s*\(")


def kernel_names(code: str) -> set[str]:
    """Kernels of an inline extension; a C++ one without `__global__` counts by its exported functions."""
    if not re.search(r"\bload_inline\b|\bcpp_extension\b", code):
        return set()
    return cuda_kernel_names(code) or set(_EXPORTED.findall(code.replace("\\n", "\n")))


LANGUAGE = Language(
    name="torch",
    marker=re.compile(r"\btorch\b"),
    kernels=kernel_names,
    missing=lambda: None,
)
