"""Which choices the playbook skips, orders without findings, and languages that cannot write a task."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from playbook_harness import make_task, operator_graph_of

from kernelpro.authors.author import (
    Assignment,
    Draft,
    KnownCandidate,
    NoMoreProposals,
    NoProposal,
    source_fingerprint,
)
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.authors.playbook.schedule.design import parse_design
from kernelpro.records import Action, Finding, Gain, Hardware, Severity, Target, Task

NORM = make_task("F.layer_norm(a, (512,))", "torch.randn(512, 512)")


def make_assignment(
    task: Task, target: Target = "cpu", parent: str = "", action: Action = "seed", attempt: int = 0
) -> Assignment:
    known = KnownCandidate(1, parent, "", None) if parent else None
    return Assignment(
        1, action, task, target, "fp32", 0.1, {}, attempt=attempt, graph=operator_graph_of(task), parent=known
    )


def all_drafts(assignment: Assignment, author: Playbook | None = None) -> list[Draft]:
    """All drafts, one attempt after another, until there is no proposal."""
    drafts: list[Draft] = []
    try:
        while True:
            drafts.append(asyncio.run((author or Playbook()).write(replace(assignment, attempt=len(drafts)))))
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
def test_moves_and_fallbacks_produce_new_sources(forward: str) -> None:
    task = make_task(forward, "torch.randn(512, 512)")
    seeds = all_drafts(make_assignment(task))
    assert (
        len({source_fingerprint(seed.source) for seed in seeds})
        == len(seeds)
        == Playbook().design_count(make_assignment(task))
    )
    for seed in seeds:
        for action in ("improve", "debug"):
            drafts = all_drafts(make_assignment(task, parent=seed.source, action=action))
            assert len({source_fingerprint(draft.source) for draft in (seed, *drafts)}) == len(drafts) + 1


def test_sources_of_other_branches_are_skipped() -> None:
    parent = all_drafts(make_assignment(NORM))[1].source
    assignment = make_assignment(NORM, parent=parent, action="improve")
    first, second, third, *_ = all_drafts(assignment)
    codes = [source_fingerprint(draft.source) for draft in (first, second)]
    assert (
        asyncio.run(Playbook().write(replace(assignment, known_fingerprints=frozenset(codes[:1])))) == second
    )
    after = replace(assignment, attempt=1, known_fingerprints=frozenset(codes))
    assert asyncio.run(Playbook().write(after)) == third, "attempts count skipped drafts"


def test_fixed_and_random_order() -> None:
    parent = all_drafts(make_assignment(NORM))[1].source
    assignment = make_assignment(NORM, parent=parent, action="improve")
    with_findings = replace(
        assignment, findings=(Finding("cpu_imbalance", "kernel", "major", (), "c", ("a",), Gain(2.0, "h")),)
    )  # type: ignore[arg-type]
    fixed = all_drafts(with_findings, Playbook("fixed"))
    assert fixed == [replace(draft, author="playbook:fixed") for draft in all_drafts(assignment)]
    assert all_drafts(with_findings)[0].diagnostic == "cpu_imbalance" and not any(
        draft.diagnostic for draft in fixed
    )

    def order(task: Assignment, seed: int = 0) -> list[str]:
        return [draft.plan for draft in all_drafts(task, Playbook("random", seed))]

    assert order(assignment) == order(assignment)
    assert len({tuple(order(assignment, seed)) for seed in range(6)}) > 2
    others = [replace(assignment, task=replace(NORM, source=NORM.source + "\n" * n)) for n in range(6)]
    assert len({tuple(order(other)) for other in others}) > 2
    others = [replace(assignment, parent=KnownCandidate(number, parent, "", None)) for number in range(6)]
    assert len({tuple(order(other)) for other in others}) > 2


def test_wgmma_is_written_for_devices_that_have_it() -> None:
    task = make_task("F.gelu(a @ b.t())", "torch.randn(256, 64), torch.randn(128, 64)")
    base = replace(make_assignment(task, "cuda"), precision="tf32", languages=("cuda",))
    for capability, expected in (("9.0", True), ("8.0", False), ("10.0", False), ("", False)):
        assignment = replace(base, hardware=Hardware(facts={"capability": capability}))
        sources = [draft.source for draft in Playbook().seed_drafts(base)]
        parent = KnownCandidate(1, next(s for s in sources if "mma<TF32>(acc" in s), "", None)
        improved = all_drafts(replace(assignment, action="improve", parent=parent))
        for drafts in (Playbook().seed_drafts(assignment), improved):
            assert any("wgmma_tf32(" in draft.source for draft in drafts) == expected, capability


def test_energy_findings_rank_between_large_and_small_gains() -> None:
    def finding(tool: str, factor: float, severity: Severity, objective: str = "energy") -> Finding:
        return Finding(
            tool, "kernel", severity, (), "it is so", ("a",), Gain(factor, "by counting"), objective=objective
        )  # type: ignore[arg-type]

    task = make_task("F.gelu(a)", "torch.randn(512, 512)")
    parent = all_drafts(replace(make_assignment(task, "cuda"), languages=("triton",)))[0].source
    assignment = make_assignment(task, "cuda", parent=parent, action="improve")
    costly, small = (
        finding("energy_costly_math", 1.1, Severity.MEDIUM),
        finding("dram_roof", 1.05, Severity.LOW, "speed"),
    )
    large = finding("narrow_access", 1.5, Severity.HIGH, "speed")

    def first(*findings: Finding) -> Draft:
        return asyncio.run(Playbook().write(replace(assignment, findings=findings)))

    assert first(small).diagnostic == "dram_roof" and first(small, costly).diagnostic == "energy_costly_math"
    assert first(large, small, costly).diagnostic == "narrow_access"
    draft = first(small, costly)
    assert (
        parse_design(draft.source).math == "approximate"
        and draft.hypothesis == "it is so. Expected: 9% less energy (by counting)."
    )
    assert not draft.expected_speedup, "an energy finding promises no speed-up"
    assert first(large).expected_speedup == 1.5


# --- unsupported tasks --------------------------------------------------------------------------------


def test_other_languages_are_used_if_one_cannot_write_the_task() -> None:
    task = make_task("a.tanh()", "torch.randn(64, 64).double()")
    drafts = all_drafts(make_assignment(task, "cuda"))
    assert drafts and {parse_design(draft.source).language for draft in drafts} == {"cuda"}
    with pytest.raises(NoProposal, match="the playbook has no tanh of float64 for Triton"):
        asyncio.run(Playbook().write(replace(make_assignment(task, "cuda"), languages=("triton",))))


def test_the_reason_for_no_design_is_reported() -> None:
    product = replace(
        make_assignment(make_task("a @ a", "torch.randint(0, 9, (64, 64))"), "cuda"), languages=("cuda",)
    )
    with pytest.raises(NoProposal, match="the playbook has no CUDA matrix product of int64 and int64"):
        asyncio.run(Playbook().write(product))
    assert Playbook().design_count(product) == 1, "so that write is called and reports the reason"
    unread = replace(
        make_assignment(NORM), graph=None, graph_error="it returns something other than a tensor"
    )
    with pytest.raises(NoMoreProposals, match=r"could not be read: it returns something other than a tensor"):
        asyncio.run(Playbook().write(unread))
