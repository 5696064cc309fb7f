"""What the playbook offers and passes over: choices that give no new code, orders without findings, languages that refuse."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from playing import graph, task

from kernelpro.authors.author import Assignment, Draft, KnownCandidate, NoProposal, NoMoreProposals, source_fingerprint
from kernelpro.authors.playbook.schedule.design import parse_design
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.records import Action, Finding, Gain, Severity, Target, Task

NORM = task("F.layer_norm(a, (512,))", "torch.randn(512, 512)")


def assignment(
    given: Task, target: Target = "cpu", parent: str = "", action: Action = "seed", attempt: int = 0
) -> Assignment:
    known = KnownCandidate(1, parent, "", None) if parent else None
    return Assignment(
        1, action, given, target, "fp32", 0.1, {}, attempt=attempt, graph=graph(given), parent=known
    )


def all_of(asked: Assignment, author: Playbook | None = None) -> list[Draft]:
    """One answer after the other, until there is none."""
    drafts: list[Draft] = []
    try:
        while True:
            drafts.append(asyncio.run((author or Playbook()).write(replace(asked, attempt=len(drafts)))))
    except NoProposal:
        return drafts


@pytest.mark.parametrize(
    "forward",
    [
        "a.softmax(-1)",
        "a.sum(0)",
        "F.linear(a, a)",
        "a.t().contiguous()",
        "F.max_pool1d(a, 3, 1, 1)",
        "a.amax()",
        "a.cumsum(-1)",
    ],
)
def test_moves_and_retreats_give_other_candidates(forward: str) -> None:
    given = task(forward, "torch.randn(512, 512)")
    seeds = all_of(assignment(given))
    assert (
        len({source_fingerprint(seed.source) for seed in seeds})
        == len(seeds)
        == Playbook().design_count(assignment(given))
    )
    for seed in seeds:
        for action in ("improve", "debug"):
            made = all_of(assignment(given, parent=seed.source, action=action))
            assert len({source_fingerprint(one.source) for one in (seed, *made)}) == len(made) + 1


def test_what_another_branch_has_come_to_is_passed_over() -> None:
    parent = all_of(assignment(NORM))[1].source
    asked = assignment(NORM, parent=parent, action="improve")
    first, second, third, *_ = all_of(asked)
    codes = [source_fingerprint(draft.source) for draft in (first, second)]
    assert asyncio.run(Playbook().write(replace(asked, known_fingerprints=frozenset(codes[:1])))) == second
    after = replace(asked, attempt=1, known_fingerprints=frozenset(codes))
    assert asyncio.run(Playbook().write(after)) == third, "the turn that was taken is not lost"


def test_an_order_without_findings_is_the_lists_or_that_of_seed_task_and_parent() -> None:
    parent = all_of(assignment(NORM))[1].source
    asked = assignment(NORM, parent=parent, action="improve")
    told = replace(
        asked, findings=(Finding("cpu_imbalance", "kernel", "major", (), "c", ("a",), Gain(2.0, "h")),)
    )  # type: ignore[arg-type]
    fixed = all_of(told, Playbook("fixed"))
    assert fixed == [replace(draft, author="playbook:fixed") for draft in all_of(asked)]
    assert all_of(told)[0].diagnostic == "cpu_imbalance" and not any(draft.diagnostic for draft in fixed)

    def order(given: Assignment, seed: int = 0) -> list[str]:
        return [draft.plan for draft in all_of(given, Playbook("random", seed))]

    assert order(asked) == order(asked)
    assert len({tuple(order(asked, seed)) for seed in range(6)}) > 2
    others = [replace(asked, task=replace(NORM, source=NORM.source + "\n" * n)) for n in range(6)]
    assert len({tuple(order(other)) for other in others}) > 2
    others = [replace(asked, parent=KnownCandidate(number, parent, "", None)) for number in range(6)]
    assert len({tuple(order(other)) for other in others}) > 2


def test_energy_comes_after_what_costs_much_time_and_before_small_gains() -> None:
    def finding(tool: str, factor: float, severity: Severity, objective: str = "energy") -> Finding:
        return Finding(
            tool, "kernel", severity, (), "it is so", ("a",), Gain(factor, "by counting"), objective=objective
        )  # type: ignore[arg-type]

    given = task("F.gelu(a)", "torch.randn(512, 512)")
    parent = all_of(replace(assignment(given, "cuda"), languages=("triton",)))[0].source
    asked = assignment(given, "cuda", parent=parent, action="improve")
    costly, small = (
        finding("energy_costly_math", 1.1, Severity.MEDIUM),
        finding("dram_roof", 1.05, Severity.LOW, "speed"),
    )
    large = finding("narrow_access", 1.5, Severity.HIGH, "speed")

    def first(*findings: Finding) -> Draft:
        return asyncio.run(Playbook().write(replace(asked, findings=findings)))

    assert first(small).diagnostic == "dram_roof" and first(small, costly).diagnostic == "energy_costly_math"
    assert first(large, small, costly).diagnostic == "narrow_access"
    lean = first(small, costly)
    assert (
        parse_design(lean.source).math == "approximate"
        and lean.hypothesis == "it is so. Expected: 9% less energy (by counting)."
    )
    assert not lean.expected_speedup, "of its time nothing was promised"
    assert first(large).expected_speedup == 1.5


# --- what cannot be written --------------------------------------------------------------------------------


def test_what_one_language_refuses_another_is_asked_for() -> None:
    given = task("a.tanh()", "torch.randn(64, 64).double()")
    drafts = all_of(assignment(given, "cuda"))
    assert drafts and {parse_design(draft.source).language for draft in drafts} == {"cuda"}
    with pytest.raises(NoProposal, match="tanh of float64: the playbook has none for Triton"):
        asyncio.run(Playbook().write(replace(assignment(given, "cuda"), languages=("triton",))))


def test_why_there_is_no_design_is_said() -> None:
    product = replace(assignment(task("a @ a", "torch.randint(0, 9, (64, 64))"), "cuda"), languages=("cuda",))
    with pytest.raises(NoProposal, match="products of int64 and int64: the playbook has none for CUDA"):
        asyncio.run(Playbook().write(product))
    assert Playbook().design_count(product) == 1, "whoever asks for it is told why"
    unread = replace(assignment(NORM), graph=None, no_graph="it returns something other than a tensor")
    with pytest.raises(NoMoreProposals, match=r"could not be read \(it returns something other than a tensor\)"):
        asyncio.run(Playbook().write(unread))
