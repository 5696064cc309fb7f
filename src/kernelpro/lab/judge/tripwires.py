"""Tripwires: constructs in the source that no kernel needs and most cheats use.

They reject such a source early, with an explanation. They are not the defense: each tripwire can be disabled
by name, and the judge must withstand every attack without them.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from kernelpro.lab.languages import parse_python
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import Status


@dataclass(frozen=True)
class Tripwire:
    """One check of the source: names that it reads, modules that it imports, text in its strings."""

    name: str
    """One of records.TRIPWIRES."""
    why: str
    calls: re.Pattern[str] | None = None
    """Dotted names that are called or read in the Python code."""
    imports: frozenset[str] = frozenset()
    text: re.Pattern[str] | None = None
    """Text in string literals, which contain native source code."""


_FRAMES = (
    r"sys\._(getframe|current_frames)|inspect\.(stack|currentframe|trace)"
    r"|.*\.f_(back|globals|locals)|.*\.tb_frame"
)
_EXEC = r"(builtins\.)?(exec|eval|compile|__import__)|importlib\.import_module|(marshal|pickle)\.loads"
_PROCESSES = r"os\.(fork|forkpty|system|popen|spawn\w*|exec\w+|posix_spawn\w*)|subprocess\.\w+"
_MEMORY = r"ctypes\.(string_at|memmove|memset|from_address|pythonapi|cast)|.*\.from_address|mmap\.mmap"
_PROC = r"/proc/|process_vm_|\bptrace\b|PTRACE_|dl_iterate_phdr|\bmprotect\b|PR_SET_DUMPABLE|\bgetppid\b"
_NETWORK = frozenset({"socket", "http", "urllib", "requests", "ssl", "ftplib", "asyncio"})

_TRIPWIRES = (
    Tripwire("gc", "searches live objects", re.compile(r"gc\.get_(objects|referrers|referents)")),
    Tripwire("frames", "walks the call stack", re.compile(_FRAMES)),
    Tripwire("modules", "searches loaded modules", re.compile(r"sys\.modules")),
    Tripwire(
        "exec", "executes code generated at run time", re.compile(_EXEC), frozenset({"base64", "marshal"})
    ),
    Tripwire(
        "processes",
        "starts processes",
        re.compile(_PROCESSES),
        frozenset({"subprocess", "multiprocessing", "pty"}),
    ),
    Tripwire(
        "exit",
        "ends processes or handles signals",
        re.compile(r"os\._exit|atexit\.\w+|os\.abort|os\.kill(pg)?|signal\.\w+"),
        frozenset({"atexit", "signal"}),
    ),
    Tripwire("network", "uses the network", None, _NETWORK),
    Tripwire(
        "harness",
        "accesses the judge",
        re.compile(r"kernelpro\.lab.*|__main__|(.*\.)?NATIVE_CALLS(\..*)?"),
        frozenset({"kernelpro.lab", "__main__"}),
    ),
    Tripwire(
        "descriptors",
        "uses file descriptors it did not open",
        re.compile(r"os\.(write|dup2?|fdopen|pipe|sendfile|closerange|memfd_create)"),
    ),
    Tripwire("memory", "reads memory that it does not own", re.compile(_MEMORY), frozenset({"mmap"})),
    Tripwire("proc", "reads /proc or other processes", None, frozenset(), re.compile(_PROC)),
    Tripwire(
        "python",
        "calls Python from native code",
        None,
        frozenset(),
        re.compile(r"\bPy[A-Z]\w*_\w+\s*\(|\bPython\.h\b"),
    ),
    Tripwire(
        "libraries",
        "loads functions of other libraries at run time",
        None,
        frozenset(),
        re.compile(r"\bdlopen\b|\bdlsym\b"),
    ),
    Tripwire(
        "install",
        "installs packages",
        None,
        frozenset({"pip", "ensurepip"}),
        re.compile(r"\bpip3?\s+install\b"),
    ),
)

_PATCHED_ROOTS = {
    "torch",
    "time",
    "triton",
    "json",
    "socket",
    "struct",
    "gc",
    "os",
    "sys",
    "builtins",
    "select",
    "io",
}
_ALLOWED_SETTINGS = re.compile(r"(torch\.backends|torch\._dynamo|torch\._inductor)\..*|os\.environ.*")
"""Settings that a candidate may change: they affect its own process alone."""


def inspect(source: str, disabled: tuple[str, ...]) -> None:
    """Raise CandidateRejected for a source that does not parse or trips a tripwire."""
    try:
        parse_python(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        what = str(getattr(error, "msg", error)) or "nested too deeply"
        raise CandidateRejected(Status.BUILD_FAILED, f"syntax error{line}: {what}") from None
    if reason := check(source, disabled):
        raise CandidateRejected(Status.REFUSED, reason)


def check(source: str, disabled: tuple[str, ...] = ()) -> str | None:
    """Why the source is rejected, in one line; None if no tripwire matches. The source must parse."""
    if "all" in disabled:
        return None
    tree = parse_python(source)
    for node in ast.walk(tree):
        for wire in _TRIPWIRES:
            if wire.name not in disabled and (match := _matches(node, wire)):
                return _describe(node, wire.name, wire.why, match)
        if "patching" not in disabled and (match := _patches(node)):
            return _describe(node, "patching", "replaces parts of a library", match)
    return None


def _describe(node: ast.AST, name: str, why: str, match: str) -> str:
    line = getattr(node, "lineno", 0)
    return f"line {line} {why} ({match}); a kernel does not need that; --disable-tripwire {name} allows it"


def _matches(node: ast.AST, wire: Tripwire) -> str | None:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{name}" for name in names)]
        for name in names:
            if any(name == banned or name.startswith(f"{banned}.") for banned in wire.imports):
                return f"import {name}"
            if wire.calls and isinstance(node, ast.ImportFrom) and wire.calls.fullmatch(name):
                return name
    if wire.calls and isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load):
        name = _dotted(node) or ""
        if wire.calls.fullmatch(name):
            return name
    if (
        wire.text
        and isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and (match := wire.text.search(node.value))
    ):
        return match.group().strip()
    return None


def _patches(node: ast.AST) -> str | None:
    """An assignment to an attribute of a library, or setattr on one."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    for target in targets:
        name = _dotted(target) if isinstance(target, ast.Attribute) else None
        if name and name.split(".")[0] in _PATCHED_ROOTS and not _ALLOWED_SETTINGS.fullmatch(name):
            return name
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("setattr", "delattr")
        and node.args
    ):
        name = _dotted(node.args[0])
        if name and name.split(".")[0] in _PATCHED_ROOTS:
            return f"{node.func.id}({name}, ...)"
    return None


def _dotted(node: ast.AST) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    elif parts:
        parts.append("?")
    return ".".join(reversed(parts)) or None
