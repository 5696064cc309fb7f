"""The race between the first designs of a run: one process times them, and only the fastest are judged.

A judgement occupies the device for seconds, a design in the race for a fraction of a second. Only code
written by KernelPro itself or by a compiler may race (`Author.trusted_designs`): the designs share a process,
and the race does not verify them as the judge does. The race only decides which designs are judged; every
claim about a kernel comes from the judge.

Every design is a step of the run. Designs that lost have no verdict (`NoVerdict.LOST_RACE`); their note says
by how much they lost, or why they failed. They do not count as candidates in the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelpro.authors.author import Assignment, Author, Draft, source_fingerprint
from kernelpro.engine.profiling import SubmitJob
from kernelpro.engine.store import RunStore
from kernelpro.engine.task_facts import graphed_seeds
from kernelpro.records import (
    Candidate,
    Hardware,
    Job,
    RaceData,
    RacedDesign,
    RunConfig,
    Status,
    Step,
    StudyData,
    TaskFacts,
)

_MAX_DESIGNS = 8
"""Maximum number of the author's designs in a race. The author lists one design of each form and language
first. On an H200, none of 11 problems had its fastest design after the eighth. A design takes 0.1 to 0.5
s."""
_MAX_DESIGNS_WITH_GRAPHS = 12
"""The same if only some designs are CUDA graphs, which the author lists after the first designs of all
forms."""
_MAX_RATIO = 1.1
"""Designs that take more than this multiple of the fastest design's time are not judged."""


async def race_designs(
    designs: Sequence[Draft],
    facts: TaskFacts,
    store: RunStore,
    config: RunConfig,
    submit: SubmitJob,
    report: Callable[[str], None],
) -> TaskFacts:
    """Race the compilers' code and the author's designs. Returns the facts with the results, which are also
    stored."""
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
    """The author's designs that take part in the race."""
    first = designs[:_MAX_DESIGNS_WITH_GRAPHS]
    kinds = {"CUDAGraph()" in draft.source for draft in first}
    return first if len(kinds) == 2 else first[:_MAX_DESIGNS]


def designs_ahead(author: Author, config: RunConfig, study: StudyData) -> tuple[Candidate, ...]:
    """The designs that will race, from the study alone, so that they can be built before the task is
    measured. In the run, the author returns the same ones."""
    assignment = Assignment(
        1,
        "seed",
        config.task,
        config.target,
        study.precision,
        0.0,
        {},
        graph=study.graph,
        other_graphs=study.other_graphs,
        hardware=Hardware(facts={"capability": study.capability}),
        languages=config.languages,
    )
    sources = [seed.source for seed in (*study.seeds, *graphed_seeds(config, study, {}))]
    sources += [draft.source for draft in first_designs(author.trusted_designs(assignment))]
    return tuple(map(Candidate, sources))


@dataclass(frozen=True)
class RaceResults:
    """The results of a race, applied to the steps of a run."""

    designs: dict[str, RacedDesign]
    """Results by the fingerprint of the source."""
    places: int
    """Maximum number of designs that are judged."""

    def reason_lost(self, step: Step) -> str:
        """Why a step is not judged; empty if it is judged or did not take part in the race."""
        design = self.designs.get(step.details.fingerprint)
        if design is None or step.details.fingerprint in self._winners():
            return ""
        if design.ratio is None:
            return f"it failed in a race of {len(self.designs)} designs: {design.status}: {design.reason}"
        return f"it took {design.ratio:.2f}x as long as the fastest of {len(self.designs)} designs in a race"

    def fastest(self, steps: Sequence[Step]) -> list[Step]:
        """The step that was the fastest of these in the race, as a list; empty if none of them ran."""
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
