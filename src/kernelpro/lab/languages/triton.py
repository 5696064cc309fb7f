"""Triton: kernels are Python functions under @triton.jit, compiled on first launch."""

from __future__ import annotations

import ast
import importlib.util
import re

from kernelpro.lab.languages import Language


def kernel_names(code: str) -> set[str]:
    """Functions decorated with triton.jit (or jit imported from triton)."""
    try:
        return {
            node.name
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.FunctionDef)
            and any(re.search(r"(^|\.)jit\b", ast.unparse(decorator)) for decorator in node.decorator_list)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()


LANGUAGE = Language(
    name="triton",
    marker=re.compile(r"^\s*(import triton|from triton)\b", re.MULTILINE),
    kernels=kernel_names,
    missing=lambda: (
        None if importlib.util.find_spec("triton") else "Triton is not installed: pip install triton (Linux with an NVIDIA GPU)"
    ),
)
