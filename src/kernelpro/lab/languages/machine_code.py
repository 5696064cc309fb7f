"""What a candidate executes, as one hash: sources that compile to the same instructions are the same candidate.

The hash covers the Python around native code, and of each library that was built the sections that are executed or
read by what is executed: `.text`, constants, initialised data, and for the GPU also the resources a kernel asks for.
Line tables and symbols are left out, so that comments, layout and names inside native code make no difference.
"""

from __future__ import annotations

import ast
import io
import struct
import tarfile
from collections.abc import Iterator

from kernelpro.lab.languages.triton import CACHE
from kernelpro.records import digest

_EM_CUDA = 190
_NO_BITS = 8
_WRITTEN = (".text", ".rodata", ".data", ".nv.constant", ".nv.info", ".nv.shared")


def fingerprint(source: str, artifacts: bytes) -> str:
    """`artifacts`: what a build left, as a tar. Empty where nothing was built or the machine code cannot be read as it lies."""
    if not artifacts:
        return ""
    try:
        with tarfile.open(fileobj=io.BytesIO(artifacts), mode="r:") as tar:
            built = [member for member in tar if member.name.endswith(".so") and not member.name.startswith(CACHE)]
            libraries = [tar.extractfile(member) for member in built]
            images = [digest(*_executed(library.read())) for library in libraries if library]
        return digest(_around(source), *sorted(images)) if images and digest() not in images else ""
    except (tarfile.TarError, struct.error, ValueError, LookupError, OSError, EOFError, RecursionError):
        return ""  # a build says what it likes, and Python reads deeper nesting than it writes


def gpu_images(library: bytes) -> Iterator[bytes]:
    """ELF images for the GPU that lie open inside another file; their tables of sections and segments stand last."""
    at = 0
    while (at := library.find(b"\x7fELF", at + 1)) > 0:
        header = library[at : at + 64]
        if len(header) < 64 or struct.unpack_from("<H", header, 18)[0] != _EM_CUDA:
            continue
        segments, sections = struct.unpack_from("<QQ", header, 32)
        segment, many_segments, section, many_sections = struct.unpack_from("<4H", header, 54)
        yield library[at : at + max(segments + segment * many_segments, sections + section * many_sections)]


def _executed(library: bytes) -> list[bytes]:
    """Nothing where a library holds machine code for the GPU that is compressed."""
    images = list(gpu_images(library))
    if b".nv_fatbin" in library and not images:
        return []
    return [part for image in (library, *images) for part in _sections(image)]


def _sections(image: bytes) -> Iterator[bytes]:
    """Content of the sections that matter, each with the resources that its header states."""
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, names = struct.unpack_from("<3H", image, 58)
    headers = [struct.unpack_from("<IIQQQQII", image, table + size * index) for index in range(count)]
    texts = headers[names][4]
    for name, kind, _, _, offset, length, _, info in headers:
        begin = texts + name
        if image[begin : image.index(b"\0", begin)].decode(errors="replace").startswith(_WRITTEN):
            content = b"" if kind == _NO_BITS else image[offset : offset + length]
            yield content + struct.pack("<QI", length, info >> 24)  # a kernel's registers stand in the upper byte


class _Blank(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        native = isinstance(node.value, str) and 'extern "C"' in node.value
        return ast.Constant("native code") if native else node


def _around(source: str) -> str:
    return ast.unparse(_Blank().visit(ast.parse(source)))
