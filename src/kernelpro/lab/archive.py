"""Taking files out of a tar that came from another process: plain ones below a folder, whatever else it holds."""

from __future__ import annotations

import io
import os
import re
import tarfile

_BLOCK = 512
_MOST_MEMBERS = 10_000
_WITHOUT_CONTENT = (
    tarfile.DIRTYPE,
    tarfile.LNKTYPE,
    tarfile.SYMTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.FIFOTYPE,
)
_ODD = re.compile(rb"GNU\.sparse|\bsize=")
"""In a member's extended header: makes it larger than what is there."""


def opened(data: bytes) -> tarfile.TarFile:
    """For reading; never a compressed one, which could be of any size. Raises TarError for what is not plain."""
    if not _is_plain(data):
        raise tarfile.ReadError("it is no plain archive")
    return tarfile.open(fileobj=io.BytesIO(data), mode="r:")


def _is_plain(data: bytes) -> bool:
    """Whether members follow each other to the end. tarfile itself reads for ever where one leads back, or a sparse one has no end,
    and a sparse one of a few bytes may be larger than the memory."""
    at, last = 0, b""
    for _ in range(_MOST_MEMBERS):
        head = data[at : at + _BLOCK]
        if not head.strip(b"\0"):
            return True
        try:
            size = int(head[124:136].split(b"\0")[0].strip() or b"0", 8)
        except ValueError:
            return False
        kind, body = head[156:157], data[at + _BLOCK : at + _BLOCK + max(0, size)]
        empty = kind in _WITHOUT_CONTENT and size == 0
        extended = kind == tarfile.XHDTYPE and last != kind and not _ODD.search(body)
        if len(body) != size or not (empty or extended or kind == tarfile.REGTYPE):
            return False
        at, last = at + _BLOCK + -(-size // _BLOCK) * _BLOCK, kind
    return False


def unpack(data: bytes, folder: str) -> None:
    with opened(data) as archive:
        for member in archive.getmembers():
            extract(archive, member, folder)


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    """A file or a folder, with its time; links, devices and names that lead elsewhere are passed over."""
    root = os.path.realpath(folder)
    inside = os.path.realpath(os.path.join(root, member.name)).startswith(root + os.sep)
    if not inside or not (member.isfile() or member.isdir()):
        return
    if hasattr(tarfile, "data_filter"):
        archive.extract(member, folder, filter="data")
        return
    # before Python 3.11.4, which Debian 12 does not have
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
    archive.extract(member, folder)
