"""Languages a candidate can be written in: one file each, behind a registry.

Comes in: a candidate's source. Goes out: which language it is, which kernels it authors, what the
language needs on this machine. The native ones (cuda, cute, cpp) also build and call.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    name: str
    marker: re.Pattern[str]
    """Found in the source of a candidate that uses the language."""
    kernels: Callable[[str], set[str]]
    """Identifiers of the kernels that a source defines itself."""
    missing: Callable[[], str | None]
    """What this machine lacks for the language and how to get it, in one line; None when it is all there."""


def registry() -> dict[str, Language]:
    """All languages, in the order in which a source is matched against them."""
    from kernelpro.lab.languages import cpp, cuda, cute, torch, triton

    return {module.LANGUAGE.name: module.LANGUAGE for module in (cute, cuda, cpp, triton, torch)}


def detect(source: str) -> Language:
    """The first language whose marker is in the code (comments aside); plain torch when none is."""
    code = without_comments(source)
    languages = registry()
    return next((lang for lang in languages.values() if lang.marker.search(code)), languages["torch"])


def authored_kernels(source: str) -> set[str]:
    """Identifiers of all kernels that the source defines, in whichever languages it uses."""
    code = without_comments(source)
    found: set[str] = set()
    for language in registry().values():
        if language.marker.search(code):
            found |= language.kernels(code)
    return found


def without_comments(source: str) -> str:
    """The code without Python comments; the text itself where it does not parse."""
    try:
        return ast.unparse(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source


_LAUNCH_BOUNDS = re.compile(r"__(?:launch_bounds|cluster_dims|maxnreg|block_size)__\s*\((?:[^()]|\([^()]*\))*\)")
_CUDA_KERNEL = re.compile(r"__global__\s+(?:[\w:<>,\s*&]|\\n)*?\b(\w+)\s*\(")


def cuda_kernel_names(code: str) -> set[str]:
    """Names of `__global__` functions in CUDA text, also inside Python string literals."""
    text = _LAUNCH_BOUNDS.sub(" ", code.replace("\\n", "\n"))
    return set(_CUDA_KERNEL.findall(text))
