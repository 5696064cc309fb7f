"""Source trees: where they are, which files they contain, and whether the files have changed.

A path from a caller is looked up in the tree's listing, and never passed to the file system. So callers
cannot reach other files by `..`, absolute paths, hidden files or symbolic links.
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

_SUFFIXES = """
    .h .hh .hpp .hxx .cuh .inl .inc .c .cc .cpp .cxx .cu .hip .cl .metal .ptx .sass .s .asm .ll .mlir .td .py
    .pyi .pyx .rs .go .jl .md .rst .txt .ipynb .cmake
"""
SOURCE_SUFFIXES = frozenset(_SUFFIXES.split())
"""Suffixes of the files in a tree: source and documentation."""
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})
MAX_FILES = 50_000
"""A larger tree is not a library but a home folder or a disk, whose indexing would take minutes."""
MAX_FILE_BYTES = 8 << 20
"""File size limit. The largest hand-written file in CUTLASS has 2.9 MB; larger files are dumps and tables."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


class NotFound(BadInput):
    """No such tree, file or symbol. The message suggests alternatives."""


@dataclass(frozen=True)
class Listing:
    """The files of a tree at one moment: sorted relative paths, with (bytes, modification time in ns)."""

    files: dict[str, tuple[int, int]]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of paths, sizes and modification times."""
        rows = "\n".join(f"{path}\t{size}\t{changed}" for path, (size, changed) in self.files.items())
        return hashlib.sha256(rows.encode()).hexdigest()

    def find(self, path: str) -> str:
        """Return the path itself, or the only path that ends with it (such as `cute/tensor.hpp`)."""
        wanted = path.strip().replace("\\", "/")
        parts = wanted.split("/")
        if not wanted or ".." in parts or wanted.startswith(("/", "~")) or "\0" in wanted:
            raise BadInput(f"{path!r}: give a path relative to the tree, without `..`")
        wanted = "/".join(part for part in parts if part not in ("", "."))
        if wanted in self.files:
            return wanted
        same_end = [file for file in self.files if file.endswith("/" + wanted)]
        if len(same_end) == 1:
            return same_end[0]
        name = parts[-1].lower()
        near = same_end or [file for file in self.files if file.rsplit("/", 1)[-1].lower() == name]
        near = near or [
            file for file in self.files if name and name.rsplit(".", 1)[0] in file.rsplit("/", 1)[-1].lower()
        ]
        raise NotFound(
            f"{path!r}: no such file in the tree" + (f"; did you mean {', '.join(near[:5])}?" if near else "")
        )


@dataclass(frozen=True)
class SourceTree:
    """A named folder of source."""

    name: str
    root: Path

    def listing(self) -> Listing:
        """List the files, except hidden, large and other kinds of files, links, and unreadable folders."""
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
                    if entry.name not in SKIPPED_FOLDERS:
                        folders.append(path)
                elif os.path.splitext(entry.name)[1].lower() in SOURCE_SUFFIXES and entry.is_file(
                    follow_symlinks=False
                ):
                    about = entry.stat(follow_symlinks=False)
                    if about.st_size <= MAX_FILE_BYTES:
                        found[path] = (about.st_size, about.st_mtime_ns)
            if len(found) > MAX_FILES:
                raise BadInput(
                    f"tree {self.name}: more than {MAX_FILES} source files in {self.root}; register a folder"
                    " inside it"
                )
        return Listing(dict(sorted(found.items())))

    def text(self, path: str) -> str:
        """Return the text of a file; empty if it is binary.

        Normalizes line ends and replaces undecodable bytes.
        """
        try:
            handle = os.open(self.root / path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            raise NotFound(f"{path}: cannot be read ({error.strerror})") from None
        with open(handle, "rb") as file:
            data = file.read(MAX_FILE_BYTES)
        if b"\0" in data[:8192]:
            return ""
        return data.decode("utf-8-sig", "replace").replace("\r\n", "\n")

    def lines(self, path: str) -> list[str]:
        """Return the lines of a file."""
        lines = self.text(path).split("\n")
        return lines[:-1] if lines[-1] == "" else lines


def cutlass() -> SourceTree | None:
    """Return the CUTLASS tree: the checkout in KERNELPRO_CUTLASS, else that of the nvidia-cutlass package."""
    if given := os.environ.get("KERNELPRO_CUTLASS"):
        return (
            SourceTree("cutlass", Path(given).resolve()) if (Path(given) / "include/cute").is_dir() else None
        )
    spec = importlib.util.find_spec("cutlass_library")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "source/include/cute").is_dir():
            return SourceTree("cutlass", (Path(folder) / "source").resolve())
    return None


def known_trees() -> dict[str, SourceTree]:
    """Return all trees by name: CUTLASS if it is installed, and the registered ones."""
    own = {name: SourceTree(name, Path(path)) for name, path in sorted(_registered().items())}
    found = cutlass()
    return ({"cutlass": found} if found else {}) | own


def get_tree(name: str) -> SourceTree:
    """Return the tree with this name. Raises NotFound for a name that is not registered."""
    trees = known_trees()
    if name in trees:
        return trees[name]
    if name == "cutlass":
        raise NotFound(
            "CUTLASS not found: pip install --no-deps nvidia-cutlass, or set KERNELPRO_CUTLASS to a checkout"
            " (it has include/cute)"
        )
    raise NotFound(f"no tree named {name!r}; known: {', '.join(trees) or 'none'}")


def register(name: str, path: str) -> SourceTree:
    """Register a folder under a name, in the user's data folder."""
    if not _NAME.fullmatch(name) or name == "cutlass":
        raise BadInput(
            f"{name!r}: a name has letters, digits, dot, dash, underscore, and is not cutlass (set"
            " KERNELPRO_CUTLASS for it)"
        )
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        raise NotFound(f"{path}: no such folder")
    _save(_registered() | {name: str(root)})
    return SourceTree(name, root)


def forget(name: str) -> None:
    """Remove a registered name."""
    names = _registered()
    if name not in names:
        raise NotFound(
            f"no registered tree is named {name!r}; registered: {', '.join(sorted(names)) or 'none'}"
        )
    _save({other: path for other, path in names.items() if other != name})


def _config_path() -> Path:
    return folders.data("trees.json")


def _registered() -> dict[str, str]:
    path = _config_path()
    try:
        read = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: not readable as JSON ({error}); fix or delete it") from None
    if not isinstance(read, dict) or not all(isinstance(item, str) for item in read.values()):
        raise BadInput(f'{path}: not an object of "name": "path"; fix or delete it')
    return read


def _save(names: dict[str, str]) -> None:
    path = _config_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".trees-")
        with open(handle, "w") as file:
            json.dump(names, file, indent=2, sort_keys=True)
        os.replace(temporary, path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})") from None
