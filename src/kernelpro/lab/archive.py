"""Safe extraction of a tar from an untrusted process: only regular files and folders, only below the target
folder."""

from __future__ import annotations

import io
import os
import re
import tarfile

_BLOCK = 512
_MAX_MEMBERS = 10_000
_WITHOUT_CONTENT = (
    tarfile.DIRTYPE,
    tarfile.LNKTYPE,
    tarfile.SYMTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.FIFOTYPE,
)
_SIZE_OVERRIDE = re.compile(rb"GNU\.sparse|\bsize=")
"""An extended header with one of these fields can declare a member larger than its content."""


def open_tar(data: bytes) -> tarfile.TarFile:
    """Open a tar for reading. Raises TarError if it is compressed (its size is unbounded) or not plain."""
    if not _is_plain(data):
        raise tarfile.ReadError("not a plain tar archive")
    return tarfile.open(fileobj=io.BytesIO(data), mode="r:")


def _is_plain(data: bytes) -> bool:
    """Whether the archive is a plain sequence of members whose sizes match their content.

    tarfile loops forever if a member points backwards or a sparse member has no end, and a sparse member of
    a few bytes can declare more content than fits into memory.
    """
    at, last = 0, b""
    for _ in range(_MAX_MEMBERS):
        head = data[at : at + _BLOCK]
        if not head.strip(b"\0"):
            return True
        try:
            size = int(head[124:136].split(b"\0")[0].strip() or b"0", 8)
        except ValueError:
            return False
        kind, body = head[156:157], data[at + _BLOCK : at + _BLOCK + max(0, size)]
        empty = kind in _WITHOUT_CONTENT and size == 0
        extended = kind == tarfile.XHDTYPE and last != kind and not _SIZE_OVERRIDE.search(body)
        if len(body) != size or not (empty or extended or kind == tarfile.REGTYPE):
            return False
        at, last = at + _BLOCK + -(-size // _BLOCK) * _BLOCK, kind
    return False


def unpack(data: bytes, folder: str) -> None:
    """Extract all files of a tar."""
    with open_tar(data) as archive:
        for member in archive.getmembers():
            extract(archive, member, folder)


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    """Extract a file or folder with its modification time; skip links, devices and paths outside of
    `folder`."""
    root = os.path.realpath(folder)
    inside = os.path.realpath(os.path.join(root, member.name)).startswith(root + os.sep)
    if not inside or not (member.isfile() or member.isdir()):
        return
    if hasattr(tarfile, "data_filter"):
        archive.extract(member, folder, filter="data")
        return
    # Python before 3.11.4, as on Debian 12
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
    archive.extract(member, folder)
