"""`OptimizedModule` of exported files: when the kernel runs, with which parameters, and the fallback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from elsewhere import LAYERNORM, SELF_TEST, Elsewhere, candidate, fewer_rows, task
from torch import nn

from kernelpro import api
from kernelpro.records import Task

SETUP = "import torch, kernel\nmodel = kernel.OptimizedModule()\nx, y = kernel._guard_inputs(1, 'cpu')\ntorch.set_grad_enabled(False)\n"


class Scaled(nn.Module):
    """A user's module."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.weight + self.bias)


def scaled_sum(x: torch.Tensor, factors: dict[str, torch.Tensor]) -> torch.Tensor:
    return (x * factors["a"]).sum(-1)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path)


# --- the guard -------------------------------------------------------------------------------------------


def test_the_kernel_runs_only_where_it_was_judged(elsewhere: Elsewhere) -> None:
    elsewhere.put(fewer_rows(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text())
    elsewhere.passes(
        SETUP
        + """
def path(*inputs, **named):
    close = torch.allclose(model(*inputs, **named).float(), model.reference(*inputs, **named).float(), atol=1e-4)
    return model.last_path if close else "wrong"

assert path(x, y) == "kernel" and path(x, y) == "kernel"
assert path(x[:100], y[:100]) == "reference", "shape"
assert path(x, y[:1]) == "reference", "broadcast"
assert path(x, residual=y) == "reference", "keywords"
assert path(x.t().contiguous().t(), y) == "reference", "strides"
room = torch.empty(x.numel() + 1)[1:].view_as(x).copy_(x)
assert path(room, y) == "reference", "alignment"
with torch.autocast("cpu", torch.bfloat16):
    assert path(x, y) == "reference", "autocast"
model.eval()
assert path(x, y) == "kernel", "the reference does not look at its mode"
with torch.enable_grad():
    model(x, y).sum().backward()
assert model.last_path == "reference" and model.reference.gain.grad.abs().sum() > 0
assert sorted(model.state_dict()) == ["reference.bias", "reference.gain", "reference.weight"]
model.requires_grad_(False)
with torch.enable_grad():
    model(x, y)
assert model.last_path == "kernel", "nothing asks for gradients"
model.double()
model(x.double(), y.double())
assert model.last_path == "reference", "dtype"
"""
    )


def test_the_kernel_follows_its_parameters(elsewhere: Elsewhere) -> None:
    elsewhere.put(fewer_rows(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text())
    elsewhere.passes(
        SETUP
        + """
before = model(x, y)
model.reference.bias.add_(1)
assert torch.allclose(model(x, y), before + 1, atol=1e-4) and model.last_path == "kernel"
other = kernel.OptimizedModule.from_module(kernel._guard_reference([1024]))
model.reference.load_state_dict(other.reference.state_dict())
assert torch.allclose(model(x, y), other(x, y)) and model.last_path == other.last_path == "kernel"
for foreign in (torch.nn.Linear(1024, 1024), kernel._guard_reference([512])):
    try:
        kernel.OptimizedModule.from_module(foreign)
    except ValueError as error:
        assert "not those that were judged" in str(error)
    else:
        raise SystemExit("a foreign module was taken")
"""
    )


def test_other_settings_take_the_reference(elsewhere: Elsewhere) -> None:
    elsewhere.put(task("x ** self.power", "pass"), candidate("x * x", "pass"))
    code = "import torch, kernel\nx = torch.randn(16, 8)\nmodel = kernel.OptimizedModule(3)\n"
    said = elsewhere.passes(code + "assert torch.equal(model(x), x ** 3) and model.last_path == 'reference'")
    assert said.count("UserWarning") == 1 and "settings are not those that were judged" in said
    elsewhere.passes(
        "import torch, kernel\nmodel = kernel.OptimizedModule(2)\nmodel(torch.randn(16, 8))\nassert model.last_path == 'kernel'"
    )


def test_the_mode_counts_where_the_reference_looks_at_it(elsewhere: Elsewhere) -> None:
    elsewhere.put(
        task("self.norm(x)", "self.norm = nn.BatchNorm1d(8)"),
        candidate("self.norm(x)", "self.norm = nn.BatchNorm1d(8)"),
    )
    code = "import torch, kernel\ntorch.set_grad_enabled(False)\nx = torch.randn(16, 8)\nmodel = kernel.OptimizedModule()\nmodel(x)\n"
    elsewhere.passes(
        code
        + "assert model.last_path == 'kernel'\nmodel.eval()\nmodel(x)\nassert model.last_path == 'reference'"
    )


def test_parameters_under_other_names_come_from_the_seed(elsewhere: Elsewhere) -> None:
    elsewhere.put(task(), candidate("x * self.factor", "self.factor = nn.Parameter(torch.randn(8))"))
    elsewhere.passes(SELF_TEST)
    code = "import torch, kernel\ntorch.set_grad_enabled(False)\nmodel, x = kernel.OptimizedModule(), torch.randn(16, 8)\nmodel(x)\n"
    code += "assert model.last_path == 'kernel'\nmodel.reference.scale.add_(1)\n"
    said = elsewhere.passes(
        code + "assert torch.equal(model(x), x * model.reference.scale) and model.last_path == 'reference'"
    )
    assert "parameters have changed, which ModelNew takes from the seed alone: scale" in said
    process = elsewhere.run("import kernel\nkernel.OptimizedModule.from_module(kernel._guard_reference([2]))")
    assert (
        process.returncode
        and "ModelNew does not have the reference's parameters by name: scale" in process.stderr
    )


def test_what_a_kernel_derives_from_its_first_parameters_is_noticed(elsewhere: Elsewhere) -> None:
    init = "self.scale = nn.Parameter(torch.randn(8)); self.twice = 2 * self.scale.detach()"
    elsewhere.put(task("torch.tanh(2 * x * self.scale)"), candidate("torch.tanh(x * self.twice)", init))
    code = "import torch, kernel\ntorch.set_grad_enabled(False)\nmodel, x = kernel.OptimizedModule(), torch.randn(16, 8)\nmodel(x)\n"
    code += "assert model.last_path == 'kernel'\nother = kernel.OptimizedModule.from_module(kernel._guard_reference([2]))\n"
    said = elsewhere.passes(
        code + "assert torch.equal(other(x), other.reference(x)) and other.last_path == 'reference'"
    )
    assert "first output has a relative error" in said


def test_without_a_compiler_the_reference_takes_over(elsewhere: Elsewhere, tmp_path: Path) -> None:
    elsewhere.put(fewer_rows(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text())
    code = (
        SETUP
        + "assert torch.equal(model(x, y), model.reference(x, y)) and model.last_path == 'reference'\nmodel(x, y)"
    )
    said = elsewhere.passes(code, PATH=str(tmp_path), CXX="", XDG_CACHE_HOME=str(tmp_path / "empty"))
    assert said.count("UserWarning") == 1 and "BuildError: no C++ compiler found" in said
    assert (
        elsewhere.run(
            SELF_TEST, PATH=str(tmp_path), CXX="", XDG_CACHE_HOME=str(tmp_path / "empty")
        ).returncode
        == 1
    )


@pytest.mark.long  # the others run without one
def test_an_installed_kernelpro_is_used_and_left_as_it_was(elsewhere: Elsewhere) -> None:
    elsewhere.put(fewer_rows(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text())
    code = "from kernelpro import runtime\nown = runtime.cpp\nimport kernel\nassert runtime.cpp is own and kernel.runtime is runtime"
    subprocess.run([sys.executable, "-c", code], cwd=elsewhere.folder, check=True)


# --- tasks from live objects -----------------------------------------------------------------------------


def test_a_module_with_its_own_parameters(elsewhere: Elsewhere, tmp_path: Path) -> None:
    torch.manual_seed(5)
    module = Scaled(64)
    init = "self.weight = nn.Parameter(torch.empty(64)); self.bias = nn.Parameter(torch.empty(64))"
    source = candidate("(x * self.weight + self.bias).tanh()", init)
    elsewhere.put(_without_kernelpro(api.load_task(module, [torch.randn(32, 64)])), source)
    elsewhere.passes(SELF_TEST)
    torch.save({"x": (x := torch.randn(32, 64)), "right": module(x).detach()}, tmp_path / "example.pt")
    elsewhere.passes(
        "import torch, kernel\ntorch.set_grad_enabled(False)\nmodel, example = kernel.OptimizedModule(), torch.load('example.pt')\n"
        "assert torch.allclose(model(example['x']), example['right']) and model.last_path == 'kernel'"
    )


def test_a_function_with_nested_inputs(elsewhere: Elsewhere) -> None:
    source = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, factors):\n        return x @ factors['a']\n"
    elsewhere.put(
        _without_kernelpro(api.load_task(scaled_sum, [torch.randn(32, 64), {"a": torch.randn(64)}])), source
    )
    assert elsewhere.passes(SELF_TEST).count(": kernel, ") == 3


def _without_kernelpro(task: Task) -> Task:
    """Sources of live objects are whole files; of this one, the two definitions."""
    parts = Path(__file__).read_text().split("\n\n\n")
    own = [part for part in parts if part.startswith(("class Scaled", "def scaled_sum"))]
    return Task(
        "import torch\nfrom torch import nn\n\n" + "\n\n".join(own),
        task.name,
        task.form,
        task.entry,
        task.payload,
        task.mode,
    )
