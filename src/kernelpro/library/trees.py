"""Trees of source: where they are, which files they hold, and whether these changed.

A path that a caller gives is looked up in the listing of the tree, never handed to the file system as it is: `..`, absolute
paths, hidden files and symbolic links lead nowhere because the listing does not hold them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kernelpro.records import BadInput, folders

_ENDINGS = """
    .h .hh .hpp .hxx .cuh .inl .inc .c .cc .cpp .cxx .cu .hip .cl .metal .ptx .sass .s .asm .ll .mlir .td .py .pyi .pyx .rs .go .jl
    .md .rst .txt .ipynb .cmake
"""
READ = frozenset(_ENDINGS.split())
"""Kinds of files a tree is made of: source, and text about it."""
SKIPPED = frozenset({"__pycache__", "node_modules"})
MOST_FILES = 50_000
"""Beyond this a tree is not one library: a home folder, a disk. Building would take minutes and the listing of a call seconds."""
MOST_BYTES = 8 << 20
"""A file. The largest hand-maintained one in CUTLASS has 2.9 MB; beyond are dumps and generated tables."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


class NotFound(BadInput):
    """No such tree, file or symbol. The message says what is there instead."""


@dataclass(frozen=True)
class Listing:
    """The files of a tree at one moment: relative path -> (bytes, modification time in ns), sorted."""

    files: dict[str, tuple[int, int]]

    @cached_property
    def fingerprint(self) -> str:
        rows = "\n".join(f"{path}\t{size}\t{changed}" for path, (size, changed) in self.files.items())
        return hashlib.sha256(rows.encode()).hexdigest()

    def find(self, path: str) -> str:
        """The one file meant by `path`: itself, or the only one that ends with it (`cute/tensor.hpp`)."""
        wanted = path.strip().replace("\\", "/")
        parts = wanted.split("/")
        if not wanted or ".." in parts or wanted.startswith(("/", "~")) or "\0" in wanted:
            raise BadInput(f"{path!r}: give a path relative to the tree, without `..`")
        wanted = "/".join(part for part in parts if part not in ("", "."))
        if wanted in self.files:
            return wanted
        same_end = [known for known in self.files if known.endswith("/" + wanted)]
        if len(same_end) == 1:
            return same_end[0]
        name = parts[-1].lower()
        near = same_end or [known for known in self.files if known.rsplit("/", 1)[-1].lower() == name]
        near = near or [
            known
            for known in self.files
            if name and name.rsplit(".", 1)[0] in known.rsplit("/", 1)[-1].lower()
        ]
        raise NotFound(
            f"{path!r}: no such file in the tree" + (f"; did you mean {', '.join(near[:5])}?" if near else "")
        )


@dataclass(frozen=True)
class Tree:
    """A named folder of source."""

    name: str
    root: Path

    def listing(self) -> Listing:
        """Walk the tree. Hidden and unreadable folders, links, other kinds of files and files beyond MOST_BYTES are left out."""
        found: dict[str, tuple[int, int]] = {}
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                entries = list(os.scandir(os.path.join(self.root, folder)))
            except OSError:
                if folder:
                    continue
                raise NotFound(f"tree {self.name}: cannot read {self.root}") from None
            for entry in entries:
                if entry.name.startswith(".") or not entry.name.isprintable() or entry.is_symlink():
                    continue
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in SKIPPED:
                        folders.append(path)
                elif os.path.splitext(entry.name)[1].lower() in READ and entry.is_file(follow_symlinks=False):
                    about = entry.stat(follow_symlinks=False)
                    if about.st_size <= MOST_BYTES:
                        found[path] = (about.st_size, about.st_mtime_ns)
            if len(found) > MOST_FILES:
                raise BadInput(
                    f"tree {self.name}: more than {MOST_FILES} source files in {self.root}; name a folder in it"
                )
        return Listing(dict(sorted(found.items())))

    def text(self, path: str) -> str:
        """A listed file's text; empty for a binary one. Line ends become newlines, undecodable bytes the replacement mark."""
        try:
            handle = os.open(self.root / path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            raise NotFound(f"{path}: cannot be read ({error.strerror})") from None
        with open(handle, "rb") as file:
            data = file.read(MOST_BYTES)
        if b"\0" in data[:8192]:
            return ""
        return data.decode("utf-8-sig", "replace").replace("\r\n", "\n")

    def lines(self, path: str) -> list[str]:
        lines = self.text(path).split("\n")
        return lines[:-1] if lines[-1] == "" else lines


def cutlass() -> Tree | None:
    """CUTLASS and CuTe: KERNELPRO_CUTLASS (a checkout), else the tree in the nvidia-cutlass wheel."""
    if given := os.environ.get("KERNELPRO_CUTLASS"):
        return Tree("cutlass", Path(given).resolve()) if (Path(given) / "include/cute").is_dir() else None
    spec = importlib.util.find_spec("cutlass_library")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "source/include/cute").is_dir():
            return Tree("cutlass", (Path(folder) / "source").resolve())
    return None


def known() -> dict[str, Tree]:
    """All trees that have a name: cutlass where it is installed, and the user's."""
    own = {name: Tree(name, Path(path)) for name, path in sorted(_registered().items())}
    found = cutlass()
    return ({"cutlass": found} if found else {}) | own


def named(name: str) -> Tree:
    """The tree of that name. Agents choose among names only; a folder becomes searchable when a person names it."""
    trees = known()
    if name in trees:
        return trees[name]
    if name == "cutlass":
        raise NotFound(
            "CUTLASS not found: pip install --no-deps nvidia-cutlass, or set KERNELPRO_CUTLASS to a checkout (it has include/cute)"
        )
    raise NotFound(f"no tree named {name!r}; known: {', '.join(trees) or 'none'}")


def register(name: str, path: str) -> Tree:
    """Keep a name for a folder in the user's data folder."""
    if not _NAME.fullmatch(name) or name == "cutlass":
        raise BadInput(
            f"{name!r}: a name has letters, digits, dot, dash, underscore, and is not cutlass (set KERNELPRO_CUTLASS for it)"
        )
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        raise NotFound(f"{path}: no such folder")
    _save(_registered() | {name: str(root)})
    return Tree(name, root)


def forget(name: str) -> None:
    """Drop a name that `register` kept."""
    names = _registered()
    if name not in names:
        raise NotFound(f"no tree of yours is named {name!r}; yours: {', '.join(sorted(names)) or 'none'}")
    _save({kept: path for kept, path in names.items() if kept != name})


def _config() -> Path:
    return folders.data("trees.json")


def _registered() -> dict[str, str]:
    path = _config()
    try:
        read = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: not readable as JSON ({error}); mend or delete it") from None
    if not isinstance(read, dict) or not all(isinstance(item, str) for item in read.values()):
        raise BadInput(f'{path}: not an object of "name": "path"; mend or delete it')
    return read


def _save(names: dict[str, str]) -> None:
    path = _config()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".trees-")
        with open(handle, "w") as file:
            json.dump(names, file, indent=2, sort_keys=True)
        os.replace(temporary, path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})") from None
