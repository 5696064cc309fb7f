"""What the compiler says of a source: which loops it did not turn into vector code, and why.

The source is compiled once more with line tables and remarks switched on; neither changes the code that is
generated, so addresses and lines hold for the library that ran, as long as both were built with the same flags.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelpro.lab.languages.cpp import command
from kernelpro.lab.languages.native import BuildError

_GCC = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):\d+: missed:\s*(?P<text>.*)$")
_CLANG = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):\d+: remark: (?:loop not vectorized: )?(?P<text>.*?)(?: \[-Rpass.*)?$"
)
_IGNORED = re.compile(
    r"couldn't vectorize loop|statement clobbers memory: __builtin_GOMP|vectorization is not profitable|loop not vectorized$"
    r"|Loop costings|statement clobbers memory: .*omp_get|^failed:? *$"
)
_EXPLANATIONS = (
    (r"control flow in loop|control flow cannot be substituted", "control flow in the loop"),
    (r"clobbers memory: .*?(?:__builtin_)?(\w+) \(|call instruction cannot be vectorized", "it calls {0}"),
    (
        r"possible (?:alias|dependence)|versioning for alias|bad data dependence|unsafe dependent|cannot identify array bounds",
        "it may write what it reads",
    ),
    (r"not consecutive access|complicated access pattern|strided|gather", "its accesses are not consecutive"),
    (
        r"reorder floating-point|[Ii]n-order reduction|reduction",
        "the order of a floating-point sum must be kept",
    ),
    (
        r"number of iterations cannot be computed|could not determine number of loop iterations|multiple exits",
        "its number of turns is not known",
    ),
    (
        r"relevant stmt not supported|no vectype|op not supported|unsupported",
        "an operation has no vector form",
    ),
)
"""Phrases of g++ and clang++ in words that a person knows; others are passed on as they are."""


class NoCompiler(OSError):
    """There is none on this machine."""


@dataclass(frozen=True)
class Remark:
    line: int
    reason: str


def parse(text: str, name: str) -> list[Remark]:
    """Reasons of g++ (-fopt-info-vec-missed) or clang++ (-Rpass-missed, -Rpass-analysis) by line of the source `name`.

    g++ names the loop first and then the statement in its way, which may lie in a header: such a reason counts for the loop.
    """
    remarks: dict[Remark, None] = {}
    loop = 0
    for row in text.splitlines():
        match = _GCC.match(row) or _CLANG.match(row)
        if not match:
            continue
        in_source = Path(match["file"]).name == name
        if in_source:
            loop = int(match["line"])
        if loop and match["text"] and not _IGNORED.search(match["text"]):
            remarks[Remark(int(match["line"]) if in_source else loop, _explain(match["text"]))] = None
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
    """The library with line tables, and the compiler's remarks.

    `built`: the command that the library was built with; empty: the usual one. Raises NoCompiler, and OSError with the
    first error where the compiler refuses.
    """
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
    remark_flags = (
        ["-Rpass-missed=loop-vectorize", "-Rpass-analysis=loop-vectorize"]
        if clang
        else ["-fopt-info-vec-missed"]
    )
    line_table_flag = "-gline-tables-only" if clang else "-g1"
    full_command = [*base_command, line_table_flag, *remark_flags, str(source_path), "-o", str(library)]
    done = subprocess.run(full_command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        error = next(
            (row.replace(str(source_path), name) for row in done.stderr.splitlines() if "error" in row), ""
        )
        raise OSError(
            f"{Path(base_command[0]).name} ended with code {done.returncode}"
            + (f": {error.strip()[:200]}" if error else "")
        )
    return library, done.stderr
