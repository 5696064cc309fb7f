"""The first designs of a run race in one process on the device, and only the fastest are judged.

A judgement takes the device for seconds, a place in the race for a fraction of one. Only code that KernelPro
itself or a compiler wrote may race (`Author.trusted_designs`): designs share a process, and nothing there is
verified as the judge does it. The race decides what the judge sees first, never what is true.

Every design is a step of the run. Those that lost have no verdict (`NoVerdict.LOST_RACE`); their note says by
how much, or why they failed. They use up no candidate of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelpro.authors.author import Assignment, Author, Draft, source_fingerprint
from kernelpro.engine.profiling import SubmitJob
from kernelpro.engine.store import RunStore
from kernelpro.records import (
    Candidate,
    Job,
    RaceData,
    RacedDesign,
    RunConfig,
    Status,
    Step,
    StudyData,
    Task,
    TaskFacts,
)

_MAX_DESIGNS = 8
"""Designs of the author in a race; the first of each form and language come first. On an H200, of 11 problems
none had its fastest design after the eighth, and a design takes 0.1 to 0.5 s."""
_MAX_DESIGNS_OF_NETWORKS = 12
"""If some are CUDA graphs, which come after the first designs of all forms."""
_MAX_RATIO = 1.1
"""A design that takes longer, relative to the fastest, is not judged."""


async def race_designs(
    designs: Sequence[Draft],
    facts: TaskFacts,
    store: RunStore,
    config: RunConfig,
    submit: SubmitJob,
    report: Callable[[str], None],
) -> TaskFacts:
    """The facts with the results of a race between the compilers' code and the author's designs, stored."""
    sources = [seed.source for seed in facts.seeds] + [draft.source for draft in first_designs(designs)]
    unique: dict[str, str] = {}
    for source in sources:
        unique.setdefault(source_fingerprint(source), source)
    if len(unique) < 2:
        return facts
    candidates = tuple(Candidate(source, f"design {n}") for n, source in enumerate(unique.values(), 1))
    result = await submit(
        Job("race", "race", config.task, None, config.target, config.options, candidates=candidates)
    )
    if not isinstance(result.data, RaceData):
        report(f"no race between the first designs: {result.error}")
        return facts
    facts = replace(facts, race=dict(zip(unique, result.data.designs, strict=True)))
    store.save_task_facts(facts)
    return facts


def first_designs(designs: Sequence[Draft]) -> Sequence[Draft]:
    """The designs that race."""
    first = designs[:_MAX_DESIGNS_OF_NETWORKS]
    return first if any("CUDAGraph()" in draft.source for draft in first) else first[:_MAX_DESIGNS]


def designs_ahead(author: Author, config: RunConfig, task: Task, study: StudyData) -> tuple[Candidate, ...]:
    """The designs of an author that will race, before anything is measured."""
    assignment = Assignment(
        1,
        "seed",
        task,
        config.target,
        study.precision,
        0.0,
        {},
        graph=study.graph,
        other_graphs=study.other_graphs,
        languages=config.languages,
    )
    return tuple(Candidate(draft.source) for draft in first_designs(author.trusted_designs(assignment)))


@dataclass(frozen=True)
class RaceResults:
    """What a race means for the steps of a run."""

    designs: dict[str, RacedDesign]
    """By fingerprint."""
    places: int
    """How many designs are judged."""

    def reason_lost(self, step: Step) -> str:
        """Why a step is not judged; empty if it is, or took no part."""
        design = self.designs.get(step.details.fingerprint)
        if design is None or step.details.fingerprint in self._winners():
            return ""
        if design.ratio is None:
            return f"it left the race of {len(self.designs)} designs: {design.status}: {design.reason}"
        return f"it took {design.ratio:.2f}x as long as the fastest of {len(self.designs)} designs in a race"

    def fastest(self, steps: Sequence[Step]) -> list[Step]:
        """The fastest of these steps in the race, if any of them ran."""
        ratios = {
            step.number: design.ratio
            for step in steps
            if (design := self.designs.get(step.details.fingerprint)) and design.ratio
        }
        return sorted((step for step in steps if step.number in ratios), key=lambda s: ratios[s.number])[:1]

    def _winners(self) -> list[str]:
        ran = {name: design.ratio for name, design in self.designs.items() if design.status is Status.PASSED}
        near = [name for name, ratio in ran.items() if ratio and ratio <= _MAX_RATIO]
        return sorted(near, key=lambda name: ran[name] or 0.0)[: self.places]
