"""Recurrent layers as persistent kernels, run on the CPU with a process for each block."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_on_cpu import compiler
from playbook_harness import make_task, operator_graph_of

from kernelpro import runtime
from kernelpro.authors.author import Assignment, NoProposal
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.authors.playbook.recurrent.network import find_network
from kernelpro.records import Task

STATE = "torch.randn({n}, 3, 128)"


def network(cell: str, layers: int, options: str = "", states: int = 1, batch_first: bool = False) -> Task:
    count = layers * (2 if "bidirectional=True" in options else 1)
    hidden = "(b, c)" if states == 2 else "b"
    sizes = "3, 4, 24" if batch_first else "4, 3, 24"
    inputs = ", ".join([f"torch.randn({sizes})", *[STATE.format(n=count)] * states])
    forward = (
        f"y, z = self.m(a, {hidden}); return self.v(y[:, -1, :]), y, z{'[0], z[1]' if states == 2 else ''}"
    )
    wide = 256 if "bidirectional=True" in options else 128
    create = f"self.m = nn.{cell}(24, 128, {layers}, batch_first={batch_first}{options}); self.v = nn.Linear({wide}, 5)"
    return make_task(forward, inputs, create)


CASES = {
    "lstm of three layers": network("LSTM", 3, states=2, batch_first=True),
    "lstm of two directions": network("LSTM", 2, ", bidirectional=True", states=2),
    "gru of two layers": network("GRU", 2),
    "gru of two directions": network("GRU", 1, ", bidirectional=True", batch_first=True),
    "rnn without biases": network("RNN", 2, ", bias=False"),
}


def draft_of(task: Task, precision: Any = "tf32", target: Any = "cuda") -> str:
    assignment = Assignment(0, "seed", task, target, precision, 0.0, {}, graph=operator_graph_of(task))
    (draft,) = Playbook().trusted_designs(assignment)
    return draft.source


def shared(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.share_memory_()


@pytest.fixture
def build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[Any, Any, list[torch.Tensor]]]:
    """Builds the model of a case, its kernel and inputs; what kernels write is shared between processes."""
    monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(tmp_path))
    monkeypatch.setattr(runtime, "cuda", compiler(tmp_path))

    def build(name: str) -> tuple[Any, Any, list[torch.Tensor]]:
        names: dict[str, Any] = {}
        exec(CASES[name].source, names)
        torch.manual_seed(1)
        model, inputs = names["Model"](*names["get_init_inputs"]()), names["get_inputs"]()
        candidate: dict[str, Any] = {}
        exec(draft_of(CASES[name]), candidate)
        kernel = candidate["ModelNew"]()
        kernel.load_state_dict(model.state_dict())
        full, empty_like = torch.full, torch.empty_like
        monkeypatch.setattr(torch, "full", lambda *a, **k: shared(full(*a, **k)))
        monkeypatch.setattr(torch, "empty_like", lambda *a, **k: shared(empty_like(*a, **k)))
        return model, kernel, inputs

    return build


LONG = ("lstm of two directions",)
"""The other LSTM and the other network of two directions remain in `make test`."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in CASES]
)
def test_all_steps_are_right(name: str, build: Callable[..., Any]) -> None:
    model, kernel, inputs = build(name)
    with torch.no_grad():
        for _ in range(2):  # nothing of an earlier call remains
            for output, expected in zip(kernel(*inputs), model(*inputs), strict=True):
                torch.testing.assert_close(output, expected, atol=4e-3, rtol=0)
            inputs = [2 * x for x in inputs]


def test_sequences_with_nan_end_as_in_torch(build: Callable[..., Any]) -> None:
    """Blocks wait for values that are not a certain NaN; the kernel never stores that one."""
    model, kernel, inputs = build("gru of two layers")
    inputs[0].view(torch.int32)[1, 2, 0] = -1
    with torch.no_grad():
        for output, expected in zip(kernel(*inputs), model(*inputs), strict=True):
            torch.testing.assert_close(output, expected, atol=4e-3, rtol=0, equal_nan=True)
            assert output.isnan().any()


def test_another_batch_size_is_left_to_torch(build: Callable[..., Any]) -> None:
    model, kernel, (x, h, c) = build("lstm of three layers")
    inputs = (x[:2].contiguous(), h[:, :2].contiguous(), c[:, :2].contiguous())
    with torch.no_grad():
        for output, expected in zip(kernel(*inputs), model(*inputs), strict=True):
            torch.testing.assert_close(output, expected)


def test_layers_of_one_direction_share_a_launch() -> None:
    expected = {"lstm of three layers": 3, "lstm of two directions": 1, "gru of two layers": 2}
    for name, layers in expected.items():
        found = find_network(operator_graph_of(CASES[name]))
        assert found and found.layers_at_once == layers


def sized(cell: str, hidden: int, batch: int, options: str = "") -> Task:
    inputs = f"torch.randn(4, {batch}, 24), torch.randn(2, {batch}, {hidden})"
    return make_task("self.m(a, b)[0]", inputs, f"self.m = nn.{cell}(24, {hidden}, 2{options})")


@pytest.mark.parametrize(
    "task",
    [
        sized("GRU", 96, 3),
        sized("GRU", 2048, 3),
        sized("GRU", 128, 17),
        sized("GRU", 128, 3, ", dropout=0.5"),
    ],
    ids=["units that do not fill tiles", "too many units", "too many sequences", "random dropout"],
)
def test_what_has_no_kernel_is_refused(task: Task) -> None:
    with pytest.raises(NoProposal):
        find_network(operator_graph_of(task))


def test_exact_float32_and_cpus_have_no_such_kernel() -> None:
    """The products are in TF32."""
    task = CASES["gru of two layers"]
    for precision, target in (("fp32", "cuda"), ("fp32", "cpu")):
        graph = operator_graph_of(task)
        assignment = Assignment(0, "seed", task, target, precision, 0.0, {}, graph=graph)  # type: ignore[arg-type]
        assert Playbook().trusted_designs(assignment) == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_all_steps_are_right_on_a_gpu(name: str) -> None:
    names: dict[str, Any] = {}
    exec(CASES[name].source, names)
    model, inputs = (
        names["Model"](*names["get_init_inputs"]()).cuda(),
        [x.cuda() for x in names["get_inputs"]()],
    )
    candidate: dict[str, Any] = {}
    exec(draft_of(CASES[name]), candidate)
    kernel = candidate["ModelNew"]().cuda()
    kernel.load_state_dict(model.state_dict())
    with torch.no_grad():
        for output, expected in zip(kernel(*inputs), model(*inputs), strict=True):
            torch.testing.assert_close(output, expected, atol=4e-3, rtol=0)


def test_long_sequences_are_traced_at_once_and_torch_is_left_as_it_was() -> None:
    kernels = {name: dict(getattr(torch.ops.aten, name).input.py_kernels) for name in ("lstm", "gru")}
    task = make_task("self.m(a)[1]", "torch.randn(100000, 3, 24)", "self.m = nn.GRU(24, 128)")
    found = find_network(operator_graph_of(task))
    assert found and found.steps == 100000
    for name, before in kernels.items():
        assert getattr(torch.ops.aten, name).input.py_kernels == before
    assert torch.nn.GRU(2, 3)(torch.ones(4, 1, 2))[0].isfinite().all()
