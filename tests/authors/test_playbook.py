"""The playbook as an author: fusion into stages, designs, moves, and when it has no proposal."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from playbook_harness import KernelChecker, make_task, operator_graph_of, program_of

from kernelpro.authors.author import Assignment, Draft, KnownCandidate, NoProposal
from kernelpro.authors.by_name import create_author
from kernelpro.authors.playbook.cpp.backend import BACKEND
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, flatten, reshape, variable
from kernelpro.authors.playbook.ir.stages import Program, ReduceStep, StoreStep
from kernelpro.authors.playbook.playbook import Order, Playbook
from kernelpro.authors.playbook.schedule.design import Design, parse_design
from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab.tuning import tunables
from kernelpro.records import Action, BadInput, Finding, Gain, RunConfig, Task

CHAIN = make_task(
    "F.layer_norm(a + b, (64,)).softmax(-1) * torch.sigmoid(b)", "torch.randn(8, 64), torch.randn(8, 64)"
)
COLUMNS = make_task("a.exp().cumsum(0)", "torch.randn(32, 40)")
LINEAR = make_task("F.gelu(self.l(a))", "torch.randn(32, 40)", "self.l = nn.Linear(40, 24)")
ONE_ROW = make_task("F.softmax(a, 0), a.amax()", "torch.randn(40)")


def finding(tool: str, factor: float = 2.0) -> Finding:
    return Finding(tool, "kernel", "major", (), f"{tool} fired", ("do something",), Gain(factor, "estimate"))


def make_assignment(
    task: Task,
    action: Action = "seed",
    attempt: int = 0,
    parent: str = "",
    findings: tuple[Finding, ...] = (),
    **more: object,
) -> Assignment:
    known = KnownCandidate(1, parent, "", None) if parent else None
    assignment = Assignment(
        1,
        action,
        task,
        "cpu",
        "fp32",
        0.1,
        {},
        attempt=attempt,
        graph=operator_graph_of(task),
        parent=known,
        findings=findings,
    )
    return replace(assignment, **more)  # type: ignore[arg-type]


def write(assignment: Assignment, order: Order = "findings") -> Draft:
    return asyncio.run(Playbook(order).write(assignment))


# --- fusion -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "stages"),
    [
        (CHAIN, 1),
        (COLUMNS, 1),
        (LINEAR, 1),
        (make_task("F.cross_entropy(a, b)", "torch.randn(8, 30), torch.randint(0, 30, (8,))"), 1),
        (make_task("F.mse_loss(a.sigmoid(), b)", "torch.randn(8, 30), torch.randn(8, 30)"), 1),
        (make_task("F.group_norm(a, 2).relu() * 2", "torch.randn(3, 4, 5, 6)"), 1),
        (make_task("self.l(a).softmax(-1)", "torch.randn(32, 40)", "self.l = nn.Linear(40, 24)"), 1),
        (make_task("a / a.sum()", "torch.randn(8, 30)"), 2),
        (make_task("a.softmax(-1).sum(0)", "torch.randn(8, 30)"), 2),
        (make_task("F.scaled_dot_product_attention(a, a, a)", "torch.randn(1, 2, 16, 8)"), 2),
        (
            make_task(
                "torch.cat([a[:, :8] * b - a[:, 8:] * b, a[:, 8:] * b + a[:, :8] * b], 1)",
                "torch.randn(6, 16), torch.randn(8)",
            ),
            1,
        ),
        (make_task("torch.cat([a, b], 1)", "torch.randn(6, 16), torch.randn(6, 16)"), 2),
        (
            make_task(
                "self.c(F.pad(a, (3, 0)))", "torch.randn(2, 4, 20)", "self.c = nn.Conv1d(4, 4, 4, groups=4)"
            ),
            1,
        ),
        (make_task("F.pad(a, (3, 0)) * 2", "torch.randn(2, 4, 20)"), 2),
    ],
)
def test_fusible_operators_share_a_stage(task: Task, stages: int) -> None:
    assert len(program_of(task).stages) == stages


def test_outputs_are_stored_by_the_stage_that_computes_them() -> None:
    """Not by a stage that only has the same shape, which would need a temporary; and there are no unused temporaries."""
    pools = "F.avg_pool2d(a, 3, 1, 1), F.max_pool2d(-a.abs() - 5, 3, 1), F.max_pool2d(a, 2)"
    program = program_of(make_task(pools, "torch.randn(2, 3, 8, 8)"))
    assert [[type(step).__name__ for step in stage.steps] for stage in program.stages] == [
        ["ReduceStep", "StoreStep"],
        ["StoreStep"],
        ["ReduceStep", "StoreStep"],
        ["ReduceStep", "StoreStep"],
    ]
    assert len([tensor for tensor in program.tensors if tensor.role == "temporary"]) == 1


def test_later_stages_load_only_one_number_a_row() -> None:
    """A softmax whose result is transposed: its two numbers for each row are stored, not the softmax."""
    program = program_of(make_task("a.softmax(-1).t().contiguous()", "torch.randn(8, 30)"))
    assert {t.size for t in program.tensors if t.role == "temporary"} <= {8}


def test_loops_are_merged() -> None:
    (stage,) = program_of(
        make_task("a * 2 + b", "torch.randn(4, 5, 64, 128), torch.randn(4, 5, 64, 128)")
    ).stages
    (step,) = stage.steps
    assert len(stage.outer) == 1 and len(step.loops) == 1 and step.loops[0].extent == 4096
    (stage,) = program_of(make_task("a * b", "torch.randn(4, 5, 64, 128), torch.randn(128)")).stages
    assert [var.extent for var in stage.outer] == [4 * 5 * 64] and stage.steps[0].loops[0].extent == 128


def test_every_element_of_every_output_is_stored_once() -> None:
    program = program_of(
        make_task(
            "return torch.cat([a, b], 0), torch.cat([a * 2, b], 1), a.sum()",
            "torch.randn(5, 6), torch.randn(5, 6)",
        )
    )
    written = dict.fromkeys(program.outputs, 0)
    for stage in program.stages:
        for step in stage.steps:
            if isinstance(step, StoreStep) and step.tensor in written:
                written[step.tensor] += stage.rows * _size(step)
        for step in stage.epilogue:
            written[step.tensor] += 1
    assert written == {name: program.tensor(name).size for name in program.outputs}


def _size(step: StoreStep | ReduceStep) -> int:
    size = 1
    for var in step.loops:
        size *= var.extent
    return size


@pytest.mark.parametrize(
    ("task", "named"),
    [
        (make_task("torch.linalg.det(a)", "torch.randn(4, 4)"), "det"),
        (make_task("a.sort(-1)[0]"), "sort"),
        (make_task("F.dropout(a, 0.5, True)"), "random"),
        (make_task("torch.fft.fft(a).real"), "complex"),
    ],
)
def test_unsupported_operators_are_named(task: Task, named: str) -> None:
    with pytest.raises(NoProposal, match=named):
        program_of(task)


def test_index_expressions_agree_with_numbers() -> None:
    """Reshapes and their inverses, at every iteration of small loop nests."""
    rng = random.Random(1)
    shapes = [(2, 3, 4), (6, 4), (24,), (2, 12), (4, 6), (3, 8), (2, 2, 6), (1, 24)]
    for _ in range(60):
        here, there = rng.choice(shapes), rng.choice(shapes)
        loops = [LoopVar(f"i{place}", size) for place, size in enumerate(here)]
        moved = reshape([variable(var) for var in loops], here, there)
        back = reshape(moved, there, here)
        assert flatten(back, here) == flatten([variable(var) for var in loops], here)
        for point in itertools.product(*(range(size) for size in here)):
            at = dict(zip(loops, point, strict=True))
            place = 0
            for value, size in zip(point, here, strict=True):
                place = place * size + value
            assert _value(flatten(moved, there), at) == place
            assert all(low <= _value(i, at) <= high for i in moved for low, high in [i.bounds])


def _value(index: IndexExpr, at: dict[LoopVar, int]) -> int:
    total = index.constant
    for atom, factor in index.terms:
        if isinstance(atom, LoopVar):
            total += factor * at[atom]
        else:
            inner = _value(atom.dividend, at)  # type: ignore[union-attr]
            total += factor * (
                inner // atom.divisor if type(atom).__name__ == "Quotient" else inner % atom.divisor
            )  # type: ignore[union-attr]
    return total


# --- designs and moves -------------------------------------------------------------------------------------


def _reachable(program: Program) -> list[Design]:
    """Every design that moves lead to from the seeds."""
    designs = [seed.design for seed in BACKEND.seeds(program)]
    for design in designs:
        designs += [
            new
            for move in BACKEND.moves
            if (new := move.apply(program, design)) is not None and new not in designs
        ]
    return designs


@pytest.mark.parametrize(
    "task", [CHAIN, COLUMNS, LINEAR, ONE_ROW], ids=["chain", "columns", "linear", "one row"]
)
def test_every_reachable_design_round_trips_through_its_source(task: Task) -> None:
    program = program_of(task)
    designs = _reachable(program)
    assert len(designs) >= 4
    for design in designs:
        source = BACKEND.write(program, design)
        assert parse_design(source) == design
        tunables.parse(source)


def test_tuned_values_are_parsed() -> None:
    source = write(make_assignment(CHAIN, attempt=1)).source
    declared = tunables.parse(source)
    assert "LANES0" in declared.names
    tuned = tunables.freeze(source, {"LANES0": 32})
    assert parse_design(tuned).stages[0].lanes == 32


def test_moves_name_existing_diagnostics() -> None:
    assert {tool for move in BACKEND.moves for tool in move.diagnostics} <= registry().keys()


# --- the author --------------------------------------------------------------------------------------------


def test_seeds_are_distinct_and_finite() -> None:
    sources = []
    with pytest.raises(NoProposal, match="has written all of its"):
        for attempt in range(10):
            sources.append(write(make_assignment(CHAIN, attempt=attempt)).source)
    assert len(sources) >= 2 and len(set(sources)) == len(sources)


def test_the_first_finding_chooses_the_move() -> None:
    plain = write(make_assignment(CHAIN)).source
    scalar = write(
        make_assignment(
            CHAIN, "improve", 0, plain, (finding("cpu_scalar_code", 3.0), finding("cpu_math_calls"))
        )
    )
    assert (
        scalar.diagnostic == "cpu_scalar_code"
        and scalar.expected_speedup == 3.0
        and "fired" in scalar.hypothesis
    )
    assert parse_design(scalar.source).stages[0].lanes > 1 and parse_design(scalar.source).math == "library"
    calls = write(
        make_assignment(CHAIN, "improve", 0, plain, (finding("cpu_math_calls"), finding("cpu_scalar_code")))
    )
    assert calls.diagnostic == "cpu_math_calls" and parse_design(calls.source).math == "fast"


def test_findings_without_a_move_do_not_change_the_order() -> None:
    plain = write(make_assignment(CHAIN)).source
    draft = write(make_assignment(CHAIN, "improve", 0, plain, (finding("cpu_call_overhead"),)))
    assert (
        draft.diagnostic == "" and draft.source == write(make_assignment(CHAIN, "improve", 0, plain)).source
    )


def test_attempts_try_all_moves_in_turn() -> None:
    plain = write(make_assignment(COLUMNS)).source
    findings = (finding("cpu_strided_access"),)
    drafts = []
    with pytest.raises(NoProposal, match="no move is left"):
        for attempt in range(30):
            drafts.append(write(make_assignment(COLUMNS, "improve", attempt, plain, findings)))
    assert (
        drafts[0].diagnostic == "cpu_strided_access"
        and parse_design(drafts[0].source).stages[0].order == "strips"
    )
    assert len({draft.source for draft in drafts}) == len(drafts) >= 3


def test_the_same_assignment_gives_the_same_draft() -> None:
    plain = write(make_assignment(CHAIN)).source
    orders: tuple[Order, ...] = ("findings", "fixed", "random")
    for order in orders:
        draft = write(make_assignment(CHAIN, "improve", 1, plain, (finding("cpu_scalar_code"),)), order)
        assert draft == write(
            make_assignment(CHAIN, "improve", 1, plain, (finding("cpu_scalar_code"),)), order
        )


def test_random_order_ignores_findings() -> None:
    plain = write(make_assignment(CHAIN)).source
    findings = (finding("cpu_math_calls"),)
    drafts = [
        write(make_assignment(CHAIN, "improve", attempt, plain, findings), "random") for attempt in range(3)
    ]
    assert len({draft.source for draft in drafts}) == 3, "no move is made twice"
    assert {draft.diagnostic for draft in drafts} == {""}
    blind = [write(make_assignment(CHAIN, "improve", attempt, plain), "random") for attempt in range(3)]
    assert [draft.source for draft in drafts] == [draft.source for draft in blind]


def test_failed_designs_fall_back_to_simpler_ones() -> None:
    failed = write(make_assignment(CHAIN, attempt=1)).source
    first = parse_design(write(make_assignment(CHAIN, "debug", 0, failed)).source)
    assert first.math == "library" and first.stages == parse_design(failed).stages
    plain = write(make_assignment(CHAIN)).source
    with pytest.raises(NoProposal, match="simplest design"):
        write(make_assignment(CHAIN, "debug", 0, plain))


def test_a_missing_graph_is_reported() -> None:
    with pytest.raises(NoProposal, match="could not be read"):
        write(make_assignment(CHAIN, graph=None))


def test_gpu_products_use_the_precision_of_the_task() -> None:
    product = make_task("a @ b", "torch.randn(32, 32), torch.randn(32, 32)")
    exact, usual = (
        write(make_assignment(product, target="cuda", precision=precision)).source
        for precision in ("fp32", "tf32")
    )
    assert parse_design(exact).precision == "fp32" and parse_design(usual).precision == "tf32"


def test_kernels_of_other_authors_are_rejected() -> None:
    with pytest.raises(NoProposal, match="did not write"):
        write(make_assignment(CHAIN, "improve", 0, "class ModelNew: pass"))


def test_author_names(tmp_path: object) -> None:
    for name in ("playbook", "playbook:fixed", "playbook:random"):
        assert create_author(RunConfig(CHAIN, "cpu", name), tmp_path).name == name  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="use playbook or files:DIR"):
        create_author(RunConfig(CHAIN, "cpu", "playbook:other"), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"playbook:fixd \(did you mean playbook:fixed\?\)"):
        create_author(RunConfig(CHAIN, "cpu", "playbook:fixd"), tmp_path)  # type: ignore[arg-type]


def test_extrema_keep_nan(tmp_path: Path) -> None:
    """As in torch: whichever operand is NaN, and in reductions."""
    task = make_task(
        "torch.maximum(a, b), torch.minimum(a, b), a.relu(), a.clamp(-1, 1), a.amax(1), b.amin(0), a.amax()",
        "torch.randn(6, 40), torch.randn(6, 40)",
    )
    checker = KernelChecker(task, tmp_path)
    a, b = torch.randn(2, 6, 40)
    a[1, 3] = b[2, 5] = float("nan")
    expected = [
        torch.maximum(a, b),
        torch.minimum(a, b),
        a.relu(),
        a.clamp(-1, 1),
        a.amax(1),
        b.amin(0),
        a.amax(),
    ]
    for design in checker.designs():
        outputs = checker._candidate(BACKEND.write(checker.program, design))(a, b)
        for output, truth in zip(outputs, expected, strict=True):
            torch.testing.assert_close(output, truth, equal_nan=True)


@pytest.mark.parametrize(
    ("layer", "shape"), [("BatchNorm2d(6)", "8, 6, 24, 24"), ("GroupNorm(2, 6)", "4, 6, 24, 24")]
)
def test_variances_do_not_cancel_far_from_zero(layer: str, shape: str, tmp_path: Path) -> None:
    """Of columns and of several rows, within the judge's tolerance for each distribution of inputs."""
    task = make_task("self.n(a)", f"torch.randn({shape})", f"self.n = nn.{layer}")
    checker = KernelChecker(task, tmp_path)
    excesses = checker.excesses(BACKEND.write(checker.program, checker.designs()[0]))
    assert "far from zero" in excesses and max(excesses.values()) <= 1, excesses
