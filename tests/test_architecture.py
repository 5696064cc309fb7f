"""Imports run one way, and the lab needs nothing but the standard library, torch and `records`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

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


@cache
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


def offenders(files: Iterable[Path], is_wrong: Callable[[Path, str], bool]) -> list[str]:
    """What is imported against a rule, and by whom."""
    return [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in files
        for name in imported(path)
        if is_wrong(path, name)
    ]


def test_the_lab_imports_only_the_standard_library_torch_and_records() -> None:
    def foreign(path: Path, name: str) -> bool:
        root = name.split(".")[0]
        if root == "kernelpro":
            return name != "kernelpro" and not name.startswith(
                ("kernelpro.lab", "kernelpro.records", "kernelpro.runtime")
            )
        return root not in sys.stdlib_module_names and root not in ("torch", "triton", "numpy")

    lab = [path for path in FILES if room(path) == "lab"]
    assert lab and not offenders(lab, foreign)


def test_nobody_else_imports_the_lab() -> None:
    others = [path for path in FILES if not {"lab", *LAB_USERS} & {room(path), str(path.relative_to(SOURCE))}]
    assert others and not offenders(others, lambda path, name: name.startswith("kernelpro.lab"))


def test_imports_run_one_way() -> None:
    def upwards(path: Path, name: str) -> bool:
        parts = name.split(".")
        known = parts[0] == "kernelpro" and len(parts) > 1 and parts[1] in LAYERS
        return known and LAYERS.index(parts[1]) > LAYERS.index(room(path))

    layered = [path for path in FILES if room(path) in LAYERS]
    assert layered and not offenders(layered, upwards)


def test_files_fit_in_one_reading() -> None:
    assert FILES and not [str(path) for path in FILES if len(path.read_text().splitlines()) > 500]


def test_the_worker_starts_without_typer_and_rich() -> None:
    block = "import sys; sys.modules['typer'] = sys.modules['rich'] = None; import kernelpro.lab.jobs, kernelpro.runtime"
    subprocess.run([sys.executable, "-c", block], check=True)


def test_help_imports_neither_torch_nor_rich_tables() -> None:
    code = "import sys, kernelpro.cli.commands; assert 'torch' not in sys.modules and 'kernelpro.lab' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
