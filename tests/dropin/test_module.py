"""A drop-in module behaves as the original: guards, fallbacks, state, copies."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import blocks
import pytest
import torch
from blocks import Block, optimized

from kernelpro import FallbackError, FallbackWarning

pytestmark = pytest.mark.usefixtures("no_grad")
X = torch.randn(4, 16)


def served(fast: Block, x: torch.Tensor = X, **named: torch.Tensor) -> str:
    """Who serves a call; checks its result against the original class."""
    stats = fast.stats  # type: ignore[attr-defined]
    before = stats.kernel
    result, right = fast(x, **named), Block.forward(fast, x, **named)
    assert torch.allclose(result, right, atol=1e-5)
    return "kernel" if stats.kernel > before else list(stats.reasons)[-1]


def test_it_is_the_module() -> None:
    block = Block(16).eval()
    fast = optimized(block)
    assert isinstance(fast, Block) and type(fast).__name__ == "OptimizedBlock"
    assert list(fast.state_dict()) == list(block.state_dict()) and fast.w is block.w
    assert served(fast) == served(fast) == "kernel"
    fast.extra = 3
    assert block.extra == 3


def test_attributes_globals_and_configurations_are_guarded() -> None:
    fast, module = optimized(), blocks.this_module()
    assert served(fast) == "kernel"
    fast.act = "relu"
    assert served(fast) == "act is 'relu', judged with 'tanh'"
    fast.act = "tanh"
    assert served(fast) == "kernel"
    for change, restore, reason in (
        (lambda: fast.options.update(scale=3.0), lambda: fast.options.update(scale=2.0), "options is"),
        (lambda: setattr(module, "GAIN", 2.0), lambda: setattr(module, "GAIN", 1.0), "GAIN in Block.forward"),
        (
            lambda: setattr(blocks.CONFIG, "shift", 0.0),
            lambda: setattr(blocks.CONFIG, "shift", 0.5),
            "CONFIG",
        ),
        (lambda: setattr(fast.norm, "eps", 0.1), lambda: setattr(fast.norm, "eps", 1e-5), "norm.eps is 0.1"),
    ):
        change()
        try:
            assert served(fast).startswith(reason)
        finally:
            restore()
        assert served(fast) == "kernel"


def test_a_module_with_other_settings_falls_back_with_one_warning() -> None:
    template = optimized()
    fast = type(template).from_module(Block(16, act="relu").eval())
    wide = type(template).from_module(Block(32).eval())
    with pytest.warns(FallbackWarning, match="act is 'relu', judged with 'tanh'") as caught:
        fast(X), fast(X)
    assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.warns(FallbackWarning, match="x has shape"):
        wide(torch.randn(4, 32))
    assert type(template)(32)(torch.randn(2, 32)).shape == (2, 32), "the constructor is the reference's"


def test_calls_that_were_not_judged_fall_back_and_are_counted() -> None:
    fast = optimized()
    assert served(fast) == "kernel"
    assert served(fast, X[:2]) == "x has shape (2, 16), judged with (4, 16)"
    assert served(fast, torch.randn(16, 4).t()).startswith("x has other strides")
    assert served(fast, X, bias=torch.ones(16)) == "2 inputs, judged with 1"
    assert served(fast, X, bias=None) == "kernel", "the default, given by name"  # type: ignore[arg-type]
    with torch.autocast("cpu", torch.bfloat16):
        fast(X)
    assert "autocast is enabled" in fast.stats.reasons
    with torch.enable_grad():
        fast(X).sum().backward()
    assert fast.w.grad is not None and "gradients are required" in str(fast.stats)
    assert torch.vmap(fast)(torch.randn(3, 4, 16)).shape == (3, 4, 16)
    assert "a torch.func transform such as vmap is active" in fast.stats.reasons
    assert fast.stats.kernel == 2 and fast.stats.fallback == 6


def test_a_strict_module_raises() -> None:
    fast = optimized(strict=True)
    fast(X)
    with pytest.raises(FallbackError, match="x has shape"):
        fast(X[:2])


def test_hooks_run() -> None:
    fast, calls = optimized(), []
    fast.register_forward_hook(lambda *_: calls.append("outer"))
    assert served(fast) == "kernel" and calls == ["outer"]
    handle = fast.norm.register_forward_hook(lambda *_: calls.append("inner"))
    fast(X)
    assert calls.count("inner") == 1 and "norm has forward hooks" in str(fast.stats)
    handle.remove()
    assert served(fast) == "kernel"


def test_parameters_may_change_in_every_way(tmp_path: Path) -> None:
    fast = optimized()
    assert served(fast) == "kernel"
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    with torch.enable_grad():
        fast(X).sum().backward()
    optimizer.step()
    assert served(fast) == "kernel"
    torch.save(Block(16).state_dict(), tmp_path / "checkpoint.pt")
    fast.load_state_dict(torch.load(tmp_path / "checkpoint.pt"))
    assert served(fast) == "kernel"
    fast.w = torch.nn.Parameter(torch.ones(16))
    assert served(fast) == "kernel"
    fast.w.data = torch.zeros(16)
    assert served(fast) == "kernel"
    fast.norm = torch.nn.LayerNorm(16)
    assert served(fast) == "kernel"
    fast.double()
    assert served(fast, X.double()).startswith("x has dtype float64")
    fast.float()
    assert served(fast) == "kernel"
    fresh = Block(16)
    fresh.load_state_dict(fast.state_dict())


def test_copies_are_independent() -> None:
    fast = optimized()
    fast(X)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert other.w is not fast.w and served(other) == "kernel"
        other.w.add_(1)
        assert served(other) == "kernel" and not torch.allclose(other(X), fast(X))
        assert other.stats is not fast.stats


def test_parameters_that_change_with_every_call_are_not_bound_forever() -> None:
    fast = optimized()
    for _ in range(20):
        fast.w.add_(0.01)
        fast(X)
    assert "parameters or settings change between calls" in str(fast.stats)


def test_a_kernel_that_raises_or_is_wrong_is_replaced() -> None:
    for kernel, reason in (
        (blocks.KERNEL.replace("+ 0.5", "+ 0.9"), "has a relative error"),
        (blocks.KERNEL.replace("return", "raise ValueError('no');"), "ValueError: no"),
        (blocks.KERNEL.replace("self.w", "self.v"), "parameters by name: w"),
    ):
        fast = optimized(kernel=kernel)
        assert reason in served(fast) and reason in served(fast)


def test_outputs_have_the_strides_of_the_reference() -> None:
    fast = optimized(
        kernel=blocks.KERNEL.replace("* 2.0", "* 2.0 + 0 * x.t().contiguous().t()").replace("return ", "y = ")
        + "        return torch.empty_strided(y.shape, (1, 4)).copy_(y)\n"
    )
    assert served(fast) == "kernel" and fast(X).stride() == (16, 1)


def test_a_reference_with_stats_of_its_own_keeps_them() -> None:
    block = Block(16).eval()
    fast = optimized(block)
    block.stats = "mine"
    fast(X)
    assert fast.stats == "mine" and fast._kernelpro.stats.kernel == 1
