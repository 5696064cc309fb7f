"""Kernels of the playbook that read sizes from their inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from playbook_harness import make_task, operator_graph_of

from kernelpro.authors.author import Assignment, NoProposal
from kernelpro.authors.playbook.codegen.sizes import generalize
from kernelpro.authors.playbook.cpp import backend as cpp
from kernelpro.authors.playbook.forms import programs_of
from kernelpro.authors.playbook.fusion.fuser import fuse
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.authors.playbook.triton import backend as triton
from kernelpro.dropin.kernel import load_source
from kernelpro.records import Shape

SOFTMAX = "torch.softmax(F.gelu(a), -1), a.sum(-1)"


def sources(backend: Any, forward: str, *inputs: str) -> tuple[list[str], list[Any]]:
    programs = [fuse(operator_graph_of(make_task(forward, text))) for text in inputs]
    design = backend.seeds(programs[0])[-1].design
    return [backend.write(program, design) for program in programs], programs


def model(source: str, name: str) -> Any:
    return load_source(source, name).ModelNew()  # type: ignore[attr-defined]


def test_a_kernel_of_two_batch_sizes_serves_a_third() -> None:
    written, programs = sources(cpp.BACKEND, SOFTMAX, "torch.randn(32, 40)", "torch.randn(23, 40)")
    general = generalize(written, programs, free_only=True)
    assert general and "o0 < size0" in general and "size0 = inputs[0].shape[0]" in general
    for rows in (32, 23, 5):
        x = torch.randn(rows, 40)
        weights, sums = model(general, f"sizes_{rows}")(x)
        assert torch.allclose(weights, torch.softmax(torch.nn.functional.gelu(x), -1), atol=1e-6)
        assert torch.allclose(sums, x.sum(-1), atol=1e-5)


def test_sizes_inside_of_a_row_are_free_only_outside_of_kernels() -> None:
    pair = "torch.randn(8, 32)", "torch.randn(8, 48)"
    written, programs = sources(cpp.BACKEND, "a * 2 + 1", *pair)
    general = generalize(written, programs, free_only=False)
    assert general
    x = torch.randn(8, 80)
    assert torch.equal(model(general, "sizes_inner")(x), x * 2 + 1)
    written, programs = sources(cpp.BACKEND, SOFTMAX, *pair)
    assert generalize(written, programs, free_only=True) is None, "the length of a row matters to its loops"


def test_a_mean_over_the_batch_is_no_multiple_of_it() -> None:
    written, programs = sources(cpp.BACKEND, "a - a.mean(0)", "torch.randn(32, 40)", "torch.randn(23, 40)")
    assert generalize(written, programs, free_only=True) is None


def test_triton_gets_the_size_for_its_grid() -> None:
    written, programs = sources(triton.BACKEND, SOFTMAX, "torch.randn(64, 128)", "torch.randn(32, 128)")
    general = generalize(written, programs, free_only=True)
    assert general and "stage0[(size0,)]" in general and "torch.empty((size0, 128)" in general


def test_functions_on_both_sides_of_a_library_call_get_the_size() -> None:
    first, second = (
        make_task(
            "self.l(F.layer_norm(a, (48,))).tanh() + a",
            f"torch.randn({rows}, 48)",
            "torch.manual_seed(1); self.l = nn.Linear(48, 48)",
        )
        for rows in (32, 23)
    )
    programs = [programs_of(operator_graph_of(task), "cpu")["library"] for task in (first, second)]
    design = replace(cpp.BACKEND.seeds(programs[0])[0].design, form="library")
    general = generalize([cpp.BACKEND.write(p, design) for p in programs], programs, free_only=True)
    assert general and "run0(long size0, " in general and "lib.run1(size0, " in general
    fast = model(general, "sizes_library")
    generator = torch.Generator().manual_seed(1)
    for (
        parameter
    ) in fast.parameters():  # a kernel's own are uninitialized memory until the judge copies weights
        parameter.data.uniform_(-0.1, 0.1, generator=generator)
    x = torch.randn(9, 48)
    normed = torch.nn.functional.layer_norm(x, (48,))
    expected = torch.nn.functional.linear(normed, fast.l.weight, fast.l.bias).tanh() + x
    assert torch.allclose(fast(x), expected, atol=1e-6)


def test_a_task_with_several_shapes_gets_a_kernel_for_all_or_none() -> None:
    first, second = (make_task(SOFTMAX, f"torch.randn({rows}, 40)") for rows in (32, 200))
    task = replace(first, shapes=(Shape(), Shape(2.0)))
    assignment = Assignment(
        1,
        "seed",
        task,
        "cpu",
        "fp32",
        0.1,
        {},
        graph=operator_graph_of(first),
        other_graphs=(operator_graph_of(second),),
    )
    written = Playbook().seed_drafts(assignment)
    assert len(written) > 1 and all("size0" in draft.source for draft in written)
    third = [make_task("a - a.mean(0)", f"torch.randn({rows}, 40)") for rows in (32, 23)]
    graphs = [operator_graph_of(each) for each in third]
    with pytest.raises(NoProposal, match="differs in more than sizes"):
        Playbook().seed_drafts(replace(assignment, graph=graphs[0], other_graphs=(graphs[1],)))
