"""Forms of a task: algebra, library calls with fused kernels around them, and channels innermost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_on_cpu import compiler
from playbook_harness import KernelChecker, make_task, operator_graph_of

from kernelpro import runtime
from kernelpro.authors.author import Assignment, Draft, KnownCandidate, NoProposal
from kernelpro.authors.playbook.forms import PLAIN_FORMS, programs_of
from kernelpro.authors.playbook.playbook import BACKENDS, Playbook
from kernelpro.authors.playbook.schedule.design import parse_design
from kernelpro.records import Action, Target, Task

COLLAPSES = make_task(
    "x = (self.m(a) / 2).sum(1, keepdim=True); return torch.logsumexp(x, 1, keepdim=True) * 1.5",
    "torch.randn(20, 48)",
    "self.m = nn.Linear(48, 64)",
)
POOLED = make_task(
    "torch.mean(self.m(a) * 0.5, dim=[2, 3], keepdim=True)",
    "torch.randn(2, 16, 9, 10)",
    "self.m = nn.ConvTranspose2d(16, 24, 3, stride=2, padding=1, output_padding=1)",
)
NORMED = make_task(
    "self.n(F.relu(self.m(a) * 2)) + 1",
    "torch.randn(2, 16, 9, 9)",
    "self.m = nn.ConvTranspose2d(16, 32, 3, stride=2); self.n = nn.GroupNorm(4, 32)",
)
CHAIN = make_task(
    "return F.max_pool2d(torch.tanh(self.v(F.relu(self.m(a)))) + 1, 2)",
    "torch.randn(2, 16, 12, 12)",
    "self.m = nn.Conv2d(16, 20, 3, padding=1); self.v = nn.Conv2d(20, 24, 3, dilation=2)",
)
ATTENTION = make_task(
    "return F.gelu(self.m(F.scaled_dot_product_attention(a, b, c, is_causal=True)) + a)",
    ", ".join(["torch.randn(2, 3, 20, 32)"] * 3),
    "self.m = nn.Linear(32, 32)",
)
TASKS = {"collapses": COLLAPSES, "pooled": POOLED, "normed": NORMED, "chain": CHAIN, "attention": ATTENTION}


@pytest.fixture(autouse=True)
def _own_builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELPRO_BUILD_DIR", str(tmp_path))


def make_assignment(task: Task, action: Action, target: Target, language: str, **known: Any) -> Assignment:
    graph = operator_graph_of(task)
    return Assignment(0, action, task, target, "fp32", 0.0, {}, graph=graph, languages=(language,), **known)


def first_sources(task: Task, target: Target, language: str) -> dict[str, str]:
    """The first draft of each form."""
    sources: dict[str, str] = {}
    for draft in Playbook().seed_drafts(make_assignment(task, "seed", target, language)):
        sources.setdefault(parse_design(draft.source).form, draft.source)
    return sources


def checker_of(task: Task, target: Target, folder: Path) -> KernelChecker:
    return KernelChecker(
        task, folder, program=next(iter(programs_of(operator_graph_of(task), target).values()))
    )


@pytest.mark.parametrize("name", TASKS)
def test_every_form_is_within_the_judges_tolerance(name: str, tmp_path: Path) -> None:
    """On all distributions of inputs that the judge draws."""
    sources = first_sources(TASKS[name], "cpu", "cpp")
    assert ("library" in sources) is (name != "collapses")
    checker = checker_of(TASKS[name], "cpu", tmp_path)
    for form, source in sources.items():
        excesses = checker.excesses(source)
        assert max(excesses.values()) <= 1, (form, excesses)


@pytest.mark.parametrize("name", ["normed", "chain"])
def test_channels_last_is_correct_in_cuda(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "cuda", compiler(tmp_path_factory.mktemp("cuda")))
    sources = first_sources(TASKS[name], "cuda", "cuda")
    assert sources["channels_last"].count("torch.channels_last") == sources["channels_last"].count(
        "torch.conv"
    )
    checker = checker_of(TASKS[name], "cuda", tmp_path)
    for form in ("library", "channels_last"):
        assert max(checker.source_errors(sources[form])) < 8, form


def test_library_calls_are_declared_and_biases_fused() -> None:
    source = first_sources(CHAIN, "cpu", "cpp")["library"]
    assert "# library-calls: conv2d\n" in source
    assert source.count("torch.conv2d(") == 2 and "bias=" not in source


def test_a_task_that_is_one_library_call_has_no_library_form() -> None:
    task = make_task(
        "self.m(a)", "torch.randn(2, 16, 9, 9)", "self.m = nn.ConvTranspose2d(16, 32, 3, bias=False)"
    )
    assert list(programs_of(operator_graph_of(task), "cpu")) == ["own"]


def test_the_algebra_is_explained_in_the_source() -> None:
    source = first_sources(COLLAPSES, "cpu", "cpp")["own"]
    assert "- reduction before product: the sum of linear's results is one dot product per row" in source


def test_folded_weights_follow_their_parameters(tmp_path: Path) -> None:
    """Also an update that torch does not count as one: through `.data`."""
    checker = checker_of(POOLED, "cpu", tmp_path)
    model = checker._candidate(first_sources(POOLED, "cpu", "cpp")["own"])
    x = torch.randn(2, 16, 9, 10)
    with torch.no_grad():
        before = model(x)
        model.get_parameter("m.weight").data.mul_(2.0)
        model.get_parameter("m.bias").data.mul_(2.0)
        torch.testing.assert_close(model(x), 2 * before)


def test_a_failed_design_falls_back_to_the_task_as_given() -> None:
    """After the simpler designs of the same program."""

    def write(action: Action, attempt: int, **known: Any) -> Draft:
        assignment = make_assignment(COLLAPSES, action, "cpu", "cpp", attempt=attempt, **known)
        return asyncio.run(Playbook().write(assignment))

    seed = write("seed", 0)
    forms = []
    for attempt in range(10):
        try:
            draft = write("debug", attempt, parent=KnownCandidate(0, seed.source, seed.plan, None))
        except NoProposal:
            break
        forms.append(parse_design(draft.source).form)
    assert forms[-1] in PLAIN_FORMS


def test_only_gpu_backends_store_parts_of_a_result() -> None:
    """The phases of a transposed convolution reach beyond a result whose size the stride does not divide."""
    task = make_task(
        "self.m(a)", "torch.randn(2, 16, 9, 9)", "self.m = nn.ConvTranspose2d(16, 32, 3, stride=2)"
    )
    program = programs_of(operator_graph_of(task), "cuda")["implicit_gemm"]
    assert any(stage.has_guarded_stores for stage in program.stages)
    for backend in BACKENDS:
        design = backend.seeds(program)[0].design
        if backend.target == "cuda":
            assert "< 19" in backend.write(program, design)
        else:
            with pytest.raises(NoProposal, match="tiled products on a GPU"):
                backend.write(program, design)
    assert list(first_sources(task, "cuda", "triton"))[-1] == "implicit_gemm", "the library is faster here"


def test_only_cuda_writes_all_phases_of_a_transposed_convolution_together() -> None:
    task = make_task(
        "self.m(a)", "torch.randn(2, 16, 9, 9)", "self.m = nn.ConvTranspose2d(16, 32, 3, stride=2)"
    )
    assert next(iter(first_sources(task, "cuda", "cuda"))) == "joint_phases"
    assert "joint_phases" not in first_sources(task, "cuda", "triton")


def test_tiles_come_first_where_the_library_is_slow() -> None:
    for layer, shape, expected in (
        ("Conv3d(16, 32, 3)", "2, 16, 6, 6, 6", True),
        ("Conv2d(8, 32, 3)", "2, 8, 9, 9", True),
        ("Conv2d(32, 32, 3)", "2, 32, 9, 9", True),
        ("Conv2d(32, 32, 1)", "2, 32, 9, 9", False),
    ):
        task = make_task("F.relu(self.m(a))", f"torch.randn({shape})", f"self.m = nn.{layer}")
        first = next(iter(first_sources(task, "cuda", "triton")))
        assert (first == "implicit_gemm") is expected, layer


def test_tiles_of_convolutions_have_an_alignment_that_triton_sees() -> None:
    """With `first_k % channels` Triton 3.6 copies 4 bytes at a time instead of 16."""
    task = make_task("self.m(a)", "torch.randn(2, 64, 9, 9)", "self.m = nn.Conv2d(64, 32, 3, bias=False)")
    source = first_sources(task, "cuda", "triton")["implicit_gemm"]
    assert "(first_k - tap * 192) + tl.arange(0, TILE_K)" in source and "first_k %" not in source


def test_positions_of_windows_are_compared_with_bounds_by_tap() -> None:
    """Not a sum minus the padding with constants: ptxas drops the -1 of some of those (syntax.py)."""
    task = make_task(
        "self.m(a)", "torch.randn(2, 3, 9, 11)", "self.m = nn.Conv2d(3, 32, 3, padding=1, bias=False)"
    )
    source = first_sources(task, "cuda", "triton")["implicit_gemm"]
    assert " - 1 >= 0)" not in source and "% 11)) >= 1 - (" in source and "% 11)) < 12 - (" in source


def test_both_phases_of_a_transposed_convolution_are_stored_next_to_each_other() -> None:
    """The first design of tiles, where the last dimension has stride 2; a move leads there from the others."""
    layer = "self.m = nn.ConvTranspose2d(16, 32, 3, stride=2, padding=1, output_padding=1)"
    task = make_task("self.m(a)", "torch.randn(2, 16, 9, 8)", layer)
    source = first_sources(task, "cuda", "triton")["implicit_gemm"]
    store = next(line for line in source.splitlines() if "tl.store(out0" in line)
    assert "tl.reshape(tl.join(acc0, acc1)" in source and "+ ((cols) % 16)" in store
    assert parse_design(source).stages[-1].interleave


def test_only_masked_products_store_an_operand_transposed() -> None:
    shapes = "torch.randn(32, 48), torch.randn(48, 32)"
    assert "transposed" in first_sources(make_task("torch.triu(a @ b)", shapes), "cuda", "triton")
    assert "transposed" not in first_sources(make_task("F.relu(a @ b)", shapes), "cuda", "triton")
