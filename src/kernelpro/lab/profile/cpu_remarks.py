"""Vectorization remarks: the loops that the compiler did not vectorize, and the reasons.

The source is compiled again with line tables and remarks enabled. Neither changes the generated code, so that
addresses and lines are valid for the library that ran if both were built with the same flags."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kernelpro.lab.languages.cpp import command
from kernelpro.lab.languages.native import BuildError
from kernelpro.records.cpu_profile import VectorizationRemark

_GCC = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):\d+: missed:\s*(?P<text>.*)$")
_CLANG = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):\d+: remark: "
    r"(?:loop not vectorized: )?(?P<text>.*?)(?: \[-Rpass.*)?$"
)
_IGNORED = re.compile(
    r"couldn't vectorize loop|statement clobbers memory: __builtin_GOMP|vectorization is not profitable"
    r"|loop not vectorized$|Loop costings|statement clobbers memory: .*omp_get|^failed:? *$"
)
_EXPLANATIONS = (
    (r"control flow in loop|control flow cannot be substituted", "control flow in the loop"),
    (r"clobbers memory: .*?(?:__builtin_)?(\w+) \(|call instruction cannot be vectorized", "it calls {0}"),
    (
        r"possible (?:alias|dependence)|versioning for alias|bad data dependence|unsafe dependent"
        r"|cannot identify array bounds",
        "what it writes may overlap what it reads",
    ),
    (r"not consecutive access|complicated access pattern|strided|gather", "its accesses are not consecutive"),
    (
        r"reorder floating-point|[Ii]n-order reduction|reduction",
        "the order of a floating-point sum must be kept",
    ),
    (
        r"number of iterations cannot be computed|could not determine number of loop iterations"
        r"|multiple exits",
        "its trip count is not known",
    ),
    (
        r"relevant stmt not supported|no vectype|op not supported|unsupported",
        "an operation has no vector form",
    ),
)
"""Messages of g++ and clang++ (patterns) in plain words; other messages are reported unchanged."""


class NoCompiler(OSError):
    """No C++ compiler was found."""


def parse(text: str, name: str) -> list[VectorizationRemark]:
    """Parse the remarks of g++ (-fopt-info-vec-missed) or clang++ (-Rpass-missed, -Rpass-analysis) on `name`.

    g++ first names the loop, and then the statement that prevents vectorization. If that statement is in a
    header, the reason is attributed to the loop."""
    remarks: dict[VectorizationRemark, None] = {}
    loop = 0
    for row in text.splitlines():
        match = _GCC.match(row) or _CLANG.match(row)
        if not match:
            continue
        in_source = Path(match["file"]).name == name
        if in_source:
            loop = int(match["line"])
        if loop and match["text"] and not _IGNORED.search(match["text"]):
            line = int(match["line"]) if in_source else loop
            remarks[VectorizationRemark(name, line, _explain(match["text"]))] = None
    return list(remarks)


def _explain(text: str) -> str:
    for pattern, words in _EXPLANATIONS:
        if match := re.search(pattern, text):
            called = match[1] if match.lastindex else "a function"
            return words.format(called)
    return re.sub(r"^not vectorized:?\s*", "", text).strip().rstrip(".")


def compile_with_remarks(
    source: str, name: str, build_command: Sequence[str], folder: Path
) -> tuple[Path, str]:
    """Return the library with line tables, and the compiler's output with its remarks.

    `build_command`: the command that built the library; if empty, the default one. Raises NoCompiler, or
    OSError with the first error if the compiler fails."""
    try:
        base_command = list(build_command) or command()
    except BuildError as error:
        raise NoCompiler(str(error)) from None
    source_path = folder / name
    source_path.write_text(source, encoding="utf-8")
    library = folder / f"{name}.so"
    version = subprocess.run(
        [base_command[0], "--version"], capture_output=True, text=True, errors="replace"
    ).stdout
    clang = "clang" in version
    flags = (
        ["-gline-tables-only", "-Rpass-missed=loop-vectorize", "-Rpass-analysis=loop-vectorize"]
        if clang
        else ["-g1", "-fopt-info-vec-missed"]
    )
    full_command = [*base_command, *flags, str(source_path), "-o", str(library)]
    done = subprocess.run(full_command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        first = next((row for row in done.stderr.splitlines() if "error" in row), "no message")
        message = first.replace(str(source_path), name).strip()[:200]
        raise OSError(f"{Path(base_command[0]).name} failed with exit code {done.returncode}: {message}")
    return library, done.stderr
