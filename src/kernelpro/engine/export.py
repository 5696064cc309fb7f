"""A candidate as one Python file that needs torch and a compiler only: kernel, reference as guard, self-test.

The file, top to bottom: a docstring (task, verdict, use); the modules of kernelpro that native candidates import, taken where
kernelpro is not installed; the candidate; the reference, in a module of its own; `Optimized`; the self-test. What is the same in
all of them is in `exported`. Export runs the task's own code, to read shapes, types and strides of its inputs and what its
model is made of; never the candidate's.
"""

from __future__ import annotations

import ast
import pprint
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput, Interval, Status, Step, Task, Verdict

_ROOT = Path(__file__).parents[1]
_CARRIED = {
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
"""Modules and their files, each after those that it imports; of `records` little is needed."""
_USE = """\
Use it, from a program beside this file (called kernel.py here), under torch.no_grad():
    model = kernel.Optimized(*init)          # or kernel.Optimized.of(module): around a reference module, parameters by name
    y = model(*inputs)                       # model.last_path: "kernel" for inputs as judged, else "reference"
Test it: python kernel.py                    # 0: right, 1: wrong, 77: it cannot run here"""


def export(store: RunStore, step: int | None) -> str:
    """The winner of a run, or one of its steps, as a standalone file."""
    chosen, verdict = _chosen(store, step)
    config = store.config()
    about = {
        "run": f"{store.id}, begun {datetime.fromtimestamp(store.created).date().isoformat()}",
        "step": f"{chosen.number}, by {chosen.author or config.author}"
        + (f": {chosen.plan}" if chosen.plan else ""),
        "target": config.target,
    }
    return standalone(config.task, store.source(chosen.final_source), verdict, about)


def _chosen(store: RunStore, number: int | None) -> tuple[Step, Verdict]:
    outcome, steps = store.outcome(), {step.number: step for step in store.steps()}
    if number is None:
        if outcome is None:
            raise BadInput(
                f"run {store.id} is not finished: `kernelpro resume {store.id}`, or choose a step with --step"
            )
        if outcome.best is None:
            raise BadInput(f"run {store.id}: nothing passed, so there is nothing to export")
        number = outcome.best
    step = steps.get(number)
    if step is None:
        raise BadInput(f"run {store.id} has no step {number}; it has {len(steps)}")
    verdict = outcome.verdict if outcome and outcome.best == number and outcome.verdict else step.verdict
    if verdict is None or not step.final_source:
        raise BadInput(
            f"run {store.id}: step {number} cannot be exported, it was not judged ({step.note or step.stage})"
        )
    if verdict.status is not Status.PASSED:
        raise BadInput(
            f"run {store.id}: step {number} cannot be exported, it is {verdict.status}: {verdict.reason}"
        )
    return step, verdict


def standalone(task: Task, source: str, verdict: Verdict | None, about: dict[str, str]) -> str:
    """The file's text. `about` goes into its docstring; its `target` is the device that the kernel is for."""
    target = about.get("target") or ("cuda" if verdict and "gpu" in verdict.environment else "cpu")
    late, guard, self_test = (_copied(name) for name in ("native", "guard", "self_test"))
    candidate, future = _at_top_level(source, late + guard + self_test)
    native = _needs_runtime(source, "the candidate") | _needs_runtime(task.source, f"task {task.name}")
    constants = {
        "PAYLOAD": "\n".join(re.findall(".{1,120}", task.payload)),
        "FORM": task.form,
        "ENTRY": task.entry,
        "TRAINING": task.mode == "train",
        "TARGET": target,
        "LIMIT": 10 * verdict.tolerance if verdict and verdict.tolerance else 1e-2,
    }
    judged = _judged(task, constants, guard)
    parts = [_docstring(task, verdict, about | {"target": target}), *future]
    if native:
        texts = {name: (_ROOT / path).read_text("utf-8") if path else "" for name, path in _CARRIED.items()}
        carried = "".join(f"    {name!r}: {_literal(text)},\n" for name, text in texts.items())
        parts += [_rule("modules of kernelpro"), f"_GUARD_CARRIED = {{\n{carried}}}", late]
        parts += ["\n_guard_carry()\n_GUARD_LIBRARIES, _guard_at_once = _guard_later()"]
    parts += [
        _rule("the candidate"),
        candidate.strip("\n"),
        _rule("the reference, the guard and the self-test"),
    ]
    parts += ["_guard_at_once()" if native else "_GUARD_LIBRARIES = ()"]
    parts += [f"_GUARD_REFERENCE = {_literal(task.source)}"]
    parts += [f"_GUARD_{name} = {_literal(value)}" for name, value in (constants | judged).items()]
    return "\n".join([*parts, "", guard, "", self_test])


def _copied(name: str) -> str:
    """The part of a file in `exported` that is copied, without remarks to linters."""
    below = (
        (_ROOT / "engine" / "exported" / f"{name}.py")
        .read_text("utf-8")
        .partition("# --- exported below")[2]
        .partition("\n")[2]
    )
    return re.sub(r"  # (noqa|type: ignore).*", "", below).strip("\n") + "\n"


def _rule(title: str) -> str:
    return f"\n# --- {title} {'-' * (110 - len(title))}\n"


# --- what was judged -------------------------------------------------------------------------------------


def _judged(task: Task, constants: dict[str, Any], guard: str) -> dict[str, Any]:
    """Signature of the inputs, state and settings of the reference, whether its mode matters: by the exported code itself."""
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
        inputs = _on_meta(torch, lambda place: scope["_guard_inputs"](0, place))
        model = _on_meta(torch, lambda _: scope["_guard_reference"](scope["_guard_init"]()))
        state, settings = scope["_guard_describe"](model)
        signature = scope["_guard_signature"](tuple(inputs))
    except Exception as error:
        raise BadInput(
            f"task {task.name}: it cannot be run here: {type(error).__name__}: {str(error)[:300]}"
        ) from error
    finally:
        sys.modules.pop(f"{name}_reference", None)
    read = [getattr(type(part).forward, "__code__", None) for part in model.modules()]
    matters = ".training" in task.source or any(code and "training" in code.co_names for code in read)
    return {"INPUTS": signature, "STATE": state, "SETTINGS": settings, "MODE_MATTERS": matters}


def _on_meta(torch: Any, make: Any) -> Any:
    """On the meta device, which computes nothing; on the CPU where the task looks at values."""
    try:
        with torch.device("meta"):
            return make("meta")
    except (
        Exception
    ):  # whatever a task does that needs values; what is wrong in itself fails again on the CPU, and is told
        return make("cpu")


# --- the candidate's text --------------------------------------------------------------------------------


def _at_top_level(source: str, ours: str) -> tuple[str, list[str]]:
    """The candidate as part of another file: imports from __future__ (returned) move to its top, its own main block is off."""
    parsed = _parsed(source, "the candidate")
    clash = (_bound(parsed) & _bound(ast.parse(ours))) - {"torch", "Any"}
    if clash:
        raise BadInput(
            f"the candidate defines {', '.join(sorted(clash))}, which exported files define themselves: rename it"
        )
    if "ModelNew" not in _bound(parsed):
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


def _parsed(source: str, what: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{what} is not Python: {error}") from None


def _bound(parsed: ast.Module) -> set[str]:
    """Names that a file binds at its top level."""
    found = set()
    for statement in parsed.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(statement.name)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
        else:
            found |= {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
    return found


def _needs_runtime(source: str, what: str) -> bool:
    """Whether the text imports kernelpro; more of it than `runtime` cannot be carried along."""
    names: set[str] = set()
    for node in ast.walk(_parsed(source, what)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "kernelpro":
            names |= {f"kernelpro.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
    ours = {name for name in names if name.split(".")[0] == "kernelpro"}
    if beyond := ours - {"kernelpro", "kernelpro.runtime"}:
        raise BadInput(
            f"{what} imports {', '.join(sorted(beyond))}: an exported file carries kernelpro.runtime alone"
        )
    return bool(ours)


# --- writing ---------------------------------------------------------------------------------------------


def _literal(value: Any) -> str:
    """A Python literal, readable where it can be: text as raw triple-quoted lines."""
    if not isinstance(value, str) or "\n" not in value:
        return pprint.pformat(value, width=124, compact=True)
    for quote in ("'''", '"""'):
        text = f"r{quote}{value}{quote}"
        if quote not in value and "\r" not in value and not value.endswith(("\\", quote[0])):
            return text
    lines = "".join(f"    {line!r}\n" for line in value.splitlines(keepends=True))
    return f"(\n{lines})"


def _docstring(task: Task, verdict: Verdict | None, about: dict[str, str]) -> str:
    rows = {
        "task": f"{task.name} ({task.mode} mode, precision {task.precision or 'as the task has it'})"
    } | about
    lines = [f"{task.name}: a kernel that KernelPro judged, guarded by its reference.", ""]
    if verdict is None:
        rows["verdict"] = "none: it was not judged"
    else:
        rows["verdict"] = f"{verdict.status}: {verdict.reason}"
        rows |= {f"time, {name}": _interval(x, " ms") for name, x in verdict.times.items()}
        rows |= {f"speed-up over {name}": _interval(x, "x") for name, x in verdict.speedup.items()}
        if verdict.error is not None and verdict.tolerance is not None:
            rows["error"] = f"{verdict.error:.2e} relative, tolerance {verdict.tolerance:.2e}"
        rows["environment"] = ", ".join(
            f"{name} {value}" for name, value in verdict.environment.items() if value
        )
    lines += [f"{name}: {' '.join(text.split())}" for name, text in rows.items()] + ["", _USE]
    text = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""\n'


def _interval(x: Interval, unit: str) -> str:
    return f"{x.value:.4g}{unit} [{x.low:.4g}, {x.high:.4g}]"
