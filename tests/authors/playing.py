"""What tests of the playbook share: small tasks, their graphs, and candidates run in this process."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.cpp import backend as cpp
from kernelpro.authors.playbook.schedule.design import Design
from kernelpro.authors.playbook.fusion.fuser import fuse
from kernelpro.authors.playbook.ir.stages import Program
from kernelpro.lab import tree
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.errors import measure_errors
from kernelpro.lab.tasks import parameters
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Graph, Mode, Task


def task(forward: str, inputs: str = "torch.randn(6, 40)", init: str = "pass", mode: Mode = "train") -> Task:
    """`forward` is the body of a method with arguments a, b, c ...; statements may be separated by semicolons."""
    names = ", ".join("abcdef"[: _count(inputs)])
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


def _count(inputs: str) -> int:
    return len(eval(f"[{inputs}]", {"torch": torch}))


QUICK: dict[str, str] = {
    "fast": "F.silu(a) * b, a.sigmoid() + b.tanh(), (a * a + 2).log() / (b * b + 1), (a * 2).softmax(-1), (b * b + 1).sqrt()",
    "approximate": "F.gelu(a), F.gelu(b, approximate='tanh'), F.mish(a), F.softplus(b), torch.softmax(5 * torch.tanh(a / 5), -1)",
}
"""What mathematics of a writer's own must be right for; `cheap`: what also has cheap forms."""


def quick(math_mode: str) -> Task:
    return task(QUICK[math_mode], "torch.randn(30, 70), torch.randn(30, 70)")


def graph(given: Task) -> Graph:
    return operator_graph(Reference(given, "cpu", 0), 1)


def program(given: Task) -> Program:
    return fuse(graph(given))


class Trial:
    """A task's reference beside what the playbook makes of it."""

    def __init__(self, given: Task, folder: Path, writer: Backend = cpp.BACKEND, device: str = "cpu"):
        self._reference, self._folder, self._writer, self._device = (
            Reference(given, "cpu", 0),
            folder,
            writer,
            device,
        )
        self.program = program(given)
        self._form, self._leaves = self._reference.inputs(7)

    def designs(self) -> list[Design]:
        return [seed.design for seed in self._writer.seeds(self.program)]

    def errors(self, design: Design) -> list[float]:
        """Of each output: the largest error, in units of the reference's own error (or of 1e-6, where that is smaller)."""
        return self.errors_of(self._writer.write(self.program, design))

    def errors_of(self, source: str) -> list[float]:
        found = []
        with torch.no_grad():
            got = [
                one.cpu()
                for one in _flat(
                    self._candidate(source).to(self._device)(*self._arguments(device=self._device))
                )
            ]
            wanted = list(_flat(self._reference.model()(*self._arguments())))
            exact = list(_flat(self._reference.model(torch.float64)(*self._arguments(torch.float64))))
        for one, reference, true in zip(got, wanted, exact, strict=True):
            assert one.shape == reference.shape and one.dtype == reference.dtype
            if not one.is_floating_point():
                found.append(0.0 if torch.equal(one, reference) else math.inf)
                continue
            size = float(true.abs().mean()) + 1e-30
            own = float((reference.double() - true.double()).abs().max()) / size
            error = float((one.double() - true.double()).abs().max()) / size / max(own, 1e-6)
            found.append(math.inf if math.isnan(error) else error)
        return found

    def excesses(self, source: str) -> dict[str, float]:
        """By distribution of the inputs: how many times what the judge allows its errors are."""
        oracle, candidate = Oracle(self._reference, 1 << 24), self._candidate(source).to(self._device)
        found = {}
        for distribution, limit in Tolerance(oracle, "fp32", 7).limits.items():
            form, leaves = oracle.inputs(7, distribution)
            with torch.no_grad():
                given = tree.unpack(form, [leaf.to(self._device) for leaf in leaves])
                outputs = [one.cpu() for one in _flat(candidate(*given))]
            found[distribution] = limit.excess(measure_errors(outputs, oracle.truth(7, distribution)))
        return found

    def _arguments(self, dtype: torch.dtype | None = None, device: str = "cpu") -> Any:
        leaves = [leaf.to(dtype) if dtype and leaf.is_floating_point() else leaf for leaf in self._leaves]
        return tree.unpack(self._form, [leaf.to(device) for leaf in leaves])

    def _candidate(self, source: str) -> torch.nn.Module:
        path = self._folder / "candidate.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("candidate", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made: torch.nn.Module = module.ModelNew(*self._reference.init_inputs)
        assert parameters.give(made, self._reference.state()) != "by seed"
        return made


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for item in value:
            yield from _flat(item)
