"""Taking files out of a tar that came from another process: plain ones below a folder, whatever else it holds."""

from __future__ import annotations

import io
import os
import tarfile


def unpack(data: bytes, folder: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:  # never a compressed one, which could be of any size
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
