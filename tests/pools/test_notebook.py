"""Modules and functions of a notebook as tasks: cells of a real IPython, and what is taken of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelpro.pools.notebook_source import join_statements, required_statements

CELLS = [
    "import torch, sys\nfrom torch import nn\n%precision 3",
    "raise RuntimeError('loading the data takes hours')",
    "class Net(nn.Module):\n    pass",
    "x = [1, 2]; WIDTH = 8",
    "this is no Python",
    "x = torch.randn(4, WIDTH)\nx.add_(1)\nscale = {'up': 1.0}",
    """\
def gain(x):
    # whatever it is by then
    return x * scale['up']

@torch.no_grad()
def unused(x):
    return missing(x)

class Net(nn.Module):
    def __init__(self, then, width=WIDTH):
        super().__init__()
        self.inner, self.then = nn.Linear(width, 16), then

    def forward(self, x):
        h = self.inner(x)
        return self.then(gain(h) + SHIFT)
""",
    "scale['up'] = 2.0\nSHIFT = 1.0\nSHIFT += 2.0\nh = 'another'",
    "%%time\nclass Negated(nn.Module):\n    def forward(self, x):\n        return -x",
    "net = Net(Negated())",
]
CANDIDATE = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16)

    def forward(self, x):
        return -(self.inner(x) * 2.0 + 3.0)
"""
CONTAINER = """
class ModelNew(nn.Sequential):
    def __init__(self):
        super().__init__(Inner())
"""
REFUSED = """
from kernelpro import api
from kernelpro.records import BadInput
try:
    api.load_task(net, [x])
except BadInput as error:
    print("told:", error)
"""
SHELL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
cells = json.load(sys.stdin)
shell = InteractiveShell.instance(user_module=sys.modules["__main__"])
for cell in cells:
    shell.run_cell(cell, store_history=True)
"""


def in_ipython(cells: list[str], folder: Path) -> str:
    """What a shell says that is given these cells, one after the other."""
    pytest.importorskip("IPython")
    environment = os.environ | {"IPYTHONDIR": str(folder), "KERNELPRO_LOCKS": str(folder / "locks")}
    how = {"capture_output": True, "text": True, "env": environment, "timeout": 300, "cwd": folder}
    done = subprocess.run([sys.executable, "-c", SHELL], input=json.dumps(cells), **how)  # type: ignore[call-overload]
    return str(done.stdout + done.stderr)


def test_a_class_brings_what_it_needs_and_nothing_else() -> None:
    source = join_statements(required_statements(["import torch\nfrom torch import nn", *CELLS[1:]], ["Net"]))
    space: dict[str, object] = {}
    exec(source, space)
    assert {name for name in space if not name.startswith("__")} == {
        "nn",
        "WIDTH",
        "scale",
        "gain",
        "Net",
        "SHIFT",
    }
    assert space["scale"] == {"up": 2.0} and space["SHIFT"] == 3.0 and "# whatever it is by then" in source


@pytest.mark.parametrize("name", ["net.inner", "nobody", "torch.nn"])
def test_what_no_cell_defines_is_not_there(name: str) -> None:
    assert required_statements(CELLS, ["Net", name]) == []


def test_what_comes_with_a_star_or_a_condition_comes_along() -> None:
    optional = "try:\n    import nowhere as fast\nexcept ImportError:\n    fast = None"
    cells = ["from math import *", optional, "def f(x):\n    return fast or sqrt(x)"]
    space: dict[str, object] = {}
    exec(join_statements(required_statements(cells, ["f"])), space)
    assert eval("f(4.0)", space) == 2.0


@pytest.mark.parametrize(
    "last",
    [
        pytest.param("", id="a class of its cells"),
        pytest.param(
            "net = torch.compile(nn.Sequential(net))", id="a container of one", marks=pytest.mark.long
        ),
    ],
)
def test_a_module_of_a_notebook_is_judged(last: str, tmp_path: Path) -> None:
    body = CANDIDATE if not last else CANDIDATE.replace("class ModelNew", "class Inner") + CONTAINER
    (tmp_path / "candidate.py").write_text(body)
    judged = """
import kernelpro
from kernelpro.records import Options
eager = Options(effort="quick", baselines=("eager_fp32",))
print(kernelpro.judge(net, ["candidate.py"], inputs=[x], target="cpu", options=eager)[0].status.value)
"""
    said = in_ipython([*CELLS, last, judged], tmp_path)
    assert "passed" in said.splitlines(), said


REFUSALS = {
    "class Net(nn.Module): pass": "cannot be pickled for a worker: Can't pickle",  # net is of the class before
    "net.last = lambda x: x": "cannot be pickled for a worker: Can't",
    "log = open('log', 'w')\ndef kept(x):\n    log.write('x')\n    return x\nnet = kept": (
        "log (TextIOWrapper) is referenced and cannot be"
    ),
    "def made():\n    class Net(nn.Module): pass\n    return Net()\nnet = made()": (
        "is not defined at the top level"
    ),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one shell says to each cell, after all cells before it were run anew."""
    cells = [[*CELLS, cell, "print('next')", REFUSED] for cell in REFUSALS]
    said = in_ipython([cell for group in cells for cell in group], tmp_path_factory.mktemp("shell"))
    return dict(zip(REFUSALS, said.split("next\n")[1:], strict=True))


@pytest.mark.parametrize("cell", REFUSALS)
def test_what_cannot_be_had_again_is_one_line(cell: str, refusals: dict[str, str]) -> None:
    (told,) = (line for line in refusals[cell].splitlines() if line.startswith("told: "))
    assert REFUSALS[cell] in told
