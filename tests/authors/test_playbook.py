"""The playbook as an author: what it reads into stages, which design it writes, which move it makes, and when it has none."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace

import pytest
from playing import graph, program, task

from kernelpro.authors.author import Assignment, Draft, KnownCandidate, NoProposal
from kernelpro.authors.by_name import create_author
from kernelpro.authors.playbook.cpp.backend import BACKEND
from kernelpro.authors.playbook.schedule.design import Design, parse_design
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, flatten, reshape, variable
from kernelpro.authors.playbook.ir.stages import Program, ReduceStep, StoreStep
from kernelpro.authors.playbook.playbook import Order, Playbook
from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab.tuning import tunables
from kernelpro.records import Action, BadInput, Finding, Gain, RunConfig, Task

CHAIN = task(
    "F.layer_norm(a + b, (64,)).softmax(-1) * torch.sigmoid(b)", "torch.randn(8, 64), torch.randn(8, 64)"
)
COLUMNS = task("a.exp().cumsum(0)", "torch.randn(32, 40)")
LINEAR = task("F.gelu(self.l(a))", "torch.randn(32, 40)", "self.l = nn.Linear(40, 24)")
ONE_ROW = task("F.softmax(a, 0), a.amax()", "torch.randn(40)")


def finding(tool: str, factor: float = 2.0) -> Finding:
    return Finding(
        tool, "kernel", "major", (), f"{tool} speaks", ("do something",), Gain(factor, "so it was computed")
    )


def ask(
    given: Task,
    action: Action = "seed",
    attempt: int = 0,
    parent: str = "",
    findings: tuple[Finding, ...] = (),
    **more: object,
) -> Assignment:
    known = KnownCandidate(1, parent, "", None) if parent else None
    made = Assignment(
        1,
        action,
        given,
        "cpu",
        "fp32",
        0.1,
        {},
        attempt=attempt,
        graph=graph(given),
        parent=known,
        findings=findings,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def write(assignment: Assignment, order: Order = "findings") -> Draft:
    return asyncio.run(Playbook(order).write(assignment))


# --- reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "stages"),
    [
        (CHAIN, 1),
        (COLUMNS, 1),
        (LINEAR, 1),
        (task("F.cross_entropy(a, b)", "torch.randn(8, 30), torch.randint(0, 30, (8,))"), 1),
        (task("F.mse_loss(a.sigmoid(), b)", "torch.randn(8, 30), torch.randn(8, 30)"), 1),
        (task("F.group_norm(a, 2).relu() * 2", "torch.randn(3, 4, 5, 6)"), 1),
        (task("self.l(a).softmax(-1)", "torch.randn(32, 40)", "self.l = nn.Linear(40, 24)"), 1),
        (task("a / a.sum()", "torch.randn(8, 30)"), 2),
        (task("a.softmax(-1).sum(0)", "torch.randn(8, 30)"), 2),
        (task("F.scaled_dot_product_attention(a, a, a)", "torch.randn(1, 2, 16, 8)"), 2),
        (
            task(
                "torch.cat([a[:, :8] * b - a[:, 8:] * b, a[:, 8:] * b + a[:, :8] * b], 1)",
                "torch.randn(6, 16), torch.randn(8)",
            ),
            1,
        ),
        (task("torch.cat([a, b], 1)", "torch.randn(6, 16), torch.randn(6, 16)"), 2),
        (
            task(
                "self.c(F.pad(a, (3, 0)))", "torch.randn(2, 4, 20)", "self.c = nn.Conv1d(4, 4, 4, groups=4)"
            ),
            1,
        ),
        (task("F.pad(a, (3, 0)) * 2", "torch.randn(2, 4, 20)"), 2),
    ],
)
def test_operators_that_can_share_a_pass_share_a_stage(given: Task, stages: int) -> None:
    assert len(program(given).stages) == stages


def test_a_result_is_stored_where_it_is_made() -> None:
    """Not beside something else of its shape, for which it would have to be kept; and nothing is kept that nobody reads."""
    pools = "F.avg_pool2d(a, 3, 1, 1), F.max_pool2d(-a.abs() - 5, 3, 1), F.max_pool2d(a, 2)"
    read = program(task(pools, "torch.randn(2, 3, 8, 8)"))
    assert [[type(step).__name__ for step in stage.steps] for stage in read.stages] == [
        ["Reduce", "Store"],
        ["Store"],
        ["Reduce", "Store"],
        ["Reduce", "Store"],
    ]
    assert len([tensor for tensor in read.tensors if tensor.role == "temporary"]) == 1


def test_nothing_but_a_number_a_row_goes_through_memory() -> None:
    """A softmax whose result is wanted transposed: its two numbers a row are stored, not the softmax."""
    made = program(task("a.softmax(-1).t().contiguous()", "torch.randn(8, 30)"))
    assert {t.size for t in made.tensors if t.role == "temporary"} <= {8}


def test_loops_are_as_long_as_they_can_be() -> None:
    (stage,) = program(task("a * 2 + b", "torch.randn(4, 5, 64, 128), torch.randn(4, 5, 64, 128)")).stages
    (step,) = stage.steps
    assert len(stage.outer) == 1 and len(step.loops) == 1 and step.loops[0].extent == 4096
    (stage,) = program(task("a * b", "torch.randn(4, 5, 64, 128), torch.randn(128)")).stages
    assert [var.extent for var in stage.outer] == [4 * 5 * 64] and stage.steps[0].loops[0].extent == 128


def test_every_output_is_stored_once_and_every_element_of_it() -> None:
    made = program(
        task(
            "return torch.cat([a, b], 0), torch.cat([a * 2, b], 1), a.sum()",
            "torch.randn(5, 6), torch.randn(5, 6)",
        )
    )
    written = dict.fromkeys(made.outputs, 0)
    for stage in made.stages:
        for step in stage.steps:
            if isinstance(step, StoreStep) and step.tensor in written:
                written[step.tensor] += stage.rows * _size(step)
        for step in stage.epilogue:
            written[step.tensor] += 1
    assert written == {name: made.tensor(name).size for name in made.outputs}


def _size(step: StoreStep | ReduceStep) -> int:
    size = 1
    for var in step.loops:
        size *= var.extent
    return size


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (task("torch.linalg.det(a)", "torch.randn(4, 4)"), "det"),
        (task("a.sort(-1)[0]"), "sort"),
        (task("F.dropout(a, 0.5, True)"), "random"),
        (task("torch.fft.fft(a).real"), "complex"),
    ],
)
def test_what_is_outside_the_families_is_named(given: Task, named: str) -> None:
    with pytest.raises(NoProposal, match=named):
        program(given)


def test_index_arithmetic_agrees_with_numbers() -> None:
    """Reshapes there and back, at every point of small boxes of loops."""
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
            total += factor * (inner // atom.divisor if type(atom).__name__ == "Quotient" else inner % atom.divisor)  # type: ignore[union-attr]
    return total


# --- designs and moves -------------------------------------------------------------------------------------


def _reachable(made: Program) -> list[Design]:
    """Every design that moves lead to from the seeds."""
    found = [seed.design for seed in BACKEND.seeds(made)]
    for design in found:
        found += [
            new for move in BACKEND.moves if (new := move.apply(made, design)) is not None and new not in found
        ]
    return found


@pytest.mark.parametrize(
    "given", [CHAIN, COLUMNS, LINEAR, ONE_ROW], ids=["chain", "columns", "linear", "one row"]
)
def test_every_reachable_design_travels_in_its_candidate(given: Task) -> None:
    made = program(given)
    designs = _reachable(made)
    assert len(designs) >= 4
    for design in designs:
        source = BACKEND.write(made, design)
        assert parse_design(source) == design
        tunables.parse(source)


def test_what_tuning_found_is_read_back() -> None:
    source = write(ask(CHAIN, attempt=1)).source
    declared = tunables.parse(source)
    assert "LANES0" in declared.names
    tuned = tunables.freeze(source, {"LANES0": 32})
    assert parse_design(tuned).stages[0].lanes == 32


def test_moves_answer_tools_that_exist() -> None:
    assert {tool for move in BACKEND.moves for tool in move.diagnostics} <= registry().keys()


# --- the author --------------------------------------------------------------------------------------------


def test_seeds_differ_and_end() -> None:
    sources = []
    with pytest.raises(NoProposal, match="have been written"):
        for attempt in range(10):
            sources.append(write(ask(CHAIN, attempt=attempt)).source)
    assert len(sources) >= 2 and len(set(sources)) == len(sources)


def test_the_first_finding_chooses_the_move() -> None:
    plain = write(ask(CHAIN)).source
    scalar = write(
        ask(CHAIN, "improve", 0, plain, (finding("cpu_scalar_code", 3.0), finding("cpu_math_calls")))
    )
    assert scalar.diagnostic == "cpu_scalar_code" and scalar.expected_speedup == 3.0 and "speaks" in scalar.hypothesis
    assert parse_design(scalar.source).stages[0].lanes > 1 and parse_design(scalar.source).math == "library"
    calls = write(ask(CHAIN, "improve", 0, plain, (finding("cpu_math_calls"), finding("cpu_scalar_code"))))
    assert calls.diagnostic == "cpu_math_calls" and parse_design(calls.source).math == "fast"


def test_a_finding_that_no_move_answers_leaves_the_usual_order() -> None:
    plain = write(ask(CHAIN)).source
    draft = write(ask(CHAIN, "improve", 0, plain, (finding("cpu_call_overhead"),)))
    assert draft.diagnostic == "" and draft.source == write(ask(CHAIN, "improve", 0, plain)).source


def test_attempts_take_one_move_after_another_until_none_is_left() -> None:
    plain = write(ask(COLUMNS)).source
    told = (finding("cpu_strided_access"),)
    drafts = []
    with pytest.raises(NoProposal, match="no move is left"):
        for attempt in range(30):
            drafts.append(write(ask(COLUMNS, "improve", attempt, plain, told)))
    assert (
        drafts[0].advice == "cpu_strided_access" and parse_design(drafts[0].source).stages[0].order == "strips"
    )
    assert len({draft.source for draft in drafts}) == len(drafts) >= 3


def test_the_same_assignment_gives_the_same_draft() -> None:
    plain = write(ask(LINEAR)).source
    orders: tuple[Order, ...] = ("findings", "fixed", "random")
    for order in orders:
        one = write(ask(LINEAR, "improve", 1, plain, (finding("cpu_scalar_code"),)), order)
        assert one == write(ask(LINEAR, "improve", 1, plain, (finding("cpu_scalar_code"),)), order)


def test_the_random_one_does_not_look_at_findings() -> None:
    plain = write(ask(CHAIN)).source
    told = (finding("cpu_math_calls"),)
    drafts = [write(ask(CHAIN, "improve", attempt, plain, told), "random") for attempt in range(3)]
    assert len({draft.source for draft in drafts}) == 3, "no move is made twice"
    assert {draft.diagnostic for draft in drafts} == {""}
    blind = [write(ask(CHAIN, "improve", attempt, plain), "random") for attempt in range(3)]
    assert [draft.source for draft in drafts] == [draft.source for draft in blind]


def test_what_failed_is_written_again_with_more_care() -> None:
    failed = write(ask(CHAIN, attempt=1)).source
    first = parse_design(write(ask(CHAIN, "debug", 0, failed)).source)
    assert first.math == "library" and first.stages == parse_design(failed).stages
    plain = write(ask(CHAIN)).source
    with pytest.raises(NoProposal, match="most careful"):
        write(ask(CHAIN, "debug", 0, plain))


def test_what_it_lacks_is_said() -> None:
    with pytest.raises(NoProposal, match="could not be read"):
        write(ask(CHAIN, graph=None))


def test_the_precision_of_the_task_is_that_of_products_on_a_gpu() -> None:
    product = task("a @ b", "torch.randn(32, 32), torch.randn(32, 32)")
    exact, usual = (
        write(ask(product, target="cuda", precision=precision)).source for precision in ("fp32", "tf32")
    )
    assert parse_design(exact).precision == "fp32" and parse_design(usual).precision == "tf32"


def test_somebody_elses_kernel_is_not_touched() -> None:
    with pytest.raises(NoProposal, match="not the playbook's"):
        write(ask(CHAIN, "improve", 0, "class ModelNew: pass"))


def test_it_is_known_by_name(tmp_path: object) -> None:
    for name in ("playbook", "playbook:fixed", "playbook:random"):
        assert create_author(RunConfig(CHAIN, "cpu", name), tmp_path).name == name  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="playbook, team and files"):
        create_author(RunConfig(CHAIN, "cpu", "playbook:other"), tmp_path)  # type: ignore[arg-type]
