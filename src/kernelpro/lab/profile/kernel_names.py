"""Names of kernels: mangled, as different tools demangle them, or plain as in the source."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable

_LENGTH = re.compile(r"L?(\d+)")
_NAMESPACE = re.compile(r"St|N")
_ANONYMOUS = re.compile(r"\((?:anonymous namespace|unnamed)\)|<unnamed>")
_CAST = re.compile(r"\([\w ]+\)(?=-?\d)")
_SUFFIX = re.compile(r"\b(\d+)u?l{0,2}\b")


def plain_name(name: str) -> str:
    """Return the name of a kernel without namespace, template arguments and parameters.

    `foo` for `void space::foo<4, float>(const float*, int)` and for `_ZN5space3fooILi4EfEEvPKfi`.
    """
    return (
        _last_name(name) if name.startswith("_Z") else _without_arguments(name).split("::")[-1].split(" ")[-1]
    )


def _last_name(symbol: str) -> str:
    """Return the last name in a symbol mangled by the Itanium ABI.

    A kernel is not a member of a class, so that only namespaces come before its name.
    """
    position, name, nested = 2, "", False
    while prefix := _NAMESPACE.match(symbol, position):
        nested |= prefix[0] == "N"
        position = prefix.end()
    while length := _LENGTH.match(symbol, position):
        position = length.end() + int(length[1])
        name = symbol[length.end() : position]
        if not nested:
            break  # parameters follow
    return name or symbol


def _without_arguments(name: str) -> str:
    """Remove parameters and template arguments."""
    letters, depth = [], 0
    for letter in _ANONYMOUS.sub("", name):
        depth += letter in "<("
        if not depth:
            letters.append(letter)
        elif letter in ">)":
            depth -= 1
            if letter == ")" and not depth:
                break
    return "".join(letters).strip()


def template_arguments(name: str) -> str:
    """Return the template arguments of a demangled name in one form for all demanglers: `4,true,float`."""
    start = name.find("<", name.find(plain_name(name)))
    depth, end = 0, start
    for end in range(max(start, 0), len(name)):
        depth += (name[end] == "<") - (name[end] == ">")
        if not depth:
            break
    inside = name[start + 1 : end] if 0 <= start < end else ""
    inside = inside.replace("(bool)1", "true").replace("(bool)0", "false")
    return _SUFFIX.sub(r"\1", _CAST.sub("", inside)).replace(" ", "")


def matching_names(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that match `name`: equal ones, else those with equal template arguments, else all with
    the same plain name."""
    namesakes = [other for other in names if plain_name(other) == plain_name(name)]
    for form in (_without_spaces, template_arguments):
        if matches := [other for other in namesakes if form(other) == form(name)]:
            return matches
    return namesakes


def _without_spaces(name: str) -> str:
    return name.replace(" ", "")


def demangle(name: str) -> str:
    """Demangle a C++ name. Other names, and those too long for libstdc++'s demangler, are unchanged."""
    if not name.startswith("_Z"):
        return name
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return name
    library.__cxa_demangle.restype = ctypes.c_void_p
    text = library.__cxa_demangle(ctypes.c_char_p(name.encode()), None, None, None)
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(text))
