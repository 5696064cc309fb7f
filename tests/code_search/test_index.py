"""The index is right when files change, when it is damaged, when two build it, and when there is no room for it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kernelpro.code_search import SourceTree, index, search


def files() -> list[Path]:
    return sorted(index.folder().glob("*.db"))


def test_it_is_built_once_and_reused(tree: SourceTree) -> None:
    search("tile", "small")
    (built,) = files()
    before = built.stat().st_ino
    search("tile", "small")
    assert [path.stat().st_ino for path in files()] == [before]


def test_a_changed_new_or_deleted_file_is_seen(tree: SourceTree, root: Path) -> None:
    assert "nothing matches" in search("zebra", "small")
    (root / "new.py").write_text("def zebra(): pass\n")
    assert "new.py" in search("zebra", "small")
    (root / "new.py").write_text("def giraffe_zoo(): pass\n")
    assert "nothing matches" in search("zebra", "small")
    assert "new.py" in search("giraffe", "small")
    (root / "new.py").unlink()
    assert "nothing matches" in search("giraffe", "small")
    assert len(files()) == 1, "old indexes of the tree are removed"


@pytest.mark.parametrize("damage", [b"", b"not a database", None])
def test_a_damaged_index_is_built_anew(tree: SourceTree, damage: bytes | None) -> None:
    good = search("load tile", "small")
    (built,) = files()
    data = built.read_bytes()
    built.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096) if damage is None else damage)
    assert search("load tile", "small") == good
    assert sqlite3.connect(files()[0]).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_half_built_index_is_never_seen(tree: SourceTree) -> None:
    index.folder().mkdir(parents=True)
    left = index.folder() / ".building-left"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert search("load tile", "small").startswith("include/tile.cuh")
    assert [path.name for path in index.folder().iterdir()] == [files()[0].name], (
        "what was abandoned is swept up"
    )


def test_without_a_place_for_it_the_index_is_in_memory(
    tree: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = search("load tile", "small")
    (tmp_path / "blocked").write_text("a file where the cache should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    for _ in range(2):
        note, rest = search("load tile", "small").split("\n", 1)
        assert note.startswith("note: ") and "in memory" in note
        assert rest == good


def test_many_threads_at_once(tree: SourceTree) -> None:
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda: answers.append(search("load tile", "small"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 and len(set(answers)) == 1


def test_two_processes_at_once(tree: SourceTree) -> None:
    code = "from kernelpro.code_search import search; print(search('load tile', 'small'))"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = {process.communicate()[0] for process in running}
    assert len(answers) == 1 and answers.pop().startswith("include/tile.cuh")
    assert len(files()) == 1 and not list(index.folder().glob(".building-*"))
