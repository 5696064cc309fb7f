"""Packs the files that compilers leave in a child's build directories as a tar, and unpacks them for the same
candidate, but for no other."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from kernelpro.lab.archive import extract
from kernelpro.lab.languages import triton_ahead
from kernelpro.lab.languages.triton import CACHE

_DIRECTORIES = ("KERNELPRO_BUILD_DIR", CACHE)
"""Environment variables that name the build directories."""


def pack_artifacts() -> bytes:
    """A tar of the build directories."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in _DIRECTORIES:
            if (path := os.environ.get(name)) and os.path.isdir(path):
                archive.add(path, arcname=name)
    return buffer.getvalue()


def unpack_artifacts(data: bytes) -> None:
    """Restore the build directories from a tar of `pack_artifacts`.

    File names contain a hash of the content, so that a file which exists already is the same. It is not
    written again, because this process may have loaded it as a library for another design.
    """
    if not data:
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive.getmembers():
            name, _, rest = member.name.partition("/")
            if name in _DIRECTORIES and rest and not os.path.isfile(os.path.join(os.environ[name], rest)):
                member.name = rest
                extract(archive, member, os.environ[name])
    triton_ahead.relocate_cache(Path(os.environ[CACHE]))
