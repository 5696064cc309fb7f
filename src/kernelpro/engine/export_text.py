"""Texts of an export: the kernel as part of another file, literals, requirements."""

from __future__ import annotations

import ast
import importlib.metadata
import pprint
import re
import sys
from pathlib import Path
from typing import Any

from kernelpro.records import BadInput, Task

_ROOT = Path(__file__).parents[1]
_RUNTIME_MODULES = {
    "kernelpro": "",
    "kernelpro.records": "records/base.py",
    "kernelpro.records.folders": "records/folders.py",
    "kernelpro.lab": "",
    "kernelpro.lab.languages": "lab/languages/__init__.py",
    "kernelpro.lab.languages.native": "lab/languages/native.py",
    "kernelpro.lab.languages.cpp": "lab/languages/cpp.py",
    "kernelpro.lab.languages.cuda": "lab/languages/cuda.py",
    "kernelpro.lab.languages.cute": "lab/languages/cute.py",
    "kernelpro.runtime": "runtime.py",
}
"""Modules and their files, each after the modules that it imports. Of `records`, only the base is copied."""
_LINTER_COMMENT = re.compile(r"  # (noqa|type: ignore).*")


def runtime_texts() -> dict[str, str]:
    """Sources of the modules that native kernels import, by module name."""
    return {
        name: (_ROOT / path).read_text("utf-8") if path else "" for name, path in _RUNTIME_MODULES.items()
    }


def dropin_texts(package: str) -> dict[str, str]:
    """Sources of kernelpro.dropin by module name, rewritten as modules of another package."""
    return {
        path.stem: _LINTER_COMMENT.sub("", path.read_text("utf-8")).replace("kernelpro.dropin", package)
        for path in sorted((_ROOT / "dropin").glob("*.py"))
        if path.stem != "patching"
    }


def template(name: str) -> str:
    """The exported part of a file in `exported/`, without comments for linters."""
    text = (_ROOT / "engine" / "exported" / f"{name}.py").read_text("utf-8")
    below = text.partition("# --- exported below")[2].partition("\n")[2]
    return _LINTER_COMMENT.sub("", below).strip("\n") + "\n"


def embeddable(source: str, reserved: set[str]) -> tuple[str, list[str]]:
    """A candidate as part of another file: the source with its main block disabled, and its imports from
    __future__, which belong at the top. Raises BadInput if it defines a reserved name."""
    parsed = parse(source, "the candidate")
    if clashes := top_level_names(parsed) & reserved - {"torch", "Any"}:
        names = ", ".join(sorted(clashes))
        raise BadInput(f"the candidate defines {names}, which exported files define themselves: rename it")
    future: list[str] = []
    edits: list[tuple[ast.stmt | ast.expr, str]] = []
    for node in parsed.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            future.append(ast.unparse(node))
            edits.append((node, "pass"))
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            edits.append((node.test, "False"))
    lines = source.encode().splitlines(keepends=True)
    for place, text in reversed(edits):
        first, last = place.lineno - 1, (place.end_lineno or place.lineno) - 1
        lines[first : last + 1] = [
            lines[first][: place.col_offset] + text.encode() + lines[last][place.end_col_offset :]
        ]
    return b"".join(lines).decode(), future


def require_model_new(source: str) -> None:
    """Raise BadInput if a candidate defines no ModelNew."""
    if "ModelNew" not in top_level_names(parse(source, "the candidate")):
        raise BadInput("the candidate defines no class ModelNew")


def parse(source: str, what: str) -> ast.Module:
    """The syntax tree of a source. Raises BadInput."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{what} is not Python: {error}") from None


def top_level_names(parsed: ast.Module) -> set[str]:
    """The names that a file binds at its top level."""
    names = set()
    for statement in parsed.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(statement.name)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
        else:
            names |= {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
    return names


def _imported_modules(source: str, what: str) -> set[str]:
    """The absolute names of the modules that a source imports."""
    names: set[str] = set()
    for node in ast.walk(parse(source, what)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "kernelpro":
            names |= {f"kernelpro.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
    return names


def needs_runtime(source: str, what: str) -> bool:
    """Whether a source imports kernelpro. Raises BadInput if it imports more than `runtime`."""
    ours = {name for name in _imported_modules(source, what) if name.split(".")[0] == "kernelpro"}
    if beyond := ours - {"kernelpro", "kernelpro.runtime"}:
        raise BadInput(
            f"{what} imports {', '.join(sorted(beyond))}: exported files can include only kernelpro.runtime"
        )
    return bool(ours)


def requirements(task: Task, *sources: str) -> list[str]:
    """Requirements (`name>=version`) of the kernels and the reference that are not bundled, with the versions
    installed here."""
    texts = (task.source, *sources, *task.files.values())
    roots = {name.partition(".")[0] for text in texts for name in _imported_modules(text, "the task")}
    bundled = {path.partition("/")[0].removesuffix(".py") for path in task.files}
    known = importlib.metadata.packages_distributions()
    foreign = roots - bundled - set(sys.stdlib_module_names) - {"torch", "kernelpro"}
    names = sorted({name for root in foreign for name in known.get(root, ())})
    return [f"{name}>={importlib.metadata.version(name)}" for name in names]


def literal(value: Any) -> str:
    """The value as a Python literal; multi-line text as a raw triple-quoted string if possible."""
    if isinstance(value, dict) and any(isinstance(v, str) and "\n" in v for v in value.values()):
        return "{\n" + "".join(f"    {key!r}: {literal(text)},\n" for key, text in value.items()) + "}"
    if not isinstance(value, str) or "\n" not in value:
        return pprint.pformat(value, width=108, compact=True, sort_dicts=False)
    for quote in ("'''", '"""'):
        text = f"r{quote}{value}{quote}"
        if quote not in value and "\r" not in value and not value.endswith(("\\", quote[0])):
            return text
    lines = "".join(f"    {line!r}\n" for line in value.splitlines(keepends=True))
    return f"(\n{lines})"


def rule(title: str) -> str:
    """A comment line that starts a section."""
    return f"\n# --- {title} {'-' * max(3, 100 - len(title))}\n"
