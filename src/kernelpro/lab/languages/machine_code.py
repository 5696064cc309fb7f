"""A hash of what a candidate executes: sources that compile to the same instructions are the same candidate.

The hash covers the Python around native code, and all parts of the built libraries that are loaded to run
them: instructions, constants, initialized data, imported and exported functions, and for the GPU the
resources of each kernel. Line tables and local symbols are excluded, so that comments, layout and names in
native code do not change the hash.
"""

from __future__ import annotations

import ast
import struct
import tarfile
from collections.abc import Iterator

from kernelpro.lab.archive import open_tar
from kernelpro.lab.languages import parse_python
from kernelpro.lab.languages.triton import CACHE
from kernelpro.records import digest

_EM_CUDA = 190
_SHT_NOTE, _SHT_NOBITS = 7, 8
_SHF_ALLOC = 2
_GPU_SECTIONS = (b".text", b".nv.constant", b".nv.info", b".nv.shared")
_FATBIN_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
"""Sections with GPU images, which include line tables; the images are hashed separately."""


def fingerprint(source: str, artifacts: bytes) -> str:
    """The hash of a candidate; empty if nothing was built or the machine code is compressed.

    `artifacts`: the files of a build, as a tar.
    """
    if not artifacts:
        return ""
    try:
        with open_tar(artifacts) as tar:
            built = [
                member for member in tar if member.name.endswith(".so") and not member.name.startswith(CACHE)
            ]
            libraries = [tar.extractfile(member) for member in built]
            images = [digest(*_loaded_parts(library.read())) for library in libraries if library]
        return (
            digest(_python_without_native(source), *sorted(images))
            if images and digest() not in images
            else ""
        )
    except (tarfile.TarError, struct.error, ValueError, LookupError, OSError, EOFError, RecursionError):
        return ""  # artifacts are untrusted, and ast.parse accepts deeper nesting than ast.unparse


def gpu_images(library: bytes) -> Iterator[bytes]:
    """The uncompressed GPU ELF images inside another file; each ends with its section or segment table."""
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


def _loaded_parts(library: bytes) -> list[bytes]:
    """The loaded parts of a library; empty if it has compressed GPU code."""
    images = list(gpu_images(library))
    if b".nv_fatbin" in library and not images:
        return []
    return [part for image in (library, *images) for part in _sections(image)]


def _sections(image: bytes) -> Iterator[bytes]:
    """The content of each loaded section, followed by its length and the resources in its header."""
    (machine,) = struct.unpack_from("<H", image, 18)
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, names = struct.unpack_from("<3H", image, 58)
    headers = [struct.unpack_from("<IIQQQQII", image, table + size * index) for index in range(count)]
    if sum(length for _, kind, _, _, _, length, _, _ in headers if kind != _SHT_NOBITS) > len(image):
        raise ValueError("sections overlap")
    texts = headers[names][4]
    for name, kind, flags, _, offset, length, _, info in headers:
        if machine == _EM_CUDA:
            matters = image.startswith(_GPU_SECTIONS, texts + name)
        else:
            matters = (
                bool(flags & _SHF_ALLOC)
                and kind != _SHT_NOTE
                and not image.startswith(_FATBIN_SECTIONS, texts + name)
            )
        if matters:
            content = b"" if kind == _SHT_NOBITS else image[offset : offset + length]
            yield content + struct.pack(
                "<QI", length, info >> 24
            )  # the upper byte is a kernel's register count


class _NativeStripper(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        native = isinstance(node.value, str) and 'extern "C"' in node.value
        return ast.Constant("native code") if native else node


def _python_without_native(source: str) -> str:
    return ast.unparse(_NativeStripper().visit(parse_python(source)))
