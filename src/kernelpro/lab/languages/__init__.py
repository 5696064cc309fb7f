"""Languages of candidates: one file each, behind a registry.

A language recognizes its candidates, lists the kernels that a source defines, and reports what this machine
lacks for it. The native languages (cuda, cute, cpp) also build and call libraries.
"""

from __future__ import annotations

import ast
import contextlib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """A language and how to recognize it."""

    name: str
    marker: re.Pattern[str]
    """Matches the start of a full name that candidates in this language use."""
    kernels: Callable[[CandidateSource], set[str]]
    """The names of the kernels that a source defines itself."""
    missing: Callable[[], str | None]
    """What this machine lacks for the language and how to get it, in one line; None if it lacks nothing."""


class CandidateSource:
    """A parsed candidate: its code without comments, and the full names behind the names it uses."""

    def __init__(self, text: str):
        self.code = without_comments(text)
        self.nodes: list[ast.AST] = []
        """All AST nodes; empty if it does not parse."""
        with contextlib.suppress(*_PARSE_ERRORS):
            self.nodes = list(ast.walk(parse_python(text)))
        self._modules: set[str] = set()
        self._aliases: dict[str, str] = {}
        """By local name that an import or a plain assignment binds: its full name."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                self._modules |= {alias.name for alias in node.names}
                self._aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
            elif isinstance(node, ast.ImportFrom) and node.module:
                self._modules.add(node.module)
                self._aliases |= {
                    alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
                }
            elif (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and (meant := self.full_name(node.value))
            ):
                self._aliases.setdefault(node.targets[0].id, meant)

    def full_name(self, node: ast.AST) -> str:
        """The full name of an expression such as `rt.cpp`; empty if it is not a name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        return ".".join([self._aliases.get(node.id, node.id), *parts]) if isinstance(node, ast.Name) else ""

    def languages(self) -> dict[str, Language]:
        """The languages that the source uses, in the order of the registry.

        torch is among them if the source imports it or uses no other language.
        """
        names = (
            {self.full_name(node) for node in self.nodes}
            if self.nodes
            else set(re.findall(r"[\w.]+", self.code))
        )
        if "*" in self._aliases:  # a name may come from any star import
            names |= {f"{module}.{name}" for module in self._modules for name in names}
        names |= self._modules
        all_languages = registry()
        used = {
            key: language for key, language in all_languages.items() if any(map(language.marker.match, names))
        }
        return used or {"torch": all_languages["torch"]}


def registry() -> dict[str, Language]:
    """All languages by name, in the order in which a source is matched against them."""
    from kernelpro.lab.languages import cpp, cuda, cute, torch, triton

    return {module.LANGUAGE.name: module.LANGUAGE for module in (cute, cuda, cpp, triton, torch)}


def detect(source: str) -> Language:
    """The first language that a source uses."""
    return next(iter(CandidateSource(source).languages().values()))


def own_kernels(source: str) -> set[str]:
    """The names of all kernels that the source defines, in all its languages."""
    parsed = CandidateSource(source)
    return {name for language in parsed.languages().values() for name in language.kernels(parsed)}


_PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
_PARSING = threading.Lock()


def parse_python(source: str) -> ast.Module:
    """As `ast.parse`, in one thread at a time. In Python 3.11, threads that parse at once can get a
    SystemError about the recursion depth."""
    with _PARSING:
        return ast.parse(source)


def without_comments(source: str) -> str:
    """The code without Python comments; unchanged if it does not parse."""
    try:
        return ast.unparse(parse_python(source))
    except _PARSE_ERRORS:
        return source


_LAUNCH_BOUNDS = re.compile(
    r"__(?:launch_bounds|cluster_dims|maxnreg|block_size)__\s*\((?:[^()]|\([^()]*\))*\)"
)
_COMMENT = re.compile(r"//(?:(?!__global__)[^\n])*|/\*(?:(?!__global__).)*?\*/", re.DOTALL)
"""Comments of C++, also between `__global__` and a kernel's name. In Python, `//` and `/*` mean other things,
so what contains `__global__` is no comment."""
_CUDA_KERNEL = re.compile(r"__global__\s+(?:[\w:<>,\s*&]|\\n)*?\b(\w+)\s*\(")


def cuda_kernel_names(code: str) -> set[str]:
    """Names of `__global__` functions in CUDA text, also inside Python string literals."""
    text = _LAUNCH_BOUNDS.sub(" ", _COMMENT.sub(" ", code.replace("\\n", "\n")))
    return set(_CUDA_KERNEL.findall(text))
