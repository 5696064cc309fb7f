"""Triton: kernels are Python functions under @triton.jit, compiled on first launch."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re

from kernelpro.lab.languages import CandidateSource, Language

_JIT = re.compile(r"(?!torch\.)(.*\.)?jit")
"""triton.jit, gluon.jit, and jit of an alias of these."""
CACHE = "TRITON_CACHE_DIR"
"""The environment variable for the folder of compiled kernels."""


def kernel_names(source: CandidateSource) -> set[str]:
    """Functions decorated with triton.jit, or passed to it."""

    def is_jit(node: ast.AST) -> bool:
        return _JIT.fullmatch(source.full_name(node)) is not None

    names = set()
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef) and any(
            is_jit(part) for decorator in node.decorator_list for part in ast.walk(decorator)
        ):
            names.add(node.name)
        elif isinstance(node, ast.Call) and is_jit(node.func):
            names |= {argument.id for argument in node.args if isinstance(argument, ast.Name)}
    return names


def version() -> str:
    """The version of the installed Triton; empty if there is none."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


LANGUAGE = Language(
    name="triton",
    marker=re.compile(r"triton\b"),
    kernels=kernel_names,
    missing=lambda: (
        None
        if importlib.util.find_spec("triton")
        else "Triton is not installed: pip install triton (Linux with an NVIDIA GPU)"
    ),
)
