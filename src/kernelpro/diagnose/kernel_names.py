"""Kernels and functions by the names people use: `softmax_kernel` for `void app::softmax_kernel<4>(float4 const*, float4*)`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernelpro.records import Kernel

_MOST = 72
"""Characters of a name that still reads as one."""
_MANGLED = re.compile(r"_Z(N?)L?(?=\d)")
_CLONE = re.compile(r"\.(_omp_fn|omp_outlined|isra|constprop|part|cold)\b")


def plain_name(name: str) -> str:
    """Without result, namespaces, template arguments and parameters; also of a name as the linker knows it (`_ZL5blockPKf`)."""
    if mangled := _MANGLED.match(name):
        rest, found = name[mangled.end() :], ""
        while length := re.match(r"\d+", rest):
            begin, end = length.end(), length.end() + int(length[0])
            found, rest = rest[begin:end], rest[end:]
            if mangled[1] != "N":
                break
        return found or name
    if clone := _CLONE.search(name):
        name = name[: clone.start()]
    return re.split(r"[<(]", _bare(name))[0].split("::")[-1] or name


def display_name(kernel: Kernel, among: Iterable[Kernel]) -> str:
    """The shortest name that tells this kernel from the others: plain, with template arguments, or whole."""
    others = [other.name for other in among if other.name != kernel.name]
    for form in (plain_name, _instance):
        if form(kernel.name) not in map(form, others):
            return form(kernel.name)
    return kernel.name


def _instance(name: str) -> str:
    """With template arguments, but without namespaces and parameters."""
    bare = re.sub(r"\b\w+::", "", _bare(name))
    text = bare[: end + 1] if (end := bare.rfind(">", 0, _parameters(bare))) > 0 else bare
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


def _parameters(name: str) -> int:
    """Where the parameter list begins: the parenthesis that the last one closes."""
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[place], 0)
        if name[place] == "(" and depth == 0:
            return place
    return len(name)


def _bare(name: str) -> str:
    return name.strip().removeprefix("void ").replace("(anonymous namespace)::", "")
