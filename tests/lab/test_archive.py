"""What a process of others packs must not come out anywhere but in its folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from kernelpro.lab.archive import unpack
from kernelpro.lab.languages.machine_code import fingerprint

pytestmark = pytest.mark.together


def packed(outside: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("plain", "sub/plain", "../above", str(outside / "absolute"), "way/out"):
            if name == "way/out":
                link = tarfile.TarInfo("way")
                link.type, link.linkname = tarfile.SYMTYPE, str(outside)
                archive.addfile(link)
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode, member.uid = 4, 1000, 0o4777, 12345
            archive.addfile(member, io.BytesIO(b"text"))
    return buffer.getvalue()


@pytest.mark.parametrize("filters", [True, False])
def test_only_plain_files_below_the_folder(
    filters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where tarfile has no filters, as before Python 3.11.4."""
    if not filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filters")
    folder, outside = tmp_path / "in" / "here", tmp_path / "outside"
    folder.mkdir(parents=True)
    outside.mkdir()
    unpack(packed(outside), str(folder))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "in/here/plain",
        "in/here/sub/plain",
        "in/here/way/out",
    ]
    found = (folder / "plain").stat()
    assert found.st_mtime == 1000 and found.st_uid == folder.stat().st_uid and not found.st_mode & 0o6022


def head(size: int = 0, kind: bytes = tarfile.REGTYPE, more: dict[str, str] | None = None) -> bytes:
    member = tarfile.TarInfo("a.so")
    member.size, member.type, member.pax_headers = size, kind, more or {}
    return member.tobuf(tarfile.PAX_FORMAT)


HUGE = {"GNU.sparse.size": str(1 << 50), "GNU.sparse.map": f"{1 << 50},0", "GNU.sparse.name": "a.so"}
ENDLESS = {
    "leads back to its own beginning": head() + head(more={"size": "-1536"}),
    "sparse, larger than any memory": head(more=HUGE),
    "of more members than anybody has": head(kind=tarfile.DIRTYPE) * 20_000,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_would_be_read_for_ever_is_not_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError):
        unpack(ENDLESS[name], str(tmp_path))
    assert fingerprint("class ModelNew: pass", ENDLESS[name]) == ""
