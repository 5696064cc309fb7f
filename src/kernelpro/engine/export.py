"""A candidate as one Python file that needs torch and a compiler only: kernel, reference as guard, self-test.

The file, top to bottom: a docstring (task, verdict, use); the modules of kernelpro that native candidates import, taken where
kernelpro is not installed; the candidate; the reference, in a module of its own; `Optimized`; the self-test.
Export runs the task's own code, to read shapes, types and strides of its inputs; never the candidate's.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from datetime import datetime
from pathlib import Path
from typing import Any

from kernelpro.engine.store import Store
from kernelpro.records import BadInput, Interval, Status, Step, Task, Verdict

_CARRIED = {
    "kernelpro": "",
    "kernelpro.records": "records/base.py",
    "kernelpro.lab": "",
    "kernelpro.lab.languages": "lab/languages/__init__.py",
    "kernelpro.lab.languages.native": "lab/languages/native.py",
    "kernelpro.lab.languages.cpp": "lab/languages/cpp.py",
    "kernelpro.lab.languages.cuda": "lab/languages/cuda.py",
    "kernelpro.lab.languages.cute": "lab/languages/cute.py",
    "kernelpro.runtime": "runtime.py",
}
"""Modules and their files, each after those that it imports; of `records` the digest is all that is needed."""


def export(store: Store, step: int | None) -> str:
    """The winner of a run, or one of its steps, as a standalone file."""
    chosen, verdict = _chosen(store, step)
    config = store.config()
    about = {
        "run": store.id,
        "step": f"{chosen.number}, by {chosen.author or config.author}" + (f": {chosen.plan}" if chosen.plan else ""),
        "date": datetime.fromtimestamp(store.created).date().isoformat(),
        "target": config.target,
    }
    return standalone(config.task, store.source(chosen.final_source), verdict, about)


def _chosen(store: Store, number: int | None) -> tuple[Step, Verdict]:
    outcome, steps = store.outcome(), {step.number: step for step in store.steps()}
    if number is None:
        if outcome is None:
            raise BadInput(f"run {store.id} is not finished: `kernelpro resume {store.id}`, or choose a step with --step")
        if outcome.best is None or outcome.best not in steps:
            raise BadInput(f"run {store.id}: nothing passed, so there is nothing to export")
        number = outcome.best
    step = steps.get(number)
    if step is None:
        raise BadInput(f"run {store.id} has no step {number}; it has {len(steps)}")
    verdict = outcome.verdict if outcome and outcome.best == number and outcome.verdict else step.verdict
    if verdict is None or not step.final_source:
        raise BadInput(f"run {store.id}: step {number} was not judged ({step.note or step.stage}), so it cannot be exported")
    if verdict.status is not Status.PASSED:
        raise BadInput(f"run {store.id}: step {number} did not pass ({verdict.status}: {verdict.reason}): only what passed is exported")
    return step, verdict


def standalone(task: Task, source: str, verdict: Verdict | None, about: dict[str, str]) -> str:
    """The file's text. `about` goes into its docstring; its `target` is the device the kernel is for."""
    target = about.get("target") or ("cuda" if verdict and "gpu" in verdict.environment else "cpu")
    candidate, future = _top_level(source)
    native = _imports_kernelpro(source, "candidate") | _imports_kernelpro(task.source, "task")
    reference = _constants(
        REFERENCE=_Text(task.source),
        PAYLOAD=_Text("\n".join(textwrap.wrap(task.payload, 120))),
        FORM=task.form,
        ENTRY=task.entry,
        TRAINING=task.mode == "train",
        TARGET=target,
        LIMIT=10 * verdict.tolerance if verdict and verdict.tolerance else 1e-2,
    )
    parts = [_docstring(task, verdict, about | {"target": target}), *future]
    if native:
        sources = {name: (_root() / path).read_text(encoding="utf-8") if path else "" for name, path in _CARRIED.items()}
        carried = "".join(f"    {name!r}: {_literal(text)},\n" for name, text in sources.items())
        parts += [f"_GUARD_CARRIED = {{\n{carried}}}", text.LOADER]
    parts += [_rule("the candidate"), candidate.rstrip(), _rule("the reference and the guard"), "import torch"]
    parts += ["_guard_at_once()" if native else "_GUARD_LIBRARIES = []", reference, _constants(**_judged(task, reference))]
    return "\n\n".join([*parts, text.GUARD])
