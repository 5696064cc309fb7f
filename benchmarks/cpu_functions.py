"""CPU time of the playbook's C++ seeds on operators with elementary functions, compared with eager PyTorch.

    python benchmarks/cpu_functions.py [NAME ...]

Everything runs on one thread, and the thread's CPU time counts, so that other work on the machine disturbs
little. Calls of eager and of each kernel alternate; the table has the smallest time of each and their ratio.
"""

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from kernelpro.authors.playbook.cpp import backend as cpp
from kernelpro.authors.playbook.fusion.fuser import fuse
from kernelpro.lab.tasks import parameters
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task

ROUNDS = 40
OPERATORS = {
    "gelu": "F.gelu(x)",
    "gelu tanh": "F.gelu(x, approximate='tanh')",
    "silu": "F.silu(x)",
    "sigmoid": "torch.sigmoid(x)",
    "tanh": "torch.tanh(x)",
    "mish": "F.mish(x)",
    "softplus": "F.softplus(x)",
    "elu": "F.elu(x)",
    "exp": "torch.exp(x)",
    "log": "torch.log(x.abs() + 1)",
    "sin": "torch.sin(x)",
    "pow": "torch.pow(x.abs(), 1.7)",
    "softmax": "torch.softmax(x, -1)",
    "log softmax": "torch.log_softmax(x, -1)",
    "layer norm, gelu": "F.gelu(F.layer_norm(x, (1024,), self.bias, self.bias))",
    "own_module.py": "torch.softmax(F.gelu(x + self.bias) / self.temperature, dim=-1)",
}
SOURCE = """
import torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias, self.temperature = nn.Parameter(torch.randn(1024)), nn.Parameter(torch.tensor([1.5]))
    def forward(self, x):
        return FORWARD
def get_inputs(): return [torch.randn(1024, 1024)]
def get_init_inputs(): return []
"""


def load(source: str, folder: Path, number: int) -> torch.nn.Module:
    """The candidate in a source file."""
    path = folder / f"candidate{number}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ModelNew()


def smallest_times(calls: list[Callable[[], object]]) -> list[float]:
    """The smallest CPU time of each call, in ms."""
    times = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, measured in zip(calls, times, strict=True):
            start = time.thread_time()
            call()
            measured.append((time.thread_time() - start) * 1e3)
    return [min(measured) for measured in times]


def measure(forward: str, folder: Path) -> list[float]:
    """The times of eager and of the seeds."""
    reference = Reference(Task(SOURCE.replace("FORWARD", forward)), "cpu", 0)
    program = fuse(operator_graph(reference, 1))
    sources = [cpp.BACKEND.write(program, seed.design) for seed in cpp.BACKEND.seeds(program)]
    models = [reference.model()]
    for number, source in enumerate(sources):
        models.append(load(source, folder, number))
        parameters.load_reference_state(models[-1], reference.state())
    x = torch.randn(1024, 1024)
    with torch.no_grad():
        return smallest_times([lambda model=model: model(x) for model in models])


def main() -> None:
    """Prints one row for each operator."""
    torch.set_num_threads(1)
    print("| operator | eager (ms) | first seed | best seed | best over eager |\n|---|---|---|---|---|")
    for name in sys.argv[1:] or OPERATORS:
        with tempfile.TemporaryDirectory() as folder:
            eager, first, *others = measure(OPERATORS[name], Path(folder))
        best = min([first, *others])
        print(f"| {name} | {eager:.2f} | {first:.2f} | {best:.2f} | {eager / best:.2f}x |", flush=True)


if __name__ == "__main__":
    main()
