"""Artifacts of several designs in one process: what is there is not written again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelpro.lab.sandbox.artifacts import pack_artifacts, unpack_artifacts

pytestmark = pytest.mark.together


def test_a_library_that_is_there_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has loaded it would crash."""
    for place in ("built", "used"):
        for name in ("KERNELPRO_BUILD_DIR", "TRITON_CACHE_DIR"):
            folder = tmp_path / place / name
            folder.mkdir(parents=True)
            monkeypatch.setenv(name, str(folder))
        if place == "built":
            launcher = tmp_path / "built" / "TRITON_CACHE_DIR" / "KEY" / "launcher.so"
            launcher.parent.mkdir()
            launcher.write_bytes(b"code")
            first = pack_artifacts()
            (launcher.parent / "kernel.cubin").write_bytes(b"kernel")
            second = pack_artifacts()
    unpack_artifacts(first)
    used = tmp_path / "used" / "TRITON_CACHE_DIR" / "KEY"
    with (used / "launcher.so").open("rb") as loaded:
        (used / "launcher.so").chmod(0o400)
        before = (used / "launcher.so").stat()
        unpack_artifacts(second)
        after = (used / "launcher.so").stat()
        assert loaded.read() == b"code"
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)
    assert (used / "kernel.cubin").read_bytes() == b"kernel"
