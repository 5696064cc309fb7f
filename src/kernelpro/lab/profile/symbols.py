"""Names of kernels: as the linker, a profiler or a person write them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable

_LENGTH = re.compile(r"L?(\d+)")
_NAMESPACE = re.compile(r"St|N")
_UNNAMED = re.compile(r"\((?:anonymous namespace|unnamed)\)|<unnamed>")
_CAST = re.compile(r"\([\w ]+\)(?=-?\d)")
_SUFFIX = re.compile(r"\b(\d+)u?l{0,2}\b")
SECONDS = 60.0
"""Limit of one run of a tool; the largest CuTe kernels take a few seconds."""


def plain_name(name: str) -> str:
    """The bare name of a kernel: `foo` of `void space::foo<4, float>(const float*, int)` and of `_ZN5space3fooILi4EfEEvPKfi`."""
    return _last_name(name) if name.startswith("_Z") else _outside(name).split("::")[-1].split(" ")[-1]


def _last_name(symbol: str) -> str:
    """Of a symbol under the Itanium rules. A kernel is no member of a class: namespaces, then its name, then the rest."""
    at, name, nested = 2, "", False
    while prefix := _NAMESPACE.match(symbol, at):
        nested |= prefix[0] == "N"
        at = prefix.end()
    while length := _LENGTH.match(symbol, at):
        at = length.end() + int(length[1])
        name = symbol[length.end() : at]
        if not nested:
            break  # what follows are parameters
    return name or symbol


def _outside(name: str) -> str:
    """What stands outside the parameters and the template arguments."""
    kept, depth = [], 0
    for letter in _UNNAMED.sub("", name):
        depth += letter in "<("
        if not depth:
            kept.append(letter)
        elif letter in ">)":
            depth -= 1
            if letter == ")" and not depth:
                break
    return "".join(kept).strip()


def arguments(name: str) -> str:
    """Template arguments of a demangled name, as all demanglers would agree to write them: `4,true,float`."""
    start = name.find("<", name.find(plain_name(name)))
    depth, end = 0, start
    for end in range(max(start, 0), len(name)):
        depth += (name[end] == "<") - (name[end] == ">")
        if not depth:
            break
    inside = name[start + 1 : end] if 0 <= start < end else ""
    inside = inside.replace("(bool)1", "true").replace("(bool)0", "false")
    return _SUFFIX.sub(r"\1", _CAST.sub("", inside)).replace(" ", "")


def instances(name: str, among: Iterable[str]) -> list[str]:
    """Which of the names mean the kernel `name`: itself, else those with its template arguments, else all with its plain name."""
    same = [other for other in among if plain_name(other) == plain_name(name)]
    for form in (_packed, arguments):
        if found := [other for other in same if form(other) == form(name)]:
            return found
    return same


def _packed(name: str) -> str:
    return name.replace(" ", "")


def demangled(symbols: Iterable[str]) -> dict[str, str]:
    """Symbols as a person reads them; the symbol itself where it is no C++ name or there is no c++filt."""
    wanted = list(symbols)
    filt = shutil.which("c++filt") or shutil.which("cu++filt")
    if filt is None or not any(symbol.startswith("_Z") for symbol in wanted):
        return dict(zip(wanted, wanted, strict=True))
    try:
        done = subprocess.run(
            [filt], input="\n".join(wanted), capture_output=True, text=True, timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return dict(zip(wanted, wanted, strict=True))
    lines = done.stdout.splitlines()
    return dict(zip(wanted, lines if len(lines) == len(wanted) else wanted, strict=True))
