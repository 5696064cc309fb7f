"""A cache and a data folder of their own for every test, and a small tree in which every kind of source occurs."""

from __future__ import annotations

from pathlib import Path

import pytest
from code_search.samples import GUIDE, KERNEL, SCRIPT

from kernelpro.code_search import SourceTree, cutlass, definition, register


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "include").mkdir(parents=True)
    (root / "test").mkdir()
    (root / "include/tile.cuh").write_text(KERNEL)
    (root / "test/test_tile.cu").write_text("void check() { load_tile(1); }\n")
    (root / "run.py").write_text(SCRIPT)
    (root / "guide.md").write_text(GUIDE)
    (root / ".secret.py").write_text("password = 1\n")
    (root / "picture.png").write_bytes(b"\x89PNG")
    return root


@pytest.fixture
def tree(root: Path) -> SourceTree:
    """The small tree, under the name `small`."""
    return register("small", str(root))


@pytest.fixture(scope="session")
def real_cutlass(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which CUTLASS is indexed once for all tests."""
    found = cutlass()
    if found is None:
        pytest.skip("CUTLASS is not installed here")
    cache = tmp_path_factory.mktemp("cutlass-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        assert "copy_atom.hpp" in definition("make_tiled_copy")
    return cache
