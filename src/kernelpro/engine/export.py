"""Exports a winner as one Python file or as an installable folder. Both need only torch and a compiler.

The file contains, from top to bottom: a docstring (task, verdict, usage); copies of the kernelpro modules
that native kernels import, used if kernelpro is not installed; the kernel; the reference and the modules of
its project, as text; a description of what was judged; a copy of `kernelpro.dropin`; the optimized class; the
self-test. It contains neither weights nor inputs. Export runs the task's own code, to find the shapes, dtypes
and strides of its inputs and what its forward pass reads. It never runs the winner's code.
"""

from __future__ import annotations

import ast
import dataclasses
import keyword
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kernelpro.engine import export_text as texts
from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput, Interval, ShapeTimes, Status, Step, Task, Verdict

_USE = """\
Usage, under torch.no_grad():
    from {module} import {name}
    model = {name}(*init)               # constructed like the reference, or
    model = {name}.from_module(module)  # shares everything with a module that you have
    y = model(*inputs)                  # model.stats: calls of the kernel, of the reference, and why
Test: python {run}    # exit code 0: correct, 1: wrong, 77: it cannot run here"""
_MAIN = '''\
def self_test() -> int:
    """Exit code 0: correct, 1: wrong, 77: it cannot run here."""
    return _export_dropin.self_test.run_self_test(_export)


if __name__ == "__main__":
    raise SystemExit(self_test())
'''
_PACKAGE_TEST = """\
import pytest
from {name} import self_test


def test_the_kernel_is_correct():
    code = self_test()
    if code == 77:
        pytest.skip("this kernel cannot run here")
    assert code == 0
"""
_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = "A kernel judged by KernelPro, as a drop-in module"
readme = "README.md"
requires-python = ">=3.11"
dependencies = [
{dependencies}]

[tool.setuptools.packages.find]
include = ["{name}*"]

[tool.setuptools.package-data]
{name} = ["bundled/**/*.py"]
"""


@dataclass(frozen=True)
class Winner:
    """A judged candidate and its task."""

    task: Task
    source: str
    verdict: Verdict | None
    about: dict[str, str]
    """Lines of the export's docstring by name; `target` is the kernel's device."""
    by_shape: tuple[str, ...] = ()
    """The source for each shape of the task; empty if one kernel serves all shapes."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The source for each shape of the task."""
        return self.by_shape or (self.source,) * len(self.task.shapes)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The different sources; the first is `source`."""
        return tuple(dict.fromkeys((self.source, *self.sources)))

    @property
    def numbers(self) -> list[int]:
        """For each shape, which of `kernels` serves it."""
        return [self.kernels.index(source) for source in self.sources]

    @property
    def target(self) -> str:
        """The kernel's device: cuda or cpu."""
        return self.about.get("target") or (
            "cuda" if self.verdict and self.verdict.environment.gpu else "cpu"
        )

    @property
    def class_name(self) -> str:
        """The name of the export's public class."""
        return f"Optimized{self.task.entry}"

    @property
    def is_native(self) -> bool:
        """Whether a kernel or the reference imports `kernelpro.runtime`."""
        kernels = [texts.needs_runtime(source, "the candidate") for source in self.kernels]
        return texts.needs_runtime(self.task.source, f"task {self.task.name}") or any(kernels)

    @property
    def noun(self) -> str:
        """What the source is, for texts: a kernel, torch.compile's code, or PyTorch's own code."""
        from kernelpro.pools.winners import noun_of

        return noun_of(self.source)

    def constants(self) -> dict[str, Any]:
        """The constants of the export that describe what was judged, by name."""
        try:
            import torch  # noqa: F401
        except ImportError:
            raise BadInput(
                "export needs torch, to read the shapes and types of the task's inputs: pip install torch"
            ) from None
        from kernelpro.pools import winners

        tolerance = self.verdict.tolerance if self.verdict else None
        specs = winners.describe_winner(self.task, self.sources, self.target, tolerance)
        return {
            "SPECS": [dataclasses.asdict(spec) for spec in specs],
            "NUMBERS": self.numbers,
            "ENTRY": self.task.entry,
            "FORM": self.task.form,
            "SKELETON": "\n".join(re.findall(".{1,100}", winners.skeleton_of(self.task))),
        }


def select_winner(store: RunStore, step: int | None = None) -> Winner:
    """The winner of a run, or one of its steps. Raises BadInput if it did not pass."""
    chosen, verdict = _select(store, step)
    config = store.config()
    about = {
        "run": f"{store.id}, started {datetime.fromtimestamp(store.created).date().isoformat()}",
        "step": f"{chosen.number}, by {chosen.author or config.author}"
        + (f": {chosen.plan}" if chosen.plan else ""),
        "target": config.target,
    }
    outcome = store.outcome()
    by_shape = outcome.by_shape if outcome and outcome.best == chosen.number else ()
    if by_shape:
        about["steps"] = f"{', '.join(map(str, by_shape))}: one for each shape"
    steps = {each.number: each for each in store.steps()}
    sources = tuple(store.source(steps[number].final_source) for number in by_shape)
    return Winner(config.task, store.source(chosen.final_source), verdict, about, sources)


def write_export(winner: Winner, path: Path, package: bool = False) -> Path:
    """Write a winner as one file, or as an installable folder; return the path."""
    if not package:
        _write(path, standalone_file(winner, path.name))
        return path
    name = module_file_name(path.name).removesuffix(".py")
    for file, text in package_files(winner, name).items():
        _write(path / file, text)
    return path


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})") from None


def module_file_name(name: str) -> str:
    """A file name for an export that Python can import: `pool-1` becomes `pool_1.py`."""
    stem = re.sub(r"\W", "_", name)
    if not stem.isidentifier() or keyword.iskeyword(stem):
        stem = f"kernel_{stem}"
    return f"{stem}.py"


def _select(store: RunStore, number: int | None) -> tuple[Step, Verdict]:
    store.config()  # raises if the file holds no run
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


def standalone_file(winner: Winner, file_name: str = "kernel.py") -> str:
    """The text of the export as one file. `file_name` appears in the usage in its docstring."""
    task, head, tail = winner.task, texts.template("native"), texts.template("file")
    reserved = texts.top_level_names(ast.parse(head + tail + _MAIN)) | {winner.class_name}
    kernel, future = texts.embeddable(winner.source, reserved)
    for source in winner.kernels:
        texts.require_model_new(source)
    is_native = winner.is_native
    constants = winner.constants()
    sections = [_docstring(winner, Path(file_name).stem, file_name), *future]
    if is_native:
        sections += [texts.rule("modules of kernelpro, if it is not installed")]
        sections += [f"_EXPORT_MODULES = {texts.literal(texts.runtime_texts())}", head]
        sections += ["\n_export_provide_modules()"]
        sections += ["_export_libraries, _export_end_deferral = _export_defer_builds()"]
    sections += [texts.rule(f"the winner: {winner.noun}"), kernel.strip("\n"), texts.rule("the reference")]
    sections += ["_export_end_deferral()" if is_native else "_export_libraries = ()"]
    others = {f"kernel {number + 2}": source for number, source in enumerate(winner.kernels[1:])}
    sections += [f"_EXPORT_OTHER_KERNELS = {texts.literal(others)}"]
    sections += [f"_EXPORT_REFERENCE = {texts.literal(task.source)}"]
    sections += [f"_EXPORT_FILES = {texts.literal(task.files)}", texts.rule("what was judged")]
    sections += [f"_EXPORT_{name} = {texts.literal(value)}" for name, value in constants.items()]
    sections += [texts.rule("the drop-in module: a copy of kernelpro.dropin")]
    sections += [f"_EXPORT_DROPIN = {texts.literal(texts.dropin_texts('kernelpro.dropin'))}"]
    sections += ["", tail, f"{winner.class_name} = _export.optimized_class()", "", "", _MAIN]
    return "\n".join(sections)


def package_files(winner: Winner, name: str) -> dict[str, str]:
    """The files of an installable folder by path: package `name`, its test, README.md, pyproject.toml."""
    for source in winner.kernels:
        texts.require_model_new(source)
    task, own, is_native, docstring = (
        winner.task,
        f"{name}.dropin",
        winner.is_native,
        _docstring(winner, name, f"-m {name}"),
    )
    sections = [docstring, f"_PROVIDES_RUNTIME = {is_native}"]
    sections += [f"_EXPORT_{key} = {texts.literal(value)}" for key, value in winner.constants().items()]
    sections += ["", texts.template("package").replace("kernelpro.dropin", own)]
    sections += [f"{winner.class_name} = _export.optimized_class()"]
    sections += [f'__all__ = ["{winner.class_name}", "self_test"]', ""]
    files = {f"{name}/dropin/{stem}.py": text for stem, text in texts.dropin_texts(own).items()}
    files |= {f"{name}/bundled/{path}": text for path, text in task.files.items()}
    if is_native:
        files[f"{name}/native.py"] = (
            '"""Modules of kernelpro that native kernels import, used if kernelpro is not installed."""\n\n'
            f"_EXPORT_MODULES = {texts.literal(texts.runtime_texts())}\n{texts.template('native')}"
        )
    dependencies = "".join(
        f'    "{item}",\n' for item in ["torch>=2.6", *texts.requirements(task, *winner.kernels)]
    )
    title, _, rest = ast.literal_eval(docstring.strip()).partition("\n")
    return files | {
        f"{name}/__init__.py": "\n".join(sections),
        f"{name}/__main__.py": f"from {name} import self_test\n\nraise SystemExit(self_test())\n",
        **{f"{name}/{kernel_module(n)}.py": source for n, source in enumerate(winner.kernels)},
        f"{name}/reference.py": task.source,
        f"tests/test_{name}.py": _PACKAGE_TEST.format(name=name),
        "pyproject.toml": _PYPROJECT.format(name=name, dependencies=dependencies),
        "README.md": f"# {name}\n\n{title}\n\n```text\n{rest.strip()}\n```\n",
    }


def kernel_module(number: int) -> str:
    """The module name of a kernel in an exported package."""
    return f"kernel_{number + 1}" if number else "kernel"


def _docstring(winner: Winner, module: str, run: str) -> str:
    """The docstring of an export. `module`: its import name; `run`: the arguments of `python` that run its
    self-test."""
    task, verdict, noun = winner.task, winner.verdict, winner.noun
    rows = {"task": f"{task.name} ({task.mode} mode, precision {task.precision or 'default'})"}
    rows |= winner.about | {"target": winner.target}
    what = "a kernel" if noun == "kernel" else noun
    if verdict is None:
        rows["verdict"] = "none: not judged"
    else:
        rows["verdict"] = f"{verdict.status}: {verdict.reason}"
        rows |= {f"time, {name}": _interval(x, " ms") for name, x in verdict.times.items()}
        rows |= {f"speed-up over {name}": _interval(x, "x") for name, x in verdict.speedup.items()}
        if verdict.error is not None and verdict.tolerance is not None:
            rows["error"] = f"{verdict.error:.2e} relative, tolerance {verdict.tolerance:.2e}"
        if len(verdict.shapes) > 1:
            rows |= {f"shape {s.shape}, {s.weight:.0%} of calls": _shape_times(s) for s in verdict.shapes}
        rows["environment"] = ", ".join(
            f"{name} {value}" for name, value in verdict.environment.known().items()
        )
    if needed := texts.requirements(task, *winner.kernels):
        rows["requirements"] = ", ".join(needed)
    use = _USE.format(module=module, name=winner.class_name, run=run)
    lines = [f"{task.name}: {what}, judged by KernelPro, as a drop-in module.", ""]
    lines += [f"{name}: {' '.join(text.split())}" for name, text in rows.items()] + ["", use]
    text = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""\n'


def _shape_times(shape: ShapeTimes) -> str:
    ratios = ", ".join(f"{ratio.value:.3g}x over {name}" for name, ratio in shape.speedup.items())
    return f"{shape.times['candidate'].value:.4g} ms, {ratios}"


def _interval(x: Interval, unit: str) -> str:
    return f"{x.value:.4g}{unit} [{x.low:.4g}, {x.high:.4g}]"
