"""What a candidate executes, as one hash: sources that compile to the same instructions are the same candidate.

The hash covers the Python around native code, and of each library that was built all that is loaded to run it: instructions,
constants, initialised data, which functions it calls of others and offers to them; and for the GPU also the resources a kernel
asks for. Line tables and local symbols are left out, so that comments, layout and names inside native code make no difference.
"""

from __future__ import annotations

import ast
import struct
import tarfile
from collections.abc import Iterator

from kernelpro.lab.archive import opened
from kernelpro.lab.languages.triton import CACHE
from kernelpro.records import digest

_EM_CUDA = 190
_NOTE, _NO_BITS = 7, 8
_LOADED = 2
_FOR_GPU = (b".text", b".nv.constant", b".nv.info", b".nv.shared")
_WITH_LINES = (b".nv_fatbin", b"__nv_relfatbin")
"""Images for the GPU, which are looked at by themselves, line tables and all."""


def fingerprint(source: str, artifacts: bytes) -> str:
    """`artifacts`: what a build left, as a tar. Empty where nothing was built or the machine code cannot be read as it lies."""
    if not artifacts:
        return ""
    try:
        with opened(artifacts) as tar:
            built = [
                member for member in tar if member.name.endswith(".so") and not member.name.startswith(CACHE)
            ]
            libraries = [tar.extractfile(member) for member in built]
            images = [digest(*_executed(library.read())) for library in libraries if library]
        return digest(_around(source), *sorted(images)) if images and digest() not in images else ""
    except (tarfile.TarError, struct.error, ValueError, LookupError, OSError, EOFError, RecursionError):
        return ""  # a build says what it likes, and Python reads deeper nesting than it writes


def gpu_images(library: bytes) -> Iterator[bytes]:
    """ELF images for the GPU that lie open inside another file, one after the other; their tables of sections and segments stand
    last."""
    end = 1
    while (at := library.find(b"\x7fELF", end)) > 0:
        end = at + 1
        header = library[at : at + 64]
        if len(header) < 64 or struct.unpack_from("<H", header, 18)[0] != _EM_CUDA:
            continue
        segments, sections = struct.unpack_from("<QQ", header, 32)
        segment, many_segments, section, many_sections = struct.unpack_from("<4H", header, 54)
        end = at + max(segments + segment * many_segments, sections + section * many_sections, 1)
        yield library[at:end]


def _executed(library: bytes) -> list[bytes]:
    """Nothing where a library holds machine code for the GPU that is compressed."""
    images = list(gpu_images(library))
    if b".nv_fatbin" in library and not images:
        return []
    return [part for image in (library, *images) for part in _sections(image)]


def _sections(image: bytes) -> Iterator[bytes]:
    """Content of the sections that matter, each with the resources that its header states."""
    (machine,) = struct.unpack_from("<H", image, 18)
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, names = struct.unpack_from("<3H", image, 58)
    headers = [struct.unpack_from("<IIQQQQII", image, table + size * index) for index in range(count)]
    if sum(length for _, kind, _, _, _, length, _, _ in headers if kind != _NO_BITS) > len(image):
        raise ValueError("sections overlap")
    texts = headers[names][4]
    for name, kind, flags, _, offset, length, _, info in headers:
        if machine == _EM_CUDA:
            matters = image.startswith(_FOR_GPU, texts + name)
        else:
            matters = (
                bool(flags & _LOADED) and kind != _NOTE and not image.startswith(_WITH_LINES, texts + name)
            )
        if matters:
            content = b"" if kind == _NO_BITS else image[offset : offset + length]
            yield content + struct.pack(
                "<QI", length, info >> 24
            )  # a kernel's registers stand in the upper byte


class _Blank(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        native = isinstance(node.value, str) and 'extern "C"' in node.value
        return ast.Constant("native code") if native else node


def _around(source: str) -> str:
    return ast.unparse(_Blank().visit(ast.parse(source)))
