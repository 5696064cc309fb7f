"""A drop-in module for several shapes, with keyword-only arguments, and its guards."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import KERNEL, Block
from torch import nn
from two_files.layers import RootNorm

from kernelpro import api, build_guards
from kernelpro.dropin import guards, native_guards
from kernelpro.dropin.module import optimize_module
from kernelpro.lab.seeds import NoSeed, reference_seed
from kernelpro.lab.tasks.reference import Reference
from kernelpro.pools import winners

pytestmark = pytest.mark.usefixtures("no_grad")
SMALL, LARGE = torch.randn(4, 16), torch.randn(9, 16)


def dispatching(kernels: tuple[str, str]) -> Any:
    block = Block(16).eval()
    task = api.load_task(block, [(SMALL,), (LARGE,)], weights=[3, 1])
    specs = winners.describe_winner(task, kernels, "cpu", None)
    factories = [winners.winner_factory(s, k, None) for s, k in zip(specs, kernels, strict=True)]
    return optimize_module(block, tuple(factories))


def test_each_shape_gets_its_kernel() -> None:
    only_nine = KERNEL.replace("return ", "assert len(x) == 9; return ")
    fast = dispatching((KERNEL.replace("return ", "assert len(x) == 4; return "), only_nine))
    for module in (fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        before = module.stats.kernel
        for x in (SMALL, LARGE, SMALL, LARGE):
            assert torch.allclose(module(x), Block.forward(module, x), atol=1e-5)
        assert module.stats.kernel == before + 4 and not module.stats.fallback
    assert torch.equal(fast(SMALL[:2]), Block.forward(fast, SMALL[:2]))
    assert list(fast.stats.reasons) == ["x has shape (2, 16), judged with (4, 16) and 1 other shape"]
    fast.act = "relu"
    assert torch.equal(fast(LARGE), Block.forward(fast, LARGE)) and fast.stats.fallback == 2


def test_compilers_see_the_operator_of_the_shape() -> None:
    fast = dispatching((KERNEL, KERNEL))
    compiled = torch.compile(fast, fullgraph=True, backend="eager", dynamic=False)
    for x in (SMALL, LARGE, SMALL[:2]):
        assert torch.allclose(compiled(x), Block.forward(fast, x), atol=1e-5)


class Scaled(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x: torch.Tensor, *, bias: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.tanh(x * self.weight + bias) * scale


def test_keyword_only_arguments_are_served() -> None:
    kernel = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size))
    def forward(self, x, bias, scale):
        return torch.tanh(x * self.weight + bias) * scale
"""
    module, bias = Scaled(16).eval(), torch.randn(16)
    task = api.load_task(module, {"x": SMALL, "bias": bias, "scale": 1.0})
    (spec,) = winners.describe_winner(task, [kernel], "cpu", None)
    assert spec.keyword_only == ("bias", "scale")
    fast = optimize_module(module, winners.winner_factory(spec, kernel, None))
    for named in ({"bias": bias, "scale": 1.0}, {"scale": 1.0, "bias": bias}, {"bias": bias}):
        assert torch.allclose(fast(SMALL, **named), Scaled.forward(module, SMALL, **named), atol=1e-5)
    assert fast.stats.kernel == 3
    assert torch.equal(fast(SMALL, bias=bias, scale=2.0), Scaled.forward(module, SMALL, bias=bias, scale=2.0))
    assert list(fast.stats.reasons) == ["scale is 2.0, judged with 1.0"]


class One(nn.Module):
    """Parameters of one element, which compare by value, and a square one, which can be transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(16))
        self.square = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.gain + self.bias) @ self.square


@pytest.fixture(params=["python", "torch", pytest.param("native", marks=pytest.mark.long)])
def guards_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """How tensors are compared: one by one, by torch.compile's guard, by guards that were built."""
    assert guards._tensor_guards() is not None, "this version of torch has it"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native_guards.load.cache_clear()
    request.addfinalizer(native_guards.load.cache_clear)
    if request.param == "python":
        monkeypatch.setattr(guards, "_tensor_guards", lambda: None)
    if request.param == "native":
        assert build_guards().is_file()
    return str(request.param)


def test_every_change_of_state_is_seen(guards_in: str) -> None:
    assert (native_guards.load() is not None) == (guards_in == "native")
    kernel = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain, self.bias = torch.nn.Parameter(torch.empty(1)), torch.nn.Parameter(torch.empty(16))
        self.square = torch.nn.Parameter(torch.empty(16, 16))
        self.cached = None
    def forward(self, x):
        if self.cached is None:
            self.cached = self.gain.clone(), self.bias.clone(), self.square.clone()
        return (x * self.cached[0] + self.cached[1]) @ self.cached[2]
"""
    module = One().eval()
    task = api.load_task(module, [SMALL])
    (spec,) = winners.describe_winner(task, [kernel], "cpu", None)
    fast = optimize_module(module, winners.winner_factory(spec, kernel, None))

    def swap() -> None:
        module.gain.data = torch.full((1,), 5.0)

    def replace_by_equal() -> None:
        module.gain = nn.Parameter(torch.full((1,), 5.0))

    def swap_tensors() -> None:
        torch.utils.swap_tensors(module.bias, nn.Parameter(torch.full((16,), 7.0)))

    def transpose() -> None:
        module.square.data = module.square.data.t()

    def there_and_back() -> None:
        """The second copy may get the address of the original."""
        module.half()
        module.float()

    changes = (
        transpose,
        there_and_back,
        lambda: module.bias.add_(1),
        lambda: module.gain.mul_(2),
        swap,
        replace_by_equal,
        lambda: module.gain.add_(1),  # of the one that replaced it
        lambda: setattr(module, "bias", nn.Parameter(torch.zeros(16))),
        lambda: module.load_state_dict(One().state_dict()),
        swap_tensors,
    )
    for change in changes:
        fast(SMALL)
        change()
        assert torch.allclose(fast(SMALL), One.forward(module, SMALL)), "no stale values"
    assert fast.stats.fallback == 0
    with torch.enable_grad():
        assert fast(SMALL).requires_grad, "gradients need the reference"
    with torch.autocast("cpu"):
        fast(SMALL)
    assert fast.stats.fallback == 2
    with torch.inference_mode():
        fast(SMALL)
    assert fast.stats.fallback == 2


def test_guards_that_cannot_be_built_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"cannot be compiled: .*no-such-compiler"):
        build_guards()
    assert not any(path.is_file() for path in tmp_path.rglob("*")), "nothing is left behind"


def test_a_package_of_two_files_is_no_seed() -> None:
    """The sandbox of a candidate does not show the user's folders."""
    task = api.load_task(RootNorm(16).eval(), [SMALL], init_inputs=[16])
    with pytest.raises(NoSeed, match="the reference imports two_files, and a candidate is one file"):
        reference_seed(Reference(task, "cpu", 0))
