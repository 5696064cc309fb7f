"""Imports run one way, and the lab needs nothing but the standard library, torch and `records`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "kernelpro"
FILES = sorted(SOURCE.rglob("*.py"))

PACKAGES = (
    ("dropin",),
    ("records",),
    ("memory",),
    ("search",),
    ("diagnose",),
    ("llm",),
    ("code_search",),
    ("pools",),
    ("authors",),
    ("engine",),
    ("suites",),
    ("report",),
    ("tasks",),
    ("api",),
    ("ui",),
    ("cli",),
)
"""Lower layers first. A layer may import from layers before it; parts of one layer do not import each other."""
LAB = (
    ("archive", "exclusive", "garbage", "heap", "machine", "tree", "operator_mode", "vector_math"),
    ("languages", "tasks"),
    ("seeds",),
    ("sandbox",),
    ("compile_ahead", "measure"),
    ("energy", "profile", "tuning"),
    ("judge",),
    ("study", "describe"),
    ("jobs",),
    ("worker",),
)
PLAYBOOK = (
    ("algebra",),
    ("ir",),
    ("graph", "schedule"),
    ("fusion", "codegen"),
    ("cpp", "triton", "forms"),
    ("cuda",),
    ("recurrent",),
    ("playbook",),
)
ROOTS = {"": PACKAGES, "lab": LAB, "authors.playbook": PLAYBOOK}
LAB_USERS = {"pools", "runtime", "cli/spool.py", "cli/doctor.py"}


@cache
def imported(path: Path) -> frozenset[str]:
    """The modules that a file imports anywhere, and the names that it imports from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Statements outside of functions and of `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _executed(child)


def module_name(path: Path) -> str:
    parts = ("kernelpro", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def offenders(files: Iterable[Path], is_wrong: Callable[[Path, str], bool]) -> list[str]:
    """What is imported against a rule, and by which file."""
    return [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in files
        for name in imported(path)
        if is_wrong(path, name)
    ]


def test_the_lab_imports_only_the_standard_library_torch_and_records() -> None:
    def is_foreign(path: Path, name: str) -> bool:
        root = name.split(".")[0]
        if root == "kernelpro":
            return name != "kernelpro" and not name.startswith(
                ("kernelpro.lab", "kernelpro.records", "kernelpro.runtime")
            )
        return root not in sys.stdlib_module_names and root not in ("torch", "triton", "numpy")

    lab = [path for path in FILES if package(path) == "lab"]
    assert lab and not offenders(lab, is_foreign)


def test_drop_in_modules_need_only_the_standard_library_and_torch() -> None:
    def is_foreign(path: Path, name: str) -> bool:
        root = name.split(".")[0]
        return not name.startswith("kernelpro.dropin") and root not in {*sys.stdlib_module_names, "torch"}

    dropin = [path for path in FILES if package(path) == "dropin"]
    assert dropin and not offenders(dropin, is_foreign)


def test_nobody_else_imports_the_lab() -> None:
    others = [
        path for path in FILES if not {"lab", *LAB_USERS} & {package(path), str(path.relative_to(SOURCE))}
    ]
    assert others and not offenders(others, lambda path, name: name.startswith("kernelpro.lab"))


@pytest.mark.parametrize("root", ROOTS)
def test_imports_run_from_higher_layers_to_lower_ones(root: str) -> None:
    prefix = f"kernelpro.{root}.".replace("..", ".")

    def part(module: str) -> str:
        return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else ""

    level = {name: index for index, names in enumerate(ROOTS[root]) for name in names}
    files = [path for path in FILES if part(module_name(path)) in level]

    def is_upwards(path: Path, name: str) -> bool:
        user, used = part(module_name(path)), part(name)
        return used in level and user != used and level[used] >= level[user]

    assert files and not offenders(files, is_upwards)


def test_every_module_of_a_layered_package_belongs_to_a_layer() -> None:
    for root, layers in ROOTS.items():
        folder = SOURCE.joinpath(*root.split("."))
        parts = {path.relative_to(folder).parts[0].removesuffix(".py") for path in folder.rglob("*.py")}
        named = {name for names in layers for name in names}
        assert parts - {"__init__", "__main__"} == named | ({"lab", "runtime"} if root == "" else set())


def test_no_modules_import_each_other_in_a_cycle() -> None:
    modules = {module_name(path): path for path in FILES}
    graph = {name: _dependencies(path, modules.keys()) - {name} for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: Sequence[str] = error.args[1]
        pytest.fail(" -> ".join(reversed(cycle)))


def _dependencies(path: Path, modules: Collection[str]) -> set[str]:
    """Modules that run when a file is imported. `from package import module` depends on the module alone."""
    found: set[str] = set()
    for node in _executed(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= {*modules} else {node.module} | names
    return found & {*modules}


def test_files_fit_in_one_reading() -> None:
    assert FILES and not [str(path) for path in FILES if len(path.read_text().splitlines()) > 500]


def test_the_worker_starts_without_typer_and_rich() -> None:
    code = (
        "import sys; sys.modules['typer'] = sys.modules['rich'] = None; "
        "import kernelpro.lab.jobs, kernelpro.runtime"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_imports_neither_torch_nor_the_lab() -> None:
    code = (
        "import sys, kernelpro.cli.commands; "
        "assert 'torch' not in sys.modules and 'kernelpro.lab' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_lists_of_languages_agree() -> None:
    from kernelpro.authors.author import LANGUAGES
    from kernelpro.cli.options import LanguageChoice
    from kernelpro.lab.languages import registry
    from kernelpro.report.html import _LANGUAGES

    names = {name for languages in LANGUAGES.values() for name in languages}
    assert names == {choice.value for choice in LanguageChoice}
    assert names | {"torch"} == set(registry()) == set(_LANGUAGES)


def test_every_string_statement_is_a_docstring() -> None:
    """A long string that is wrapped without parentheses loses its second line: it becomes a statement."""
    stray = []
    for path in FILES:
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Constant, ast.JoinedStr)):
                start = lines[node.lineno - 1][node.col_offset :].lstrip("r")
                if start != "..." and not start.startswith('"""'):
                    stray.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not stray
