"""Imports run one way, and the lab needs nothing but the standard library, torch and `records`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "kernelpro"
FILES = sorted(SOURCE.rglob("*.py"))

LAYERS = [
    "records",
    "memory",
    "search",
    "diagnose",
    "llm",
    "library",
    "pools",
    "authors",
    "engine",
    "suites",
    "report",
    "api",
    "cli",
]
"""Lower first. A room may import from rooms before it."""
LAB_USERS = {"pools", "runtime", "cli/spooling.py", "cli/checkup.py"}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", [f for f in FILES if room(f) == "lab"], ids=lambda p: str(p.relative_to(SOURCE)))
def test_the_lab_imports_only_the_standard_library_torch_and_records(path: Path) -> None:
    for name in imported(path):
        root = name.split(".")[0]
        if root == "kernelpro":
            assert name == "kernelpro" or name.startswith(("kernelpro.lab", "kernelpro.records", "kernelpro.runtime")), name
        else:
            assert root in sys.stdlib_module_names or root in ("torch", "triton", "numpy"), name


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nobody_else_imports_the_lab(path: Path) -> None:
    relative = str(path.relative_to(SOURCE))
    if room(path) == "lab" or room(path) in LAB_USERS or relative in LAB_USERS:
        return
    assert not [name for name in imported(path) if name.startswith("kernelpro.lab")]


@pytest.mark.parametrize("path", [f for f in FILES if room(f) in LAYERS], ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_run_one_way(path: Path) -> None:
    level = LAYERS.index(room(path))
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "kernelpro" and len(parts) > 1 and parts[1] in LAYERS:
            assert LAYERS.index(parts[1]) <= level, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_fit_in_one_reading(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


def test_the_worker_starts_without_typer_and_rich() -> None:
    block = "import sys; sys.modules['typer'] = sys.modules['rich'] = None; import kernelpro.lab.jobs, kernelpro.runtime"
    subprocess.run([sys.executable, "-c", block], check=True)


def test_help_imports_neither_torch_nor_rich_tables() -> None:
    code = "import sys, kernelpro.cli.commands; assert 'torch' not in sys.modules and 'kernelpro.lab' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
