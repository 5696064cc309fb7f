"""Exports a candidate as one Python file that needs only torch and a compiler: kernel, guard and self-test.

The file, from top to bottom: a docstring (task, verdict, usage); copies of the kernelpro modules that native
candidates import, used if kernelpro is not installed; the candidate; the reference, in its own module;
`OptimizedModule`; the self-test. The templates are in `exported`. Export runs the task's own code, to read
the shapes, dtypes and strides of its inputs and the structure of its model. It never runs the candidate's
code.
"""

from __future__ import annotations

import ast
import keyword
import pprint
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput, Interval, Status, Step, Task, Verdict

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
"""Modules and their files, each after the modules that it imports. Of `records` only the base is needed."""
_USE = """\
Usage, if this file is kernel.py, under torch.no_grad():
    model = kernel.OptimizedModule(*init)  # or kernel.OptimizedModule.from_module(module): wraps a reference
    y = model(*inputs)                     # model.last_path: "kernel" for inputs as judged, else "reference"
Test: python kernel.py                     # exit code 0: correct, 1: wrong, 77: it cannot run here"""


def export_step(store: RunStore, step: int | None) -> str:
    """The winner of a run, or one of its steps, as the text of a standalone file."""
    chosen, verdict = _select(store, step)
    config = store.config()
    about = {
        "run": f"{store.id}, started {datetime.fromtimestamp(store.created).date().isoformat()}",
        "step": f"{chosen.number}, by {chosen.author or config.author}"
        + (f": {chosen.plan}" if chosen.plan else ""),
        "target": config.target,
    }
    return standalone_file(config.task, store.source(chosen.final_source), verdict, about)


def module_file_name(name: str) -> str:
    """A file name for an export that Python can import: `pool-1` becomes `pool_1.py`."""
    stem = re.sub(r"\W", "_", name)
    if not stem.isidentifier() or keyword.iskeyword(stem):
        stem = f"kernel_{stem}"
    return f"{stem}.py"


def _select(store: RunStore, number: int | None) -> tuple[Step, Verdict]:
    outcome, steps = store.outcome(), {step.number: step for step in store.steps()}
    if number is None:
        if outcome is None:
            raise BadInput(
                f"run {store.id} is not finished: continue it with `kernelpro resume {store.id}`, "
                "or export a step with --step"
            )
        if outcome.best is None:
            raise BadInput(f"run {store.id} has nothing to export: no candidate passed")
        number = outcome.best
    step = steps.get(number)
    if step is None:
        raise BadInput(f"run {store.id} has no step {number}; it has {len(steps)}")
    verdict = outcome.verdict if outcome and outcome.best == number and outcome.verdict else step.verdict
    if verdict is None or not step.final_source:
        reason = step.note or step.stage
        raise BadInput(f"run {store.id}: step {number} cannot be exported: it was not judged ({reason})")
    if verdict.status is not Status.PASSED:
        raise BadInput(
            f"run {store.id}: step {number} cannot be exported: {verdict.status}: {verdict.reason}"
        )
    return step, verdict


def standalone_file(task: Task, source: str, verdict: Verdict | None, about: dict[str, str]) -> str:
    """The text of the file. `about` goes into its docstring; its `target` is the device that the kernel is
    for."""
    target = about.get("target") or ("cuda" if verdict and verdict.environment.gpu else "cpu")
    native_code, guard, self_test = (_template(name) for name in ("native", "guard", "self_test"))
    candidate, future = _embeddable(source, native_code + guard + self_test)
    native = _needs_runtime(source, "the candidate") | _needs_runtime(task.source, f"task {task.name}")
    constants = {
        "PAYLOAD": "\n".join(re.findall(".{1,120}", task.payload)),
        "FORM": task.form,
        "ENTRY": task.entry,
        "TRAINING": task.mode == "train",
        "TARGET": target,
        # the reference's own rounding error counts twice, and three seeds see less than the judge does
        "LIMIT": 10 * verdict.tolerance if verdict and verdict.tolerance else 1e-2,
    }
    judged = _judged_signature(task, constants, guard)
    parts = [_docstring(task, verdict, about | {"target": target}), *future]
    if native:
        texts = {
            name: (_ROOT / path).read_text("utf-8") if path else "" for name, path in _RUNTIME_MODULES.items()
        }
        modules = "".join(f"    {name!r}: {_literal(text)},\n" for name, text in texts.items())
        parts += [_rule("modules of kernelpro"), f"_GUARD_MODULES = {{\n{modules}}}", native_code]
        parts += ["\n_guard_provide_modules()\n_GUARD_LIBRARIES, _guard_end_deferral = _guard_defer_builds()"]
    parts += [
        _rule("the candidate"),
        candidate.strip("\n"),
        _rule("the reference, the guard and the self-test"),
    ]
    parts += ["_guard_end_deferral()" if native else "_GUARD_LIBRARIES = ()"]
    parts += [f"_GUARD_REFERENCE = {_literal(task.source)}"]
    parts += [f"_GUARD_{name} = {_literal(value)}" for name, value in (constants | judged).items()]
    return "\n".join([*parts, "", guard, "", self_test])


def _template(name: str) -> str:
    """The part of a file in `exported` below its cut, without comments for linters."""
    text = (_ROOT / "engine" / "exported" / f"{name}.py").read_text("utf-8")
    below = text.partition("# --- exported below")[2].partition("\n")[2]
    return re.sub(r"  # (noqa|type: ignore).*", "", below).strip("\n") + "\n"


def _rule(title: str) -> str:
    return f"\n# --- {title} {'-' * (110 - len(title))}\n"


# --- what was judged -------------------------------------------------------------------------------------


def _judged_signature(task: Task, constants: dict[str, Any], guard: str) -> dict[str, Any]:
    """The signature of the inputs, the state and settings of the reference, and whether its mode matters, as
    computed by the exported code itself."""
    try:
        import torch
    except ImportError:
        raise BadInput(
            "export needs torch, to read the shapes and types of the task's inputs: pip install torch"
        ) from None
    name = f"kernelpro_export_{task.id}"
    scope = {f"_GUARD_{key}": value for key, value in constants.items()}
    scope |= {"__name__": name, "_GUARD_REFERENCE": task.source, "_GUARD_LIBRARIES": ()}
    try:
        exec(compile(guard, f"<{name}>", "exec", dont_inherit=True), scope)
        inputs = _without_values(torch, lambda place: scope["_guard_inputs"](0, place))
        model = _without_values(torch, lambda _: scope["_guard_reference"](scope["_guard_init"]()))
        state, settings = scope["_guard_describe"](model)
        signature = scope["_guard_signature"](tuple(inputs))
    except Exception as error:
        raise BadInput(
            f"task {task.name} cannot be run here: {type(error).__name__}: {str(error)[:300]}"
        ) from error
    finally:
        sys.modules.pop(f"{name}_reference", None)
    codes = [getattr(type(part).forward, "__code__", None) for part in model.modules()]
    matters = ".training" in task.source or any(code and "training" in code.co_names for code in codes)
    return {"INPUTS": signature, "STATE": state, "SETTINGS": settings, "MODE_MATTERS": matters}


def _without_values(torch: Any, make: Any) -> Any:
    """Call `make` on the meta device, which computes nothing; on the CPU if the task needs values."""
    try:
        with torch.device("meta"):
            return make("meta")
    except Exception:  # a task may need values in any way; a real error occurs again on the CPU
        return make("cpu")


# --- the candidate's text --------------------------------------------------------------------------------


def _embeddable(source: str, ours: str) -> tuple[str, list[str]]:
    """The candidate as part of another file: its main block is disabled, and its imports from __future__ are
    returned to be moved to the top."""
    parsed = _parse(source, "the candidate")
    clashes = (_top_level_names(parsed) & _top_level_names(ast.parse(ours))) - {"torch", "Any"}
    if clashes:
        names = ", ".join(sorted(clashes))
        raise BadInput(f"the candidate defines {names}, which exported files define themselves: rename it")
    if "ModelNew" not in _top_level_names(parsed):
        raise BadInput("the candidate defines no class ModelNew")
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


def _parse(source: str, what: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{what} is not Python: {error}") from None


def _top_level_names(parsed: ast.Module) -> set[str]:
    """Names that a file binds at its top level."""
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


def _needs_runtime(source: str, what: str) -> bool:
    """Whether a source imports kernelpro. Raises BadInput if it imports more than `runtime`."""
    names: set[str] = set()
    for node in ast.walk(_parse(source, what)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "kernelpro":
            names |= {f"kernelpro.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
    ours = {name for name in names if name.split(".")[0] == "kernelpro"}
    if beyond := ours - {"kernelpro", "kernelpro.runtime"}:
        raise BadInput(
            f"{what} imports {', '.join(sorted(beyond))}: exported files can include only kernelpro.runtime"
        )
    return bool(ours)


# --- writing ---------------------------------------------------------------------------------------------


def _literal(value: Any) -> str:
    """A Python literal; multi-line text as a raw triple-quoted string if possible."""
    if not isinstance(value, str) or "\n" not in value:
        return pprint.pformat(value, width=124, compact=True)
    for quote in ("'''", '"""'):
        text = f"r{quote}{value}{quote}"
        if quote not in value and "\r" not in value and not value.endswith(("\\", quote[0])):
            return text
    lines = "".join(f"    {line!r}\n" for line in value.splitlines(keepends=True))
    return f"(\n{lines})"


def _docstring(task: Task, verdict: Verdict | None, about: dict[str, str]) -> str:
    rows = {"task": f"{task.name} ({task.mode} mode, precision {task.precision or 'default'})"} | about
    lines = [f"{task.name}: a kernel judged by KernelPro, guarded by its reference.", ""]
    if verdict is None:
        rows["verdict"] = "none: not judged"
    else:
        rows["verdict"] = f"{verdict.status}: {verdict.reason}"
        rows |= {f"time, {name}": _interval(x, " ms") for name, x in verdict.times.items()}
        rows |= {f"speed-up over {name}": _interval(x, "x") for name, x in verdict.speedup.items()}
        if verdict.error is not None and verdict.tolerance is not None:
            rows["error"] = f"{verdict.error:.2e} relative, tolerance {verdict.tolerance:.2e}"
        rows["environment"] = ", ".join(
            f"{name} {value}" for name, value in verdict.environment.known().items()
        )
    lines += [f"{name}: {' '.join(text.split())}" for name, text in rows.items()] + ["", _USE]
    text = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""\n'


def _interval(x: Interval, unit: str) -> str:
    return f"{x.value:.4g}{unit} [{x.low:.4g}, {x.high:.4g}]"
