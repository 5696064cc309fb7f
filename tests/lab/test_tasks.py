"""Tasks: parameters, distributions, probes, work."""

from __future__ import annotations

import base64
import pickle
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from ramp import Ramp
from torch import nn

from kernelpro import api
from kernelpro.lab.judge.probes import PROBE_SEEDS, probe
from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.measure.rounding import MatrixRounding
from kernelpro.lab.tasks import examples, parameters, work
from kernelpro.lab.tasks.inputs import transform
from kernelpro.lab.tasks.reference import Reference
from kernelpro.pools import live_tasks
from kernelpro.pools.winners import describe_winner
from kernelpro.records import BadInput, Task


def test_the_size_of_a_model_is_known_without_drawing_numbers() -> None:
    program = """
import sys, torch
from torch import nn
from kernelpro.lab.tasks.reference import _parameter_bytes
class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size, generator=None))
        self.table, self.layer = nn.Embedding(3, size), nn.Linear(size, size, bias=False)
        nn.init.xavier_normal_(self.layer.weight)
assert _parameter_bytes(Model, [8]) == 4 * (64 + 24 + 64)
assert "torch._dynamo" not in sys.modules, "slow to import"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def task(forward: str, inputs: str = "[torch.randn(64, 128)]", init: str = "pass") -> Task:
    return Task(
        f"""
import functools, torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, *x):
        return {forward}
def get_inputs(): return {inputs}
def get_init_inputs(): return []
"""
    )


@pytest.mark.parametrize("mode", [work._WorkCounter, MatrixRounding])
def test_watching_operators_does_not_import_the_compiler(mode: type) -> None:
    assert not hasattr(mode.__torch_dispatch__, "__wrapped__")  # type: ignore[attr-defined]


def test_constants_become_the_same_numbers_whatever_they_are_called() -> None:
    with parameters.seeded_build(5):
        first = nn.LayerNorm(32)
    with parameters.seeded_build(5):
        other = nn.Linear(7, 9)
        weight, bias = nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32))
    assert torch.equal(first.weight, weight) and torch.equal(first.bias, bias)
    assert weight.std() > 0.05 and bias.std() > 0.05 and bool((weight > 0).all())
    assert nn.LayerNorm(32).weight.eq(1).all(), "outside, torch is as it was"
    assert other.weight.std() > 0


def test_constants_that_the_reference_does_not_have_are_kept() -> None:
    with parameters.seeded_build(5) as replaced:
        nn.LayerNorm(32)
    assert replaced == {((32,), 1.0), ((32,), 0.0)}
    with parameters.seeded_build(5, only=replaced):
        weight, mean = nn.Parameter(torch.ones(32)), nn.Parameter(torch.full((1, 32), 1 / 32))
        norm = nn.LayerNorm(16)
    assert weight.std() > 0.05
    assert mean.eq(1 / 32).all() and norm.weight.eq(1).all() and norm.bias.eq(0).all()


def test_batch_norm_statistics_are_not_trivial() -> None:
    with parameters.seeded_build(5):
        norm = nn.BatchNorm2d(8)
    assert (
        norm.running_var is not None and bool((norm.running_var > 0).all()) and norm.running_var.std() > 0.01
    )
    assert norm.running_mean is not None and norm.running_mean.std() > 0.01


def test_parameters_by_name_by_seed_and_none() -> None:
    state = {"norm.weight": torch.full((4,), 3.0), "norm.bias": torch.full((4,), 4.0)}
    same = nn.Module()
    same.norm = nn.LayerNorm(4)
    assert parameters.load_reference_state(same, state) == "by name" and same.norm.weight[0] == 3
    renamed = nn.Module()
    renamed.scale = nn.LayerNorm(4)
    assert parameters.load_reference_state(renamed, state) == "by seed" and renamed.scale.weight[0] == 1
    assert parameters.load_reference_state(renamed, {}) == "none"
    assert parameters.load_reference_state(same, state | {"steps": torch.tensor(7)}) == "by name", (
        "a counter may be missing"
    )
    assert parameters.load_reference_state(renamed, {"table": torch.arange(4)}) == "by seed", (
        "nothing of it was given"
    )


@pytest.mark.parametrize(
    "name",
    [
        "x3",
        "x0.01",
        "negated",
        "spikes",
        "odd rows",
        "mild spikes",
        "far from zero",
        "infinities",
        "negative infinities",
    ],
)
def test_distributions_leave_zeros_and_repeat(name: str) -> None:
    x = torch.randn(64, 64).tril()
    a, b = transform([x, torch.arange(3)], name, 9), transform([x, torch.arange(3)], name, 9)
    assert torch.equal(a[0], b[0]) and torch.equal(a[1], torch.arange(3))
    assert not torch.equal(a[0], x) and bool(((a[0] == 0) == (x == 0)).all())


def test_odd_rows_have_an_offset_or_are_constant() -> None:
    x = torch.randn(4096, 64)
    (odd,) = transform([x], "odd rows", 9)
    constant, offset = (odd == odd[:, :1]).all(1), (odd - x).abs().mean(1) > 100
    for share in (constant.double().mean(), offset.double().mean()):
        assert 0.2 < share < 0.3
    assert bool((odd[constant][:, 0].abs().log2() % 1 == 0).all()), "their sums are exact"
    assert odd[offset].mean(1).sign().unique().tolist() == [-1, 1]
    assert torch.equal(odd[~constant & ~offset], x[~constant & ~offset])


def test_far_from_zero_all_values_have_the_same_offset() -> None:
    x = torch.randn(4096, 64)
    (far,) = transform([x], "far from zero", 9)
    offsets = far - x
    assert bool(offsets.abs().gt(1000).all()) and float(offsets.max() - offsets.min()) < 1e-3


def test_padded_rows_are_zero_or_start_or_end_with_zeros() -> None:
    x = torch.randn(4096, 64)
    inputs = [transform([x], "padded rows", 9)[0] for _ in range(2)]
    zero = inputs[0] == 0
    assert torch.equal(*inputs) and torch.equal(inputs[0][~zero], x[~zero])
    empty, head, tail = zero.all(1), zero[:, 0], zero[:, -1]
    assert 0.2 < empty.double().mean() < 0.3
    for padded in (head & ~empty, tail & ~empty):
        assert 0.1 < padded.double().mean() < 0.15
    assert bool((zero[:, 1:] == zero[:, :-1]).sum(1).ge(62).all()), "zeros lie together"


def test_infinities_have_the_sign_of_what_was_there_unless_all_are_negative() -> None:
    x = torch.randn(64, 64)
    (both,), (negative,) = (transform([x], name, 9) for name in ("infinities", "negative infinities"))
    where = both.isinf()
    assert 1 <= int(where.sum()) <= 8 and torch.equal(both[where].sign(), x[where].sign())
    assert torch.equal(negative.isinf(), where) and bool((negative[where] < 0).all())


def test_spikes_are_where_a_tensors_elements_are_however_it_lies_in_memory() -> None:
    x = torch.randn(2, 16, 8, 8)
    (plain,), (turned,) = (
        transform([given], "spikes", 9) for given in (x, x.to(memory_format=torch.channels_last))
    )
    assert torch.equal(plain, turned) and turned.is_contiguous(memory_format=torch.channels_last)
    changed = plain != x
    assert 1 <= int(changed.sum()) <= 8 and bool((plain[changed] / x[changed] >= 2**6 - 1e-3).all())


def test_functions_that_hold_parts_of_a_model_hold_those_of_the_copy() -> None:
    """As KernelBench's MiniGPTBlock has one."""
    holding = task(
        "self.f(x[0])", init="self.l = nn.Linear(128, 64); l = self.l; self.f = lambda given: l(given) + 1"
    )
    reference = Reference(holding, "cpu", 1)
    (x,) = reference.inputs(3)[1]
    half, again = reference.model(torch.float64), reference.model()
    assert half(x.double()).dtype == torch.float64 and torch.allclose(
        half(x.double()).float(), again(x), atol=1e-5
    )
    assert reference.model().f.__closure__[0].cell_contents is not again.l


@torch.no_grad()
def decorated(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.act = decorated  # it has a closure

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x * self.weight)


def test_a_module_that_exists_is_copied_whatever_it_holds() -> None:
    packed = live_tasks.pack_module(Held(), [[torch.randn(4, 8)]])
    task = Task(packed.source, packed.entry, "module", packed.entry, packed.payload)
    reference = Reference(task, "cpu", 1)
    wide, plain = reference.model(torch.float64), reference.model()
    assert wide is not plain and plain.weight.dtype == torch.float32 and wide.weight.dtype == torch.float64


def test_a_task_that_was_stored_before_tasks_had_shapes_keeps_its_inputs() -> None:
    packed = live_tasks.pack_module(Held(), [[torch.randn(1024, 8)]])
    inputs = {"module": Held(), "inputs": [torch.randn(1024, 8)], "init_inputs": []}
    payload = base64.b64encode(pickle.dumps(inputs)).decode()
    stored = Task(packed.source, packed.entry, "module", packed.entry, payload)
    (spec,) = describe_winner(stored, ["class ModelNew: pass"], "cpu", None)
    assert spec.inputs == ("tuple", (("tensor", (1024, 8), "float32", (8, 1)),)), "not 1,024 rows"


def test_inputs_come_from_the_seed_alone() -> None:
    reference = Reference(task("x[0] * 2"), "cpu", 1)
    assert torch.equal(reference.inputs(4)[1][0], reference.inputs(4)[1][0])
    assert not torch.equal(reference.inputs(4)[1][0], reference.inputs(5)[1][0])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Task("x = 1", name="t"), "task t: no class Model"),
        (Task("class Model: pass", name="t"), "task t: no function get_inputs"),
        (Task("def f(:", name="t"), "task t: syntax error in line 1"),
        (Task("import nowhere_to_be_found", name="t"), "task t: importing it raised ModuleNotFoundError"),
        (task("x[0]", init="raise ValueError('no')"), "Model raised ValueError: no"),
    ],
)
def test_broken_tasks_are_one_clear_line(broken: Task, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Reference(broken, "cpu", 1)


@pytest.mark.parametrize(
    ("forward", "inputs", "reason"),
    [
        ("x[0] * 0.0", "[torch.randn(64, 64)]", "zeros pass"),
        ("torch.ones_like(x[0]) * 3", "[torch.randn(64, 64)]", "constant"),
        ("x[0] * 1.0", "[torch.randn(64, 64)]", "copy of input 0"),
        ("x[0] @ torch.full((64,), 2.0).diag() + 1", "[torch.randn(64, 64)]", "affine map of input 0"),
        ("x[0] * 2 + x[1] * 1e-12", "[torch.randn(64, 64), torch.randn(64, 64)]", "affine map of input 0"),
        (
            "functools.reduce(lambda y, _: y * 1.001 + 1e-9 * torch.sin(y), range(50), x[0])",
            "[torch.randn(64, 64)]",
            "affine map",
        ),
        ("x[0].sort(-1).values", "[torch.rand(64, 64).sort(-1).values]", "copy of input 0"),
        ("x[0].cummax(-1).values", "[torch.rand(64, 64).sort(-1).values]", "copy of input 0"),
        ("torch.sign(torch.sin(1e9 * x[0]))", "[torch.randn(64, 64)]", "itself is so far off"),
        ("F.relu(x[0] - 2)", "[torch.rand(64, 64)]", "zeros pass"),
        ("F.relu(x[0] @ x[1] - 40)", "[torch.randn(16, 128), torch.randn(128, 8)]", "zero on . of 9 inputs"),
        ("F.relu(x[0] @ x[1]) * 0.0 + x[0]", "[torch.rand(64, 64), torch.rand(64, 64)]", "copy of input 0"),
        ("x[0][:, :64] + 1e-9 * x[0][:, 64:]", "[torch.randn(64, 128)]", "half of input 0 can be skipped"),
        ("F.dropout(x[0], 0.5, True)", "[torch.randn(64, 64)]", "random.*--mode eval"),
        ("F.softmax(x[0] * 0 + torch.arange(64.), -1)", "[torch.randn(64, 64)]", "other inputs"),
        ("(x[0] * 1e-9).mean() + 5.0", "[torch.rand(1000, 1000)]", "constant|can be skipped"),
    ],
)
def test_degenerate_tasks_are_found(forward: str, inputs: str, reason: str) -> None:
    found = probed(task(forward, inputs))
    assert found and re.search(reason, found), found


def probed(given: Task) -> str | None:
    reference = Reference(given, "cpu", 1)
    oracle = Oracle(reference, 1 << 26)
    return probe(
        oracle, Tolerance(oracle, "fp32", 2), list(range(3, 3 + PROBE_SEEDS)), work.count(reference, 5)[0]
    )


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("F.layer_norm(x[0], (128,))", "[torch.randn(64, 128)]"),
        ("x[0] * 2 + 1", "[torch.randn(64, 64)]"),
        ("F.relu(x[0])", "[torch.rand(64, 64)]"),
        ("F.hardtanh(x[0])", "[torch.rand(64, 64)]"),
        ("F.leaky_relu(x[0])", "[torch.rand(64, 64)]"),
        ("F.prelu(x[0], torch.tensor([0.25]))", "[torch.rand(64, 64)]"),
        ("torch.where(x[0] > 0, x[0], x[0].exp() - 1)", "[torch.rand(64, 64).t()]"),
        ("x[0].clamp(-10, 10)", "[torch.rand(64, 64)]"),
        ("F.softmax(x[0], -1)", "[torch.randn(64, 128)]"),
        ("x[0] @ x[1]", "[torch.randn(64, 128), torch.randn(128, 64)]"),
        ("F.mse_loss(x[0], x[1])", "[torch.rand(1000, 500), torch.rand(1000, 500)]"),
        ("x[0][:, -1]", "[torch.randn(64, 128, 8)]"),
        ("x[0].argmax(-1)", "[torch.randn(64, 128)]"),
    ],
)
def test_ordinary_tasks_can_be_scored(forward: str, inputs: str) -> None:
    assert probed(task(forward, inputs)) is None


@pytest.mark.parametrize("kept", [1 << 26, 0])
def test_a_question_stays_the_same_whatever_the_reference_does_with_it(kept: int) -> None:
    """Kept or made again; also where the reference writes to its inputs and they need no cast."""
    oracle = Oracle(
        Reference(task("x[0].add_(1) * 2", "[torch.randn(8, 8, dtype=torch.float64)]"), "cpu", 1), kept
    )
    first = [leaf.clone() for leaf in oracle.inputs(5)[1]]
    answer = oracle.truth(5)
    oracle.truth(6)
    assert torch.equal(oracle.inputs(5)[1][0], first[0]) and torch.equal(oracle.truth(5)[0], answer[0])
    assert torch.equal(answer[0], (first[0] + 1) * 2)


def test_work_counts_bytes_once_and_products_by_what_is_not_zero() -> None:
    dense, _ = work.count(
        Reference(task("x[0] @ x[1]", "[torch.randn(64, 32), torch.randn(32, 16)]"), "cpu", 1), 2
    )
    assert (dense.read_bytes, dense.written_bytes, dense.matrix_flops) == (
        4 * (64 * 32 + 32 * 16),
        4 * 64 * 16,
        2 * 64 * 32 * 16,
    )
    diagonal, _ = work.count(
        Reference(task("torch.diag(x[0]) @ x[1]", "[torch.rand(64) + 1, torch.randn(64, 64)]"), "cpu", 1), 2
    )
    assert diagonal.matrix_flops == 2 * 64 * 64


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_seeding_gives_what_torchs_own_gives(device: str) -> None:
    torch.zeros(1, device=device)
    parameters.seed_everything(11)
    found = torch.randn(5, device=device)
    torch.manual_seed(11)
    assert torch.equal(found, torch.randn(5, device=device))


def test_a_few_elements_may_differ_and_not_all() -> None:
    given = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    flipped, ranks = given.clone(), given.argsort()
    flipped[::40] *= -1
    near = examples.sample_outputs((given, ranks))
    assert not examples.describe_difference(near, examples.sample_outputs((flipped * 1.001, ranks)))
    assert not examples.describe_difference(near, examples.loads(examples.dumps(near)))
    assert "of output 0" in examples.describe_difference(near, examples.sample_outputs((given * 1.1, ranks)))
    assert "of output 1" in examples.describe_difference(
        near, examples.sample_outputs((given, given.argsort(descending=True)))
    )
    assert "shapes" in examples.describe_difference(near, examples.sample_outputs((given[:-1], ranks)))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_live_module_is_the_same_in_a_worker(device: str) -> None:
    """Its tensor that is no buffer goes to the device too."""
    given = api.load_task(Ramp(32), [torch.randn(96, 32)])
    assert given.outputs and Reference(given, device, 0).example_mismatch() == ""
    changed = given.source.replace("torch.sigmoid", "torch.tanh")
    assert "of output 0" in Reference(replace(given, source=changed), device, 0).example_mismatch()
