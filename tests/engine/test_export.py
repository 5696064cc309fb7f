"""Exported files, each run by a Python that cannot import kernelpro."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from kernelpro import api
from kernelpro.engine.export import export, standalone
from kernelpro.engine.store import Store
from kernelpro.records import BadInput, Outcome, RunConfig, Status, Step, Task, Verdict

if TYPE_CHECKING:
    from conftest import Court

EXAMPLES = Path(__file__).parents[2] / "examples"
LAYERNORM = EXAMPLES / "cpu" / "residual_layernorm"
BLOCKED = """
import runpy, sys, warnings
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "kernelpro":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
sys.path.insert(0, "")
try:
    import kernelpro
except ImportError:
    pass
else:
    raise SystemExit("kernelpro can be imported")
"""
SELF_TEST = "runpy.run_path('kernel.py', run_name='__main__')"
SETUP = "import torch, kernel\nmodel = kernel.Optimized()\nx, y = kernel._guard_inputs(1, 'cpu')\ntorch.set_grad_enabled(False)\n"


class Scaled(nn.Module):
    """A module of one's own."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.weight + self.bias)


def scaled_sum(x: torch.Tensor, factors: dict[str, torch.Tensor]) -> torch.Tensor:
    return (x * factors["a"]).sum(-1)


def task(body: str = "x * self.scale", init: str = "self.scale = nn.Parameter(torch.randn(8))") -> Task:
    return Task(
        f"""
import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, power=2):
        super().__init__()
        self.power = power
        {init}
    def forward(self, x):
        return {body}
def get_inputs(): return [torch.randn(16, 8)]
def get_init_inputs(): return [2]
"""
    )


def candidate(body: str = "x * self.scale", init: str = "self.scale = nn.Parameter(torch.randn(8))", head: str = "") -> str:
    return f"""{head}
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, power=2):
        super().__init__()
        {init}
    def forward(self, x):
        return {body}
"""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


class Elsewhere:
    """A folder with an exported file, where kernelpro is not installed."""

    def __init__(self, folder: Path, cache: Path):
        self.folder, self.cache = folder, cache

    def put(self, task: Task, source: str, verdict: Verdict | None = None, target: str = "cpu") -> str:
        text = standalone(task, source, verdict, {"target": target})
        (self.folder / "kernel.py").write_text(text, encoding="utf-8")
        return text

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"XDG_CACHE_HOME": str(self.cache)} | environment
        command = [sys.executable, "-W", "always", "-c", BLOCKED + code]
        return subprocess.run(command, cwd=self.folder, env=clean, capture_output=True, text=True, timeout=300)

    def passes(self, code: str, **environment: str) -> str:
        done = self.run(code, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def elsewhere(tmp_path: Path, cache: Path) -> Elsewhere:
    return Elsewhere(tmp_path, cache)


# --- the self-test ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["column_cumsum/cpp_strips", "residual_layernorm/cpp_fused", "rmsnorm_swiglu/cpp_fused", "softmax_cross_entropy/cpp_fused"],
)
def test_native_kernels_stand_alone(path: str, elsewhere: Elsewhere) -> None:
    file = EXAMPLES / "cpu" / f"{path}.py"
    elsewhere.put(Task.from_file(file.with_name("task.py")), file.read_text())
    said = elsewhere.passes(SELF_TEST)
    assert said.count(": kernel, relative error") == 3 and "other batch size: reference" in said and "medians: kernel" in said


@pytest.mark.parametrize("name", ["cpp_drops_bias", "cpp_skips_rows", "torch_claims_5x"])
def test_wrong_kernels_fail_their_own_test(name: str, elsewhere: Elsewhere) -> None:
    elsewhere.put(Task.from_file(LAYERNORM / "task.py"), (LAYERNORM / f"{name}.py").read_text())
    done = elsewhere.run(SELF_TEST)
    assert done.returncode == 1 and "FAILED" in done.stdout


def test_a_kernel_that_ignores_a_bias_of_zeros_fails(elsewhere: Elsewhere) -> None:
    init = "self.bias = nn.Parameter(torch.zeros(8))"
    elsewhere.put(task("torch.tanh(x + self.bias)", init), candidate("torch.tanh(x)", init))
    assert elsewhere.run(SELF_TEST).returncode == 1


def test_without_a_gpu_a_triton_kernel_is_skipped(elsewhere: Elsewhere) -> None:
    folder = EXAMPLES / "gpu" / "softmax"
    text = elsewhere.put(Task.from_file(folder / "task.py"), (folder / "triton_registers.py").read_text(), target="cuda")
    ast.parse(text)
    assert "_GUARD_CARRIED" not in text and "kernelpro.lab" not in text
    done = elsewhere.run(SELF_TEST, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 77 and "self-test skipped: this kernel is for an NVIDIA GPU" in done.stdout


def test_triton_reads_its_kernels_from_the_file(elsewhere: Elsewhere) -> None:
    pytest.importorskip("triton")
    folder = EXAMPLES / "gpu" / "softmax"
    small = (folder / "task.py").read_text().replace("8192, 8192", "16, 256")
    elsewhere.put(Task(small), (folder / "triton_registers.py").read_text())
    assert elsewhere.passes(SELF_TEST, TRITON_INTERPRET="1").count(": kernel, ") == 3


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cuda_registers", "triton_registers"])
def test_gpu_kernels_stand_alone(name: str, elsewhere: Elsewhere) -> None:
    folder = EXAMPLES / "gpu" / "rmsnorm"
    elsewhere.put(Task.from_file(folder / "task.py"), (folder / f"{name}.py").read_text(), target="cuda")
    assert elsewhere.passes(SELF_TEST).count(": kernel, ") == 3


# --- the guard -------------------------------------------------------------------------------------------


def test_the_kernel_runs_only_where_it_was_judged(elsewhere: Elsewhere) -> None:
    elsewhere.put(Task.from_file(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text())
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
    elsewhere.put(Task.from_file(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text())
    elsewhere.passes(
        SETUP
        + """
before = model(x, y)
model.reference.bias.add_(1)
assert torch.allclose(model(x, y), before + 1, atol=1e-4) and model.last_path == "kernel"
other = kernel.Optimized.of(kernel._guard_reference([1024]))
model.reference.load_state_dict(other.reference.state_dict())
assert torch.allclose(model(x, y), other(x, y)) and model.last_path == other.last_path == "kernel"
for foreign in (torch.nn.Linear(1024, 1024), kernel._guard_reference([512])):
    try:
        kernel.Optimized.of(foreign)
    except ValueError as error:
        assert "not those that were judged" in str(error)
    else:
        raise SystemExit("a foreign module was taken")
"""
    )


def test_other_settings_take_the_reference(elsewhere: Elsewhere) -> None:
    elsewhere.put(task("x ** self.power", "pass"), candidate("x * x", "pass"))
    code = "import torch, kernel\nx = torch.randn(16, 8)\nmodel = kernel.Optimized(3)\n"
    said = elsewhere.passes(code + "assert torch.equal(model(x), x ** 3) and model.last_path == 'reference'")
    assert said.count("UserWarning") == 1 and "settings are not those that were judged" in said
    elsewhere.passes(
        "import torch, kernel\nmodel = kernel.Optimized(2)\nmodel(torch.randn(16, 8))\nassert model.last_path == 'kernel'"
    )


def test_the_mode_counts_where_the_reference_looks_at_it(elsewhere: Elsewhere) -> None:
    elsewhere.put(task("self.norm(x)", "self.norm = nn.BatchNorm1d(8)"), candidate("self.norm(x)", "self.norm = nn.BatchNorm1d(8)"))
    code = "import torch, kernel\ntorch.set_grad_enabled(False)\nx = torch.randn(16, 8)\nmodel = kernel.Optimized()\nmodel(x)\n"
    elsewhere.passes(code + "assert model.last_path == 'kernel'\nmodel.eval()\nmodel(x)\nassert model.last_path == 'reference'")


def test_parameters_under_other_names_come_from_the_seed(elsewhere: Elsewhere) -> None:
    elsewhere.put(task(), candidate("x * self.factor", "self.factor = nn.Parameter(torch.randn(8))"))
    elsewhere.passes(SELF_TEST)
    code = "import torch, kernel\ntorch.set_grad_enabled(False)\nmodel, x = kernel.Optimized(), torch.randn(16, 8)\nmodel(x)\n"
    code += "assert model.last_path == 'kernel'\nmodel.reference.scale.add_(1)\n"
    said = elsewhere.passes(code + "assert torch.equal(model(x), x * model.reference.scale) and model.last_path == 'reference'")
    assert "parameters have changed, which ModelNew takes from the seed alone: scale" in said
    done = elsewhere.run("import kernel\nkernel.Optimized.of(kernel._guard_reference([2]))")
    assert done.returncode and "ModelNew does not have the reference's parameters by name: scale" in done.stderr


def test_what_a_kernel_derives_from_its_first_parameters_is_noticed(elsewhere: Elsewhere) -> None:
    init = "self.scale = nn.Parameter(torch.randn(8)); self.twice = 2 * self.scale.detach()"
    elsewhere.put(task("torch.tanh(2 * x * self.scale)"), candidate("torch.tanh(x * self.twice)", init))
    code = "import torch, kernel\ntorch.set_grad_enabled(False)\nmodel, x = kernel.Optimized(), torch.randn(16, 8)\nmodel(x)\n"
    code += "assert model.last_path == 'kernel'\nother = kernel.Optimized.of(kernel._guard_reference([2]))\n"
    said = elsewhere.passes(code + "assert torch.equal(other(x), other.reference(x)) and other.last_path == 'reference'")
    assert "first answer is off" in said


def test_without_a_compiler_the_reference_takes_over(elsewhere: Elsewhere, tmp_path: Path) -> None:
    elsewhere.put(Task.from_file(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text())
    code = SETUP + "assert torch.equal(model(x, y), model.reference(x, y)) and model.last_path == 'reference'\nmodel(x, y)"
    said = elsewhere.passes(code, PATH=str(tmp_path), CXX="", XDG_CACHE_HOME=str(tmp_path / "empty"))
    assert said.count("UserWarning") == 1 and "BuildError: no C++ compiler found" in said
    assert elsewhere.run(SELF_TEST, PATH=str(tmp_path), CXX="", XDG_CACHE_HOME=str(tmp_path / "empty")).returncode == 1


def test_an_installed_kernelpro_is_used_and_left_as_it_was(elsewhere: Elsewhere) -> None:
    elsewhere.put(Task.from_file(LAYERNORM / "task.py"), (LAYERNORM / "cpp_fused.py").read_text())
    code = (
        "from kernelpro import runtime\nown = runtime.cpp\nimport kernel\nassert runtime.cpp is own and kernel.runtime is runtime"
    )
    subprocess.run([sys.executable, "-c", code], cwd=elsewhere.folder, check=True)


# --- tasks from live objects -----------------------------------------------------------------------------


def test_a_module_with_its_own_parameters(elsewhere: Elsewhere, tmp_path: Path) -> None:
    torch.manual_seed(5)
    module = Scaled(64)
    init = "self.weight = nn.Parameter(torch.empty(64)); self.bias = nn.Parameter(torch.empty(64))"
    source = candidate("(x * self.weight + self.bias).tanh()", init)
    elsewhere.put(_without_kernelpro(api.task(module, [torch.randn(32, 64)])), source)
    elsewhere.passes(SELF_TEST)
    torch.save({"x": (x := torch.randn(32, 64)), "right": module(x).detach()}, tmp_path / "example.pt")
    elsewhere.passes(
        "import torch, kernel\ntorch.set_grad_enabled(False)\nmodel, example = kernel.Optimized(), torch.load('example.pt')\n"
        "assert torch.allclose(model(example['x']), example['right']) and model.last_path == 'kernel'"
    )


def test_a_function_with_nested_inputs(elsewhere: Elsewhere) -> None:
    source = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, factors):\n        return x @ factors['a']\n"
    elsewhere.put(_without_kernelpro(api.task(scaled_sum, [torch.randn(32, 64), {"a": torch.randn(64)}])), source)
    assert elsewhere.passes(SELF_TEST).count(": kernel, ") == 3


def _without_kernelpro(task: Task) -> Task:
    """Sources of live objects are whole files; of this one, the two definitions."""
    parts = Path(__file__).read_text().split("\n\n\n")
    own = [part for part in parts if part.startswith(("class Scaled", "def scaled_sum"))]
    return Task(
        "import torch\nfrom torch import nn\n\n" + "\n\n".join(own), task.name, task.form, task.entry, task.payload, task.mode
    )


# --- the text --------------------------------------------------------------------------------------------


def test_what_only_a_file_of_its_own_can_have_is_moved(elsewhere: Elsewhere) -> None:
    head = '"""Ünïcode."""\nfrom __future__ import annotations; import os\nif __name__ == "__main__":\n    raise SystemExit(9)'
    text = elsewhere.put(task(), candidate(head=head))
    assert text.index("from __future__ import annotations") < text.index("Ünïcode") and "\npass; import os\n" in text
    elsewhere.passes(SELF_TEST)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class ModelNew(:", "the candidate is not Python"),
        ("x = 1", "the candidate defines no class ModelNew"),
        (candidate(head="class Optimized: pass"), "the candidate defines Optimized, which exported files define themselves"),
        (candidate(head="from kernelpro import records"), "the candidate imports kernelpro.records: an exported file carries"),
    ],
)
def test_candidates_that_cannot_be_exported(source: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        standalone(task(), source, None, {})


def test_a_task_that_cannot_run_is_one_clear_line() -> None:
    with pytest.raises(BadInput, match="task task: it cannot be run here: ZeroDivisionError"):
        standalone(task(init="1 / 0"), candidate(), None, {})


def test_a_task_that_looks_at_values_is_run_on_the_cpu() -> None:
    source = task().source.replace("[torch.randn(16, 8)]", "[torch.randn(int(torch.full((), 16.0)), 8).t()]")
    assert "(((8, 16), 'torch.float32', (1, 8)),)" in standalone(Task(source), candidate(), None, {})


# --- runs ------------------------------------------------------------------------------------------------


def test_the_winner_of_a_run(tmp_path: Path, elsewhere: Elsewhere, court: Court) -> None:
    folder = EXAMPLES / "cpu" / "column_cumsum"
    config = RunConfig(Task.from_file(folder / "task.py"), "cpu", "files:kernels")
    store = Store.create(tmp_path / "runs", config, "columns")
    with pytest.raises(BadInput, match="run columns-1 is not finished"):
        export(store, None)
    store.finish(Outcome("the budget is spent"))
    with pytest.raises(BadInput, match="run columns-1: nothing passed, so there is nothing to export"):
        export(store, None)
    key = store.put_source((folder / "cpp_strips.py").read_text())
    verdict = court.judge_files(folder / "task.py", folder / "cpp_strips.py")
    wrong = Verdict("step 2", Status.WRONG, "output 0 is off")
    store.keep(Step(1, 0, "seed", "settled", key, key, "strips", author="files", verdict=verdict))
    store.keep(Step(2, 1, "improve", "settled", key, key, verdict=wrong))
    store.keep(Step(3, 1, "improve", "settled", key, key, note="a duplicate of step 1"))
    store.finish(Outcome("the budget is spent", 1, verdict))
    for number, message in {
        2: "it is wrong: output 0 is off",
        3: "not judged .a duplicate of step 1",
        9: "has no step 9; it has 3",
    }.items():
        with pytest.raises(BadInput, match=message):
            export(store, number)
    text = export(store, None)
    assert text == export(store, 1)
    said = ast.get_docstring(ast.parse(text)) or ""
    for part in (
        "run: columns-1, begun 2",
        "step: 1, by files: strips",
        "verdict: passed",
        "time, candidate: ",
        "torch " + torch.__version__,
    ):
        assert part in said, said
    assert "speed-up over eager_fp32: " in said and "tolerance" in said
    (elsewhere.folder / "kernel.py").write_text(text)
    elsewhere.passes(SELF_TEST)
