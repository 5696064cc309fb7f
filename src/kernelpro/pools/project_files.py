"""Finds the files of the user's project that a definition needs: imported modules that are not installed."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_MAX_FILES, _MAX_BYTES = 300, 4 << 20
_INSTALLED = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def imported_files(definitions: Iterable[Any]) -> dict[str, str]:
    """The modules that are not installed and that the modules of these definitions import, directly or
    indirectly: text by path, relative to the folder from which they are imported."""
    homes = [sys.modules.get(definition.__module__) for definition in definitions]
    waiting = [home for home in homes if home is not None and _file_of(home)]
    starts = {home.__name__ for home in waiting if "." not in home.__name__ and not hasattr(home, "__path__")}
    files: dict[str, str] = {}
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        path = _file_of(module)
        if module.__name__ in seen or path is None:
            continue
        seen.add(module.__name__)
        text = path.read_text(encoding="utf-8")
        if module.__name__ not in starts:
            files[_relative_path(module, path)] = text
        for name in _imports(ast.parse(text), module):
            while name:  # importing a module also imports the packages that contain it
                if (imported := sys.modules.get(name)) is not None and isinstance(imported, ModuleType):
                    waiting.append(imported)
                name = name.rpartition(".")[0]
        for parent in _parents(module.__name__):
            waiting.append(sys.modules[parent])
        if len(files) > _MAX_FILES or sum(map(len, files.values())) > _MAX_BYTES:
            return {}  # too much to copy, such as a framework: it must be installed for the workers
    return files


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        if name in sys.modules:
            yield name


def _file_of(module: ModuleType) -> Path | None:
    """The source file of a module; None if it is installed or has no source."""
    name = getattr(module, "__file__", None)
    if not name or module.__name__.partition(".")[0] in ("torch", "kernelpro"):
        return None
    path = Path(name).resolve()
    is_installed = str(path).startswith(_INSTALLED) or {"site-packages", "dist-packages"} & set(path.parts)
    return path if path.suffix == ".py" and path.is_file() and not is_installed else None


def _relative_path(module: ModuleType, path: Path) -> str:
    parts = module.__name__.split(".")
    return "/".join(
        [*parts, "__init__.py"] if path.name == "__init__.py" else [*parts[:-1], f"{parts[-1]}.py"]
    )


def _imports(tree: ast.AST, module: ModuleType) -> Iterator[str]:
    """The absolute names that a module imports."""
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield start
            yield from (f"{start}.{alias.name}" for alias in node.names)
