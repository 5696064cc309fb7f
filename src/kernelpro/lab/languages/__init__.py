"""Languages a candidate can be written in: one file each, behind a registry.

Comes in: a candidate's source. Goes out: which language it is, which kernels it authors, what the
language needs on this machine. The native ones (cuda, cute, cpp) also build and call.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    name: str
    marker: re.Pattern[str]
    """Found at the beginning of a full name that a candidate in this language uses."""
    kernels: Callable[[Source], set[str]]
    """Identifiers of the kernels that a source defines itself."""
    missing: Callable[[], str | None]
    """What this machine lacks for the language and how to get it, in one line; None when it is all there."""


class Source:
    """A candidate as languages look at it: its code without comments, and the full names behind those it uses."""

    def __init__(self, text: str):
        self.code = without_comments(text)
        self.nodes: list[ast.AST] = []
        """Everything in it; nothing where it does not parse."""
        with contextlib.suppress(*_UNREADABLE):
            self.nodes = list(ast.walk(ast.parse(text)))
        self._modules: set[str] = set()
        self._meant: dict[str, str] = {}
        """What names stand for that an import or a plain assignment made."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                self._modules |= {alias.name for alias in node.names}
                self._meant |= {alias.asname: alias.name for alias in node.names if alias.asname}
            elif isinstance(node, ast.ImportFrom) and node.module:
                self._modules.add(node.module)
                self._meant |= {
                    alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
                }
            elif (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and (meant := self.name(node.value))
            ):
                self._meant.setdefault(node.targets[0].id, meant)

    def name(self, node: ast.AST) -> str:
        """The full name that an expression such as `rt.cpp` stands for; empty where it is no name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        return ".".join([self._meant.get(node.id, node.id), *parts]) if isinstance(node, ast.Name) else ""

    def languages(self) -> dict[str, Language]:
        """Those it uses, by name, in the order of the registry; plain torch when it is none of them."""
        names = (
            {self.name(node) for node in self.nodes} if self.nodes else set(re.findall(r"[\w.]+", self.code))
        )
        if "*" in self._meant:  # a name may be from any module that is imported so
            names |= {f"{module}.{name}" for module in self._modules for name in names}
        names |= self._modules
        every = registry()
        found = {key: language for key, language in every.items() if any(map(language.marker.match, names))}
        return found or {"torch": every["torch"]}


def registry() -> dict[str, Language]:
    """All languages, in the order in which a source is matched against them."""
    from kernelpro.lab.languages import cpp, cuda, cute, torch, triton

    return {module.LANGUAGE.name: module.LANGUAGE for module in (cute, cuda, cpp, triton, torch)}


def detect(source: str) -> Language:
    """The first language that a source uses."""
    return next(iter(Source(source).languages().values()))


def authored_kernels(source: str) -> set[str]:
    """Identifiers of all kernels that the source defines, in whichever languages it uses."""
    read = Source(source)
    return {name for language in read.languages().values() for name in language.kernels(read)}


_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def without_comments(source: str) -> str:
    """The code without Python comments; the text itself where it does not parse."""
    try:
        return ast.unparse(ast.parse(source))
    except _UNREADABLE:
        return source


_LAUNCH_BOUNDS = re.compile(
    r"__(?:launch_bounds|cluster_dims|maxnreg|block_size)__\s*\((?:[^()]|\([^()]*\))*\)"
)
_CUDA_KERNEL = re.compile(r"__global__\s+(?:[\w:<>,\s*&]|\\n)*?\b(\w+)\s*\(")


def cuda_kernel_names(code: str) -> set[str]:
    """Names of `__global__` functions in CUDA text, also inside Python string literals."""
    text = _LAUNCH_BOUNDS.sub(" ", code.replace("\\n", "\n"))
    return set(_CUDA_KERNEL.findall(text))
