"""Short names of kernels and functions: `softmax` for `void app::softmax<4>(float4 const*, float4*)`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernelpro.records import Kernel

_MAX_LENGTH = 72
_MANGLED = re.compile(r"_Z(N?)L?(?=\d)")
_CLONE = re.compile(r"\.(_omp_fn|omp_outlined|isra|constprop|part|cold)\b")


def plain_name(name: str) -> str:
    """Without return type, namespaces, template arguments and parameters; also of a mangled name."""
    if mangled := _MANGLED.match(name):
        rest, identifier = name[mangled.end() :], ""
        while length := re.match(r"\d+", rest):
            begin, end = length.end(), length.end() + int(length[0])
            identifier, rest = rest[begin:end], rest[end:]
            if mangled[1] != "N":
                break
        return identifier or name
    if clone := _CLONE.search(name):
        name = name[: clone.start()]
    return re.split(r"[<(]", _without_return_type(name))[0].split("::")[-1] or name


def display_name(kernel: Kernel, kernels: Iterable[Kernel]) -> str:
    """The shortest unique name among the kernels: plain, with template arguments, or the full name."""
    others = [other.name for other in kernels if other.name != kernel.name]
    for form in (plain_name, _template_instance):
        if form(kernel.name) not in map(form, others):
            return form(kernel.name)
    return kernel.name


def _template_instance(name: str) -> str:
    """With template arguments, but without namespaces and parameters."""
    bare = re.sub(r"\b\w+::", "", _without_return_type(name))
    text = bare[: end + 1] if (end := bare.rfind(">", 0, _parameters_start(bare))) > 0 else bare
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."


def _parameters_start(name: str) -> int:
    """Index of the parenthesis that opens the parameter list: the one that the last parenthesis closes."""
    depth = 0
    for index in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[index], 0)
        if name[index] == "(" and depth == 0:
            return index
    return len(name)


def _without_return_type(name: str) -> str:
    return name.strip().removeprefix("void ").replace("(anonymous namespace)::", "")
