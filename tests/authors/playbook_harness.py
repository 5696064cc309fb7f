"""What the tests of the playbook share: small tasks, their graphs, and candidates that run in this process."""

from __future__ import annotations

import ast
import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.cpp import backend as cpp
from kernelpro.authors.playbook.fusion.fuser import fuse
from kernelpro.authors.playbook.ir.stages import Program
from kernelpro.authors.playbook.schedule.design import Design
from kernelpro.lab import tree
from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.errors import measure_errors
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.tasks import parameters
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Graph, Mode, Task


def make_task(
    forward: str, inputs: str = "torch.randn(6, 40)", init: str = "pass", mode: Mode = "train"
) -> Task:
    """A task whose `forward` is the body of a method with arguments a, b, c, ...; statements are separated by semicolons."""
    names = ", ".join("abcdef"[: _argument_count(inputs)])
    source = f"""
import math, torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {names}):
        {forward if "return" in forward else f"return {forward}"}
def get_inputs(): return [{inputs}]
def get_init_inputs(): return []
"""
    return Task(source, mode=mode)


def _argument_count(inputs: str) -> int:
    made = ast.parse(f"[{inputs}]", mode="eval").body
    assert isinstance(made, ast.List) and not any(isinstance(each, ast.Starred) for each in made.elts)
    return len(made.elts)


MATH_TASKS: dict[str, str] = {
    "fast": "F.silu(a) * b, a.sigmoid() + b.tanh(), (a * a + 2).log() / (b * b + 1), (a * 2).softmax(-1), (b * b + 1).sqrt()",
    "approximate": "F.gelu(a), F.gelu(b, approximate='tanh'), F.mish(a), F.softplus(b), torch.softmax(5 * torch.tanh(a / 5), -1)",
}
"""Operators whose functions have a fast form, and operators whose functions also have an approximate form."""


def math_task(math_mode: str) -> Task:
    return make_task(MATH_TASKS[math_mode], "torch.randn(6, 70), torch.randn(6, 70)")


def operator_graph_of(task: Task) -> Graph:
    return operator_graph(Reference(task, "cpu", 0), 1)


def program_of(task: Task) -> Program:
    return fuse(operator_graph_of(task))


class KernelChecker:
    """Runs kernels of the playbook and compares them with the task's reference."""

    def __init__(
        self,
        task: Task,
        folder: Path,
        backend: Backend = cpp.BACKEND,
        device: str = "cpu",
        program: Program | None = None,
    ):
        self._reference, self._folder, self._backend, self._device = (
            Reference(task, "cpu", 0),
            folder,
            backend,
            device,
        )
        self.program = program or program_of(task)
        self._form, self._leaves = self._reference.inputs(7)

    def designs(self) -> list[Design]:
        return [seed.design for seed in self._backend.seeds(self.program)]

    def errors(self, design: Design) -> list[float]:
        """The largest error of each output of a design, relative to the reference's own error (at least 1e-6)."""
        return self.source_errors(self._backend.write(self.program, design))

    def source_errors(self, source: str) -> list[float]:
        """The same for a source file."""
        with torch.no_grad():
            candidate = self._candidate(source).to(self._device)
            outputs = [output.cpu() for output in _flat(candidate(*self._arguments(device=self._device)))]
            references = list(_flat(self._reference.model()(*self._arguments())))
            exact = list(_flat(self._reference.model(torch.float64)(*self._arguments(torch.float64))))
        errors = []
        for output, reference, truth in zip(outputs, references, exact, strict=True):
            assert output.shape == reference.shape and output.dtype == reference.dtype
            if not output.is_floating_point():
                errors.append(0.0 if torch.equal(output, reference) else math.inf)
                continue
            if not torch.equal(output.isnan(), truth.isnan()):
                errors.append(math.inf)
                continue
            missing = truth.isnan()
            output, reference, truth = (t.masked_fill(missing, 0) for t in (output, reference, truth))
            scale = float(truth.abs().mean()) + 1e-30
            reference_error = float((reference.double() - truth.double()).abs().max()) / scale
            error = float((output.double() - truth.double()).abs().max()) / scale / max(reference_error, 1e-6)
            errors.append(math.inf if math.isnan(error) else error)
        return errors

    def excesses(self, source: str) -> dict[str, float]:
        """The error of a kernel as a multiple of the judge's tolerance, by distribution of the inputs."""
        oracle, candidate = Oracle(self._reference, 1 << 24), self._candidate(source).to(self._device)
        excesses = {}
        for distribution, limit in Tolerance(oracle, "fp32", 7).limits.items():
            form, leaves = oracle.inputs(7, distribution)
            with torch.no_grad():
                arguments = tree.unflatten(form, [leaf.to(self._device) for leaf in leaves])
                outputs = [output.cpu() for output in _flat(candidate(*arguments))]
            excesses[distribution] = limit.share_used(measure_errors(outputs, oracle.truth(7, distribution)))
        return excesses

    def _arguments(self, dtype: torch.dtype | None = None, device: str = "cpu") -> Any:
        leaves = [leaf.to(dtype) if dtype and leaf.is_floating_point() else leaf for leaf in self._leaves]
        return tree.unflatten(self._form, [leaf.to(device) for leaf in leaves])

    def _candidate(self, source: str) -> torch.nn.Module:
        path = self._folder / "candidate.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("candidate", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        model: torch.nn.Module = module.ModelNew(*self._reference.init_inputs)
        assert parameters.load_reference_state(model, self._reference.state()) != "by seed"
        return model


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for item in value:
            yield from _flat(item)
