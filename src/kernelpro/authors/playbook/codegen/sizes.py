"""Turns kernels with constant sizes into kernels that read sizes from their inputs.

Backends write programs with constant sizes, for which compilers generate better code. The sources for several
shapes often differ only in numbers. An integer that is the same multiple of one input size (or of a product
of two) in every source becomes that multiple of a variable. If anything else differs, there is no such
kernel.

This works for C++ and Triton: in CUDA kernels, sizes are often part of types.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations_with_replacement

from kernelpro.authors.playbook.ir.stages import Program

_INTEGER = re.compile(r"(?<![\w.])\d+(?=L?(?![\w.]))")
_PARALLEL_LOOP = "#pragma omp for"
_NATIVE_FUNCTION = re.compile(r'extern "C" void (run\d*)\((.*?)(?=\nextern "C"|\n""",)', re.DOTALL)
"""A function that `forward` calls: its name, its parameters and its body. There are several if torch computes
something between them."""
_JIT = "@triton.jit"
_MAX_SIZES = 4
"""Sizes that may vary in one kernel."""


def generalize(sources: Sequence[str], programs: Sequence[Program], free_only: bool) -> str | None:
    """The source that serves the shapes of all programs; None if there is none.

    `sources` are the programs' sources with constant sizes. `free_only`: accept variable sizes only where
    they cost no time, in bounds of parallel loops, in grids and in allocations.
    """
    if len(set(sources)) == 1:
        return sources[0]
    rests = {tuple(_INTEGER.split(source)) for source in sources}
    if len(rests) > 1:
        return None
    sizes = _varying_sizes(programs)
    if not sizes or len(sizes) > _MAX_SIZES:
        return None
    (rest,) = rests
    numbers = list(zip(*(map(int, _INTEGER.findall(source)) for source in sources), strict=True))
    texts: list[str | None] = [
        str(values[0]) if len(set(values)) == 1 else _in_sizes(values, sizes) for values in numbers
    ]
    if None in texts:
        return None
    if free_only and not _is_free(rest, [len(set(values)) > 1 for values in numbers]):
        return None
    pieces = [rest[0]]
    for text, piece in zip(texts, rest[1:], strict=True):
        pieces += [text or "", piece]
    return _with_variables("".join(pieces), sizes)


def _varying_sizes(programs: Sequence[Program]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Input sizes that differ between the programs, by variable name: the Python expression that reads the
    size, and its value in each program."""
    inputs = [[t for t in program.tensors if t.role == "input"] for program in programs]
    if len({tuple((t.path, len(t.shape)) for t in tensors) for tensors in inputs}) > 1:
        return {}
    found: dict[tuple[int, ...], str] = {}
    for tensors in zip(*inputs, strict=True):
        for axis in range(len(tensors[0].shape)):
            values = tuple(int(t.shape[axis]) for t in tensors)
            if len(set(values)) > 1:
                subscript = "".join(
                    f"[{p}]" if p.isdigit() else f"[{p!r}]" for p in tensors[0].path.split(".")
                )
                found.setdefault(values, f"inputs{subscript}.shape[{axis}]")
    return {f"size{n}": (text, values) for n, (values, text) in enumerate(found.items())}


def _in_sizes(values: tuple[int, ...], sizes: dict[str, tuple[str, tuple[int, ...]]]) -> str | None:
    """The values as a multiple of one size, or of a product of two; None if they are neither."""
    products: list[tuple[tuple[str, ...], tuple[int, ...]]] = [
        ((name,), value) for name, (_, value) in sizes.items()
    ]
    products += [
        ((a, b), tuple(x * y for x, y in zip(sizes[a][1], sizes[b][1], strict=True)))
        for a, b in combinations_with_replacement(sizes, 2)
    ]
    for names, product in products:
        factor, remainder = divmod(values[0], product[0])
        if not remainder and all(value == factor * p for value, p in zip(values, product, strict=True)):
            text = " * ".join(([str(factor)] if factor != 1 else []) + list(names))
            return text if text in names else f"({text})"
    return None


def _is_free(rest: Sequence[str], varies: Sequence[bool]) -> bool:
    """Whether numbers vary only outside of kernels, or in bounds of parallel loops."""
    text = ""
    for piece, number_varies in zip(rest, varies, strict=False):
        text += piece
        if not number_varies:
            text += "0"
            continue
        in_native = text.count('r"""') > text.count('""",')
        *_, before, line = ("", *text.splitlines()) if not text.endswith("\n") else ("", text, "")
        is_loop = before.strip().startswith(_PARALLEL_LOOP) and line.strip().startswith("for (long")
        if (in_native and not is_loop) or _in_jit(text):
            return False
        text += "0"
    return True


def _in_jit(text: str) -> bool:
    """Whether a text ends inside a Triton kernel."""
    if _JIT not in text:
        return False
    body = text.rpartition(_JIT)[2].partition("\ndef ")[2].partition("\n")[2]
    return all(line.startswith((" ", ")")) or not line for line in body.split("\n")[:-1] or [""])


def _with_variables(source: str, sizes: dict[str, tuple[str, tuple[int, ...]]]) -> str:
    """The source in which `forward` defines the variables and passes them to the kernels that use them."""
    used = [name for name in sizes if re.search(rf"\b{name}\b", source)]
    head = "    def forward(self, *inputs):\n"
    lines = "".join(f"        {name} = {sizes[name][0]}\n" for name in used)
    source = source.replace(head, head + lines, 1)
    for name, body in _NATIVE_FUNCTION.findall(source):
        passed = [size for size in used if re.search(rf"\b{size}\b", body)]
        if passed:
            declared = "".join(f"long {size}, " for size in passed)
            source = source.replace(f'extern "C" void {name}(', f'extern "C" void {name}({declared}', 1)
            source = source.replace(f"lib.{name}(", f"lib.{name}({', '.join(passed)}, ", 1)
    for name, body in re.findall(rf"{_JIT}\ndef (\w+)\((.*?)(?=\n\n\n)", source, re.DOTALL):
        passed = [size for size in used if re.search(rf"\b{size}\b", body)]
        if passed:
            listed = ", ".join(passed)
            source = source.replace(f"def {name}(", f"def {name}({listed}, ", 1)
            source = re.sub(rf"(\b{name}\[.*?\])\(", rf"\1({listed}, ", source)
    return source
