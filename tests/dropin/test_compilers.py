"""Drop-in modules in torch.compile, torch.export and patched models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from blocks import KERNEL, Block, Model, optimized

import kernelpro
from kernelpro import FallbackWarning, api
from kernelpro.dropin.module import optimize_module
from kernelpro.pools import winners
from kernelpro.records import BadInput

pytestmark = pytest.mark.usefixtures("no_grad", "fresh_compiler")
X = torch.randn(4, 16)


def operators(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def test_a_patched_model_is_compiled_as_one_graph() -> None:
    model, seen = Model().eval(), []
    right = model(X)
    with kernelpro.patch(model, {"layers.*.block": optimized()}):

        def backend(graph: torch.fx.GraphModule, _: object) -> object:
            seen.append(operators(graph))
            return graph.forward

        compiled = torch.compile(model, fullgraph=True, backend=backend)
        assert torch.allclose(compiled(X), right, atol=1e-5)
        assert sum("kernelpro.block" in name for name in seen[-1]) == 3
        model.layers[1]["block"].act = "relu"
        assert torch.allclose(compiled(X), model(X), atol=1e-5), (
            "a change is noticed by the compiler's guards"
        )
        assert sum("kernelpro.block" in name for name in seen[-1]) == 2
        model.layers[1]["block"].act = "tanh"
        model.layers[0]["block"].w.add_(1)
        assert torch.allclose(compiled(X), model(X), atol=1e-5), "and so are new weights"


def test_inductor_removes_the_reference() -> None:
    block = Block(16).eval()
    right = block(X)
    assert torch.allclose(torch.compile(optimized(block), fullgraph=True)(X), right, atol=1e-5)


def test_compiled_calls_are_not_counted() -> None:
    fast = optimized()
    compiled = torch.compile(fast, fullgraph=True, backend="eager")
    for _ in range(3):
        compiled(X)
    assert (fast.stats.kernel, fast.stats.fallback) == (0, 0)
    fast(X)
    assert (fast.stats.kernel, fast.stats.fallback) == (1, 0)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_calls_the_operator(strict: bool) -> None:
    fast = optimized()
    fast(X)
    program = torch.export.export(torch.nn.Sequential(fast), (X,), strict=strict)
    names = operators(program.graph_module)
    assert any("kernelpro.block" in name for name in names) and not any(
        "layer_norm" in name for name in names
    )
    assert torch.allclose(program.module()(X), fast(X), atol=1e-5)


def test_the_operator_passes_the_checks_of_torch() -> None:
    fast = optimized()
    spec = fast._kernelpro.factories[0].spec
    operator = getattr(torch.ops.kernelpro, f"block_{spec.digest}").default
    state = [t.detach() for t in (fast.w, fast.norm.weight, fast.norm.bias)]
    torch.library.opcheck(operator, ([X], state), test_utils=("test_schema", "test_faketensor"))


def test_patches_are_verified_and_undone() -> None:
    model = Model().eval()
    before, originals = model(X), [layer["block"] for layer in model.layers]
    keys = list(model.state_dict())
    patch = kernelpro.patch(model, {"layers.*.block": optimized()}, (X,))
    assert list(patch.modules) == [f"layers.{n}.block" for n in range(3)] and list(model.state_dict()) == keys
    assert torch.allclose(model(X), before, atol=1e-5)
    assert all(stats.kernel == 2 and not stats.fallback for stats in patch.stats.values()), patch
    patch.undo()
    assert [layer["block"] for layer in model.layers] == originals and torch.equal(model(X), before)


def test_modules_that_do_not_fit_are_named() -> None:
    fast = optimized()
    with pytest.raises(BadInput, match=r"layers.\*.blok: no such module; the model has layers"):
        kernelpro.patch(Model(), {"layers.*.blok": fast})
    with pytest.raises(BadInput, match=r"the kernel fits none of the modules: layers.0.block: "):
        kernelpro.patch(Model(32), {"layers.*.block": fast})
    with pytest.raises(BadInput, match="give a dict of names and optimized modules"):
        kernelpro.patch(Model(), fast)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="give an optimized module"):
        kernelpro.patch(Model(), {"layers.*.block": Block(16)})
    mixed = torch.nn.ModuleList([Block(16), Block(32)])
    with pytest.warns(FallbackWarning, match="not replaced: 1: "):
        assert list(kernelpro.patch(mixed, {"*": fast}).modules) == ["0"]


def test_modules_with_one_kernel_share_its_operator() -> None:
    (spec,) = winners.describe_winner(api.load_task(Block(16).eval(), [X]), [KERNEL], "cpu", None)
    called: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        called.extend(node.target for node in graph.graph.nodes if "kernelpro" in str(node.target))
        return graph.forward

    def compiled_module() -> Any:
        module = optimize_module(Block(16).eval(), winners.winner_factory(spec, KERNEL, None), False)
        return torch.compile(module, fullgraph=True, backend=backend)

    first = compiled_module()
    right = first(X)
    for _ in range(3):
        compiled_module()(X)
    assert torch.equal(first(X), right), "the operator in the graph is still there"
    assert len(called) == 4 and len(set(map(id, called))) == 1
