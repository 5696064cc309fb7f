"""Parses the output of nvcc and ptxas: resources of each kernel (`-Xptxas -v`), and performance warnings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")
_FUNCTION = re.compile(r"function '([^']+)'")
_REMARK = re.compile(r"\bwarning\b|\bPerformance\b|\bperformance\b")
_BOILERPLATE = re.compile(r"^Remark: The warnings can be suppressed")
_ORIGIN = re.compile(r"^ptxas (?:info|warning)\s*:\s*")
_FOLDER = re.compile(r"(?:/[^\s/:()]+)+/(?=[^\s/:()]+\(\d+\))")


@dataclass
class CompilerLog:
    """What the compiler reported."""

    resources: dict[str, dict[str, int]] = field(default_factory=dict)
    """By symbol: `registers`, `stack`, `shared`, `spill_stores`, `spill_loads`."""
    kernel_warnings: dict[str, list[str]] = field(default_factory=dict)
    """Warnings by symbol."""
    general_warnings: list[str] = field(default_factory=list)


def parse(log: str) -> CompilerLog:
    """Parse the combined output of nvcc and ptxas."""
    parsed = CompilerLog()
    entry = function = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif match := _SPILLS.search(line):
            stack, stores, loads = map(int, match.groups())
            parsed.resources.setdefault(function, {}).update(
                stack=stack, spill_stores=stores, spill_loads=loads
            )
        elif match := _USED.search(line):
            shared = _SMEM.search(line)
            parsed.resources.setdefault(entry, {}).update(
                registers=int(match[1]), shared=int(shared[1]) if shared else 0
            )
        elif _REMARK.search(line) and not _BOILERPLATE.match(line):
            match = _FUNCTION.search(line)
            warnings = parsed.kernel_warnings.setdefault(match[1], []) if match else parsed.general_warnings
            text = _FOLDER.sub("", _ORIGIN.sub("", line.strip()))
            if text not in warnings:
                warnings.append(text)
    return parsed
