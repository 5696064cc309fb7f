"""Measure how readable the source is, and compare checkouts side by side.

    python benchmarks/code_metrics.py [--json] [NAME=CHECKOUT ...]      # default: this checkout

Prints a Markdown table with a column per checkout: class names defined in more than one package, lines over
110 columns (Python and Markdown), public functions without a docstring, dictionaries with string keys and
untyped values in public signatures and fields, and lines and statements by package. Built-in tasks do not
count.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 110
TASK_FOLDERS = ("suites/own/", "suites/builtin/")
"""Built-in tasks, at the package's former and present path: checkouts of both are compared."""
UNTYPED = {"Any", "object"}
DICTIONARIES = {"dict", "Dict", "Mapping", "MutableMapping"}


def sources(checkout: Path) -> Iterator[tuple[str, str]]:
    """Yield the path below `kernelpro` and the text of every Python file of the package."""
    root = checkout / "src" / "kernelpro"
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(TASK_FOLDERS):
            yield name, path.read_text()


def package_of(name: str) -> str:
    """`lab/judge/judge.py` -> `lab/judge`; at most two levels."""
    parts = name.split("/")[:-1]
    return "/".join(parts[:2]) or "kernelpro"


def is_untyped_dictionary(annotation: ast.expr | None) -> bool:
    """Whether the annotation contains a dictionary with string keys and untyped values."""
    for node in ast.walk(annotation) if annotation else ():
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id in DICTIONARIES
        ):
            arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
            names = [argument.id if isinstance(argument, ast.Name) else "" for argument in arguments]
            if len(names) == 2 and names[0] == "str" and names[1] in UNTYPED:
                return True
    return False


def public_members(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign]:
    """Public functions of a module, public methods and annotated fields of its public classes."""
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_") else [node]
        for member in members:
            if (
                isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef))
                and not member.name.startswith("_")
            ) or (
                isinstance(node, ast.ClassDef)
                and isinstance(member, ast.AnnAssign)
                and isinstance(member.target, ast.Name)
                and not member.target.id.startswith("_")
            ):
                yield member


def annotations_of(
    member: ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign,
) -> Iterator[ast.expr | None]:
    """The annotation of a field, or those of a function's parameters and its result."""
    if isinstance(member, ast.AnnAssign):
        yield member.annotation
        return
    arguments = member.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield argument.annotation
    yield member.returns


def statements(tree: ast.Module) -> int:
    """Count statements: lines of code however they are wrapped, without docstrings and comments."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            strings = [
                item for item in body if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
            ]
            node.body = [item for item in body if item not in strings] or [ast.Pass()]  # type: ignore[attr-defined]
    return sum(bool(line.strip()) for line in ast.unparse(tree).splitlines())


def measure(checkout: Path) -> dict[str, object]:
    """Return all figures of one checkout."""
    classes: dict[str, set[str]] = defaultdict(set)
    lines: Counter[str] = Counter()
    code: Counter[str] = Counter()
    long_python = undocumented = functions = dictionaries = files = 0
    for name, text in sources(checkout):
        files += 1
        rows = text.splitlines()
        lines[package_of(name)] += len(rows)
        long_python += sum(len(row) > COLUMNS for row in rows)
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(name.rpartition("/")[0])
        for member in public_members(tree):
            if not isinstance(member, ast.AnnAssign):
                functions += 1
                undocumented += ast.get_docstring(member) is None
            dictionaries += sum(is_untyped_dictionary(annotation) for annotation in annotations_of(member))
        code[package_of(name)] += statements(tree)
    documents = [checkout / "README.md", *sorted((checkout / "docs").rglob("*.md"))]
    prose = [row for path in documents if path.exists() for row in path.read_text().splitlines()]
    return {
        "class names in more than one package": sum(len(packages) > 1 for packages in classes.values()),
        f"Python lines over {COLUMNS} columns": long_python,
        f"Markdown lines over {COLUMNS} columns": sum(
            len(row) > COLUMNS and not row.startswith("|") for row in prose
        ),
        "public functions": functions,
        "public functions without a docstring": undocumented,
        "untyped dictionaries in public signatures": dictionaries,
        "files": files,
        "lines": sum(lines.values()),
        "statements": sum(code.values()),
        "statements by package": dict(sorted(code.items())),
    }


def table(measured: dict[str, dict[str, object]]) -> str:
    """Format the figures as a Markdown table with a column per checkout."""
    rows = [["", *measured], ["---", *("---:" for _ in measured)]]
    first = next(iter(measured.values()))
    for key in first:
        if key == "statements by package":
            continue
        rows.append([key, *(f"{figures[key]:,}" for figures in measured.values())])
    packages = sorted({name for figures in measured.values() for name in figures["statements by package"]})  # type: ignore[attr-defined]
    for name in packages:
        counts = [figures["statements by package"].get(name, 0) for figures in measured.values()]  # type: ignore[attr-defined]
        rows.append([f"statements in `{name}`", *(f"{count:,}" for count in counts)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", metavar="NAME=CHECKOUT", default=[f"now={ROOT}"])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    named = [checkout.partition("=") for checkout in arguments.checkouts]
    measured = {name: measure(Path(folder)) for name, _, folder in named}
    print(json.dumps(measured, indent=1) if arguments.json else table(measured))


if __name__ == "__main__":
    main()
