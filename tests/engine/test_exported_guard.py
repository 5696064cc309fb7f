"""The optimized class of exported files, in a Python that cannot import kernelpro."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from elsewhere import LAYERNORM, SELF_TEST, Elsewhere, candidate, fewer_rows, task
from torch import nn

from kernelpro import api
from kernelpro.records import Task

SETUP = """
import torch, kernel
model = kernel.OptimizedModel(*kernel._EXPORT_SPECS[0]["init"])
x, *rest = kernel._export.inputs(1, 'cpu')
reference = super(type(model).__mro__[1], model).forward
torch.set_grad_enabled(False)
def path(*inputs, **named):
    before = model.stats.kernel
    close = torch.allclose(model(*inputs, **named).float(), reference(*inputs, **named).float(), atol=1e-4)
    return ("kernel" if model.stats.kernel > before else "reference") if close else "wrong"
"""


class Scaled(nn.Module):
    """A user's module."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.act = "tanh"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight + self.bias
        return torch.tanh(y) if self.act == "tanh" else torch.relu(y)


def scaled_sum(x: torch.Tensor, factors: dict[str, torch.Tensor]) -> torch.Tensor:
    return (x * factors["a"]).sum(-1)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path)


def test_the_kernel_runs_only_where_it_was_judged(elsewhere: Elsewhere) -> None:
    elsewhere.put(fewer_rows(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text())
    elsewhere.passes(
        SETUP
        + """
(y,) = rest
assert path(x, y) == "kernel" and path(x, y) == "kernel" and path(x, residual=y) == "kernel"
assert path(x[:100], y[:100]) == "reference", "shape"
assert path(x, y[:1]) == "reference", "broadcast"
assert path(x.t().contiguous().t(), y) == "reference", "strides"
room = torch.empty(x.numel() + 1)[1:].view_as(x).copy_(x)
assert path(room, y) == "reference", "alignment"
with torch.autocast("cpu", torch.bfloat16):
    assert path(x, y) == "reference", "autocast"
model.eval()
assert path(x, y) == "kernel", "the reference does not look at its mode"
with torch.enable_grad():
    model(x, y).sum().backward()
assert model.gain.grad.abs().sum() > 0 and "gradients are required" in str(model.stats)
assert sorted(model.state_dict()) == ["bias", "gain", "weight"]
model.requires_grad_(False)
with torch.enable_grad():
    assert path(x, y) == "kernel", "nothing asks for gradients"
model.double()
model(x.double(), y.double())
assert "dtype float64" in str(model.stats)
"""
    )


def test_the_kernel_follows_its_parameters(elsewhere: Elsewhere) -> None:
    elsewhere.put(fewer_rows(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text())
    elsewhere.passes(
        SETUP
        + """
(y,) = rest
before = model(x, y)
model.bias.add_(1)
assert torch.allclose(model(x, y), before + 1, atol=1e-4)
other = kernel.OptimizedModel(1024)
model.load_state_dict(other.state_dict())
assert torch.allclose(model(x, y), other(x, y)) and model.stats.fallback == 0
import copy, pickle
for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
    assert torch.equal(again(x, y), model(x, y)) and again.stats.kernel == 1 and again.bias is not model.bias
"""
    )


def test_other_settings_take_the_reference_with_one_warning(elsewhere: Elsewhere) -> None:
    elsewhere.put(task("x ** self.power", "pass"), candidate("x * x", "pass"))
    code = "import torch, kernel\nx = torch.randn(16, 8)\nmodel = kernel.OptimizedModel(3)\n"
    said = elsewhere.passes(code + "for _ in range(3):\n    assert torch.equal(model(x), x ** 3)")
    assert said.count("FallbackWarning") == 1 and "power is 3, judged with 2" in said
    elsewhere.passes(SETUP + "assert path(x) == 'kernel'")


def test_the_mode_counts_where_the_reference_looks_at_it(elsewhere: Elsewhere) -> None:
    init, body = "self.p = 0.0", "nn.functional.dropout(x * 2, self.p, self.training)"
    elsewhere.put(task(body, init), candidate("x * 2", init))
    elsewhere.passes(SETUP + "assert path(x) == 'kernel'\nmodel.eval()\nassert path(x) == 'reference'")


def test_a_forward_pass_that_changes_its_state_is_left_to_the_reference(elsewhere: Elsewhere) -> None:
    init = "self.norm = nn.BatchNorm1d(8)"
    elsewhere.put(task("self.norm(x)", init), candidate("self.norm(x)", init))
    said = elsewhere.passes(
        SETUP + "assert path(x) == 'reference' and int(model.norm.num_batches_tracked) == 2"
    )
    assert "changes its inputs or its own state" in said


def test_parameters_under_other_names_are_found_by_their_values(elsewhere: Elsewhere) -> None:
    elsewhere.put(task(), candidate("x * self.factor", "self.factor = nn.Parameter(torch.randn(8))"))
    elsewhere.passes(SELF_TEST)
    elsewhere.passes(SETUP + "assert path(x) == 'kernel'\nmodel.scale.add_(1)\nassert path(x) == 'kernel'")


def test_what_a_kernel_derives_from_its_first_parameters_is_noticed(elsewhere: Elsewhere) -> None:
    init = "self.scale = nn.Parameter(torch.randn(8)); self.twice = 2 * self.scale.detach()"
    elsewhere.put(task("torch.tanh(2 * x * self.scale)"), candidate("torch.tanh(x * self.twice)", init))
    said = elsewhere.passes(SETUP + "assert path(x) == 'reference'")
    assert "first output of the kernel has a relative error" in said


def test_without_a_compiler_the_reference_takes_over(elsewhere: Elsewhere, tmp_path: Path) -> None:
    elsewhere.put(fewer_rows(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text())
    lacking = {"PATH": str(tmp_path), "CXX": "", "XDG_CACHE_HOME": str(tmp_path / "empty")}
    said = elsewhere.passes(SETUP + "assert path(x, *rest) == path(x, *rest) == 'reference'", **lacking)
    assert said.count("FallbackWarning") == 1 and "BuildError: no C++ compiler found" in said
    assert elsewhere.run(SELF_TEST, **lacking).returncode == 1


def test_a_module_with_its_own_parameters(elsewhere: Elsewhere, tmp_path: Path) -> None:
    torch.manual_seed(5)
    module = Scaled(64)
    init = "self.weight = nn.Parameter(torch.empty(64)); self.bias = nn.Parameter(torch.empty(64))"
    source = candidate("(x * self.weight + self.bias).tanh()", init)
    exported = api.load_task(module, [torch.randn(32, 64)])
    text = elsewhere.put(_without_kernelpro(exported), source)
    assert len(text) < 200_000 and "payload" not in text, "weights and inputs are not in the file"
    elsewhere.passes(SELF_TEST)
    torch.save(module.state_dict(), tmp_path / "checkpoint.pt")
    torch.save({"x": (x := torch.randn(32, 64)), "right": module(x).detach()}, tmp_path / "example.pt")
    elsewhere.passes(
        """
import torch, kernel
torch.set_grad_enabled(False)
model, example = kernel.OptimizedScaled(64), torch.load('example.pt')
print(model.load_state_dict(torch.load('checkpoint.pt')))
assert torch.allclose(model(example['x']), example['right']) and model.stats.kernel == 1
model.act = "relu"
assert torch.equal(model(example['x']), (example['x'] * model.weight + model.bias).relu()) and model.stats.fallback == 1
assert kernel.OptimizedScaled(32)(torch.ones(2, 32)).shape == (2, 32)
"""
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


MAKE = """
import sys
sys.path.insert(0, "project")
import torch
from kernelpro import api
from kernelpro.engine.export import Winner, write_export
from pathlib import Path
from shapes.block import Block
task = api.load_task(Block(8).eval(), [torch.randn(4, 8)])
assert sorted(task.files) == ["shapes/__init__.py", "shapes/block.py", "shapes/scaling.py"], sorted(task.files)
kernel = '''
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = torch.nn.Parameter(torch.empty(width))
    def forward(self, x): return x * self.w * 3.0
'''
sys.path.remove("project")
for name in [name for name in sys.modules if name.startswith("shapes")]:
    del sys.modules[name]
winner = Winner(task, kernel, None, {"target": "cpu"})
write_export(winner, Path("kernel.py"))
write_export(winner, Path("fast_block"), package=True)
"""


def test_a_package_of_two_files_comes_along(elsewhere: Elsewhere) -> None:
    package = elsewhere.folder / "project" / "shapes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "scaling.py").write_text("FACTOR = 3.0\ndef scaled(x): return x * FACTOR\n")
    (package / "block.py").write_text(
        "import torch\nfrom .scaling import scaled\n\nclass Block(torch.nn.Module):\n    def __init__(self, width):\n"
        "        super().__init__()\n        self.w = torch.nn.Parameter(torch.randn(width))\n"
        "    def forward(self, x): return scaled(x * self.w)\n"
    )
    elsewhere.prepare(MAKE)
    (elsewhere.folder / "project").rename(elsewhere.folder / "gone")
    assert elsewhere.passes(SELF_TEST).count(": kernel, ") == 3
    said = elsewhere.passes(
        "sys.path.insert(0, 'fast_block')\nimport torch, fast_block, shapes.scaling\n"
        "assert fast_block.self_test() == 0\nfast = fast_block.OptimizedBlock(8).eval().requires_grad_(False)\n"
        "x = torch.ones(4, 8)\nfast(x)\nassert fast.stats.kernel == 1\nshapes.scaling.FACTOR = 2.0\n"
        "assert torch.allclose(fast(x), 2 * fast.w.expand(4, 8))"
    )
    assert "FACTOR in scaled is 2.0, judged with 3.0" in said
