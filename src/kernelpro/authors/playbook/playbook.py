"""The playbook: an author that writes kernels without a language model.

It simplifies the task's operator graph, fuses it into programs of stages (forms.py), and lets a backend of
the target write them as seeds. Moves then improve a candidate. The findings on the parent choose the move,
the largest expected gain first; a model would read the same findings. If the run also optimizes energy,
findings on energy come before small gains in time. Moves that no finding suggests come last.

A candidate's source contains all state that the playbook needs (schedule/design.py). The n-th request of the
same kind gets the n-th choice, so that a resumed run continues exactly as before. Choices without a new
source are skipped: they change nothing, or another branch of the search has already reached them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

from kernelpro.authors.author import (
    LANGUAGES,
    Assignment,
    Author,
    Draft,
    NoMoreProposals,
    NoProposal,
    source_fingerprint,
)
from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.codegen.sizes import generalize
from kernelpro.authors.playbook.cpp import backend as cpp
from kernelpro.authors.playbook.cuda import backend as cuda
from kernelpro.authors.playbook.cuda.warpgroup_matmul import WGMMA_CAPABILITY
from kernelpro.authors.playbook.forms import CUDA_FORMS, PLAIN_FORMS, TRITON_FORMS, programs_of
from kernelpro.authors.playbook.ir.stages import MAX_SHARED_BYTES, Program
from kernelpro.authors.playbook.recurrent.module import PLAN as RECURRENT_PLAN
from kernelpro.authors.playbook.recurrent.module import recurrent_source
from kernelpro.authors.playbook.schedule.contractions import find_contraction
from kernelpro.authors.playbook.schedule.design import Design, parse_design
from kernelpro.authors.playbook.schedule.launches import launch_overhead
from kernelpro.authors.playbook.schedule.moves import Move, Seed
from kernelpro.authors.playbook.triton import backend as triton
from kernelpro.records import Finding, Graph, Hardware, Severity, Target

BACKENDS: tuple[Backend, ...] = (cpp.BACKEND, triton.BACKEND, cuda.BACKEND)
_SHARED_BYTES = {
    "7.5": 64 << 10,
    **dict.fromkeys(("8.0", "8.7"), 163 << 10),
    **dict.fromkeys(("8.6", "8.9", "12.0", "12.1"), 99 << 10),
}
"""Shared memory of a block where it is less than MAX_SHARED_BYTES, by compute capability."""
Order = Literal["findings", "fixed", "random"]


@dataclass(frozen=True)
class _Seeds:
    """The designs that the playbook starts from: the promising ones, then the last resorts."""

    drafts: list[Draft]
    promising: int
    """Number of promising drafts; they come first."""


class Playbook(Author):
    """Chooses moves by findings. Two other orders measure what the findings are worth: `fixed` is the
    backend's order of moves; `random` depends on the run's seed, the task and the parent."""

    improves_own_only = True
    writes_in_order = True

    def __init__(self, order: Order = "findings", seed: int = 0):
        self.name = "playbook" if order == "findings" else f"playbook:{order}"
        self._order, self._seed = order, seed
        self._known: tuple[Graph, Target, int, dict[str, Program]] | None = None
        """The programs of the last graph: large ones take seconds to build."""
        self._seeds: tuple[Graph | None, tuple[object, ...], _Seeds] | None = None
        """The last graph, everything else that its seeds depend on, and the seeds."""

    def design_count(self, assignment: Assignment) -> int:
        """The number of seeds; 1 if there are none, so that `write` is called and reports why."""
        try:
            return len(self.seed_drafts(assignment))
        except NoProposal:
            return 1

    def trusted_designs(self, assignment: Assignment) -> list[Draft]:
        """The promising seeds; all seeds if none is promising."""
        try:
            drafts = self.seed_drafts(assignment)
        except NoProposal:
            return []
        assert self._seeds
        return drafts[: self._seeds[2].promising] or drafts

    async def write(self, assignment: Assignment) -> Draft:
        """Writes a seed, an improvement of the parent, or a simpler design of a parent that failed."""
        if assignment.action == "seed":
            return self._write_seed(assignment)
        programs = self._programs(assignment)
        assert assignment.parent
        design = parse_design(assignment.parent.source)
        backend = next((b for b in BACKENDS if b.language == design.language), None)
        program = programs.get(design.form)
        if backend is None or program is None or len(design.stages) != len(program.stages):
            raise NoProposal("the parent was written by another version of the playbook")
        if assignment.action == "debug":
            return self._fall_back(assignment, programs, design, backend)
        return self._improve(assignment, program, design, backend)

    def _programs(self, assignment: Assignment) -> dict[str, Program]:
        graph, target = assignment.graph, assignment.target
        if graph is None:
            reason = f": {assignment.graph_error}" if assignment.graph_error else ""
            raise NoMoreProposals(
                f"the playbook needs the task's operator graph, which could not be read{reason}"
            )
        max_shared_bytes = _max_shared_bytes(assignment.hardware)
        if self._known is None or self._known[:3] != (graph, target, max_shared_bytes):
            self._known = graph, target, max_shared_bytes, programs_of(graph, target, max_shared_bytes)
        return self._known[3]

    def _write_seed(self, assignment: Assignment) -> Draft:
        drafts = self.seed_drafts(assignment)
        if assignment.attempt >= len(drafts):
            raise NoProposal(f"the playbook has written all of its {len(drafts)} initial designs")
        return drafts[assignment.attempt]

    def seed_drafts(self, assignment: Assignment) -> list[Draft]:
        """The first seed of each form and language, then the second of each, and so on; last resorts at the
        end. Raises NoProposal, with the reasons, if no backend can write any."""
        capability = assignment.hardware.capability
        key = assignment.target, assignment.languages, assignment.precision, assignment.task.id, capability
        if self._seeds is None or self._seeds[:2] != (assignment.graph, key):
            self._seeds = assignment.graph, key, self._write_seeds(assignment)
        return self._seeds[2].drafts

    def _write_seeds(self, assignment: Assignment) -> _Seeds:
        allowed = assignment.languages or LANGUAGES[assignment.target]
        backends = [b for b in BACKENDS if b.target == assignment.target and b.language in allowed]
        if not backends:
            languages = " or ".join(allowed)
            raise NoProposal(f"the playbook cannot write {assignment.target} kernels in {languages}")
        if recurrent := self._write_recurrent(assignment, backends):
            return _Seeds([recurrent], 1)
        programs = {
            form: program for form, program in self._programs(assignment).items() if form not in PLAIN_FORMS
        }
        writer = ShapeWriter.of(assignment)
        drafts: dict[str, Draft] = {}
        reasons: dict[str, None] = {}
        promising = 0
        assert assignment.graph
        interleaved = list(_interleaved_seeds(backends, programs, assignment.graph, reasons))
        for form, backend, seed in sorted(interleaved, key=lambda entry: entry[2].is_last_resort):
            exact = assignment.precision == "fp32" and backend.target == "cuda"
            if not _runs_on(assignment.hardware, seed.design):
                continue
            design = replace(seed.design, form=form)
            design = (
                replace(design, precision="fp32")
                if exact
                else _with_fast_math(backend, programs[form], design)
            )
            try:
                source = writer.write(backend, programs[form], design)
            except NoProposal as reason:
                reasons[str(reason)] = None
                continue
            draft = Draft(source, _seed_plan(seed, programs[form]), author=self.name)
            drafts.setdefault(source_fingerprint(source), draft)
            if not seed.is_last_resort:
                promising = len(drafts)
        if not drafts:
            raise NoProposal("; ".join(reasons))
        return _Seeds(list(drafts.values()), promising)

    def _write_recurrent(self, assignment: Assignment, backends: list[Backend]) -> Draft | None:
        """The design of a recurrent network, if the task is one."""
        is_possible = any(backend.language == "cuda" for backend in backends)
        if not is_possible or assignment.graph is None or len(assignment.task.shapes) > 1:
            return None
        if assignment.precision == "fp32":  # its products are in TF32
            return None
        source = recurrent_source(assignment.graph)
        return Draft(source, RECURRENT_PLAN, author=self.name) if source else None

    def _improve(self, assignment: Assignment, program: Program, design: Design, backend: Backend) -> Draft:
        assert assignment.parent
        findings = assignment.findings if self._order == "findings" else ()
        choices = _choices(backend, program, design, findings)
        choices = [choice for choice in choices if _runs_on(assignment.hardware, choice.design)]
        planned = [(choice.design, self._plan(choice)) for choice in choices]
        drafts = _new_drafts(assignment, program, backend, planned)
        if self._order == "random":
            random.Random(f"{self._seed}:{assignment.task.source}:{assignment.parent.number}").shuffle(drafts)
        if (draft := _nth_unwritten(assignment, drafts)) is None:
            raise NoProposal(
                f"no move is left that produces new code ({len(drafts)} moves change this design)"
            )
        return draft

    def _plan(self, choice: _Choice) -> Draft:
        """The draft of a choice, without its source."""
        plan = Draft("", choice.move.plan, author=self.name)
        if choice.finding is None:
            return plan
        gain, is_speed = choice.finding.gain, choice.finding.objective == "speed"
        expected = f"{gain.factor:.2f}x" if is_speed else f"{1 - 1 / gain.factor:.0%} less energy"
        return replace(
            plan,
            hypothesis=f"{choice.finding.cause}. Expected: {expected} ({gain.basis}).",
            diagnostic=choice.finding.diagnostic,
            expected_speedup=gain.factor if is_speed else 0.0,
        )

    def _fall_back(
        self, assignment: Assignment, programs: dict[str, Program], design: Design, backend: Backend
    ) -> Draft:
        program = programs[design.form]
        plan = Draft("", "Return to a simpler design of the same stages.", author=self.name)
        planned = [(replace(design, graph=False), plan)] if design.graph else []
        planned += [
            (replace(fallback, form=design.form, graph=False), plan)
            for fallback in backend.fallbacks(program, design)
        ]
        drafts = _new_drafts(assignment, program, backend, planned)
        if program.rewrites:
            drafts += self._without_algebra(assignment, programs, design, backend)
        draft = _nth_unwritten(assignment, drafts)
        if draft is None:
            raise NoProposal("the simplest design of these stages failed too")
        return draft

    def _without_algebra(
        self, assignment: Assignment, programs: dict[str, Program], design: Design, backend: Backend
    ) -> list[Draft]:
        plan = Draft("", "Compute the operators as the task gives them, without algebra.", author=self.name)
        form = "plain_library" if programs[design.form].library_calls else "plain"
        if form not in programs:
            return []
        try:
            seeds = backend.seeds(programs[form])
        except NoProposal:
            return []
        planned = [(replace(seed.design, form=form, precision=design.precision), plan) for seed in seeds[:1]]
        return _new_drafts(assignment, programs[form], backend, planned)


@dataclass(frozen=True)
class _Choice:
    move: Move
    design: Design
    finding: Finding | None


@dataclass(frozen=True)
class ShapeWriter:
    """Writes kernels that serve all shapes of a task. If the task has one shape, the kernel also serves other
    batch sizes where that costs no time."""

    others: tuple[dict[str, Program], ...]
    """The programs for the other shapes, by form."""
    is_several: bool
    """Whether the task has several shapes: then a kernel must serve all of them."""

    @classmethod
    def of(cls, assignment: Assignment) -> ShapeWriter:
        """The writer of an assignment. Raises NoProposal if a further shape has no program."""
        is_several = len(assignment.task.shapes) > 1
        try:
            max_shared_bytes = _max_shared_bytes(assignment.hardware)
            graphs = assignment.other_graphs
            others = tuple(programs_of(graph, assignment.target, max_shared_bytes) for graph in graphs)
        except NoProposal:
            if is_several:
                raise
            others = ()
        return cls(others, is_several)

    def write(self, backend: Backend, program: Program, design: Design) -> str:
        """The source of a design. Raises NoProposal."""
        source = backend.write(program, design)
        general = self._generalized(source, backend, program, design)
        if general is None and self.is_several:
            raise NoProposal(
                f"the playbook's {backend.language} code differs in more than sizes between these shapes: "
                "no kernel serves all of them"
            )
        return general or source

    def _generalized(self, source: str, backend: Backend, program: Program, design: Design) -> str | None:
        others = [programs[design.form] for programs in self.others if design.form in programs]
        alike = [other for other in others if len(other.stages) == len(program.stages)]
        if not alike or len(alike) < len(self.others):
            return None
        try:
            sources = [source, *(backend.write(other, design) for other in alike)]
        except (NoProposal, ValueError, IndexError):  # the design does not suit the other shapes
            return None
        return generalize(sources, [program, *alike], free_only=not self.is_several)


def _interleaved_seeds(
    backends: list[Backend], programs: dict[str, Program], graph: Graph, reasons: dict[str, None]
) -> Iterator[tuple[str, Backend, Seed]]:
    """The first seed of each form and backend, then the second of each, and so on. Adds to `reasons` why a
    backend has no seeds for a form."""
    columns = []
    for form, program in programs.items():
        for backend in backends:
            if form in TRITON_FORMS and backend.language != "triton":
                continue
            if form in CUDA_FORMS and backend.language != "cuda":
                continue
            try:
                seeds = backend.seeds(program)
                if backend.target == "cuda":
                    seeds = _with_graphs(seeds, program, graph)
                columns.append([(form, backend, seed) for seed in seeds])
            except NoProposal as reason:
                reasons[str(reason)] = None
    return (entry for row in zip_longest(*columns) for entry in row if entry)


def _with_fast_math(backend: Backend, program: Program, design: Design) -> Design:
    """On a GPU, the design with faster functions if it multiplies matrices: rounding their operands costs far
    more accuracy than these functions, which are off by a few ulp."""
    if backend.target == "cpu" or not any(map(find_contraction, program.stages)):
        return design
    move = next(move for move in backend.moves if move.name == "fast math")
    return move.apply(program, design) or design


def _runs_on(hardware: Hardware, design: Design) -> bool:
    """Whether the device is known to have the instructions that the design asks for."""
    return not any(stage.wgmma for stage in design.stages) or hardware.capability == WGMMA_CAPABILITY


def _max_shared_bytes(hardware: Hardware) -> int:
    """The most shared memory of a block, by compute capability."""
    return _SHARED_BYTES.get(hardware.capability, MAX_SHARED_BYTES)


def _with_graphs(seeds: list[Seed], program: Program, graph: Graph) -> list[Seed]:
    """The seeds as CUDA graphs if launch overhead dominates. If it is noticeable, the first seed also as
    a graph."""
    overhead = launch_overhead(program, graph)
    if overhead == "dominant":
        return [_as_graph(seed) for seed in seeds]
    return [seeds[0], _as_graph(seeds[0]), *seeds[1:]] if overhead == "noticeable" else seeds


def _as_graph(seed: Seed) -> Seed:
    plan = f"{seed.plan} All kernels are launched as one CUDA graph."
    return replace(seed, plan=plan, design=replace(seed.design, graph=True))


def _seed_plan(seed: Seed, program: Program) -> str:
    """The seed's plan, preceded by the algebra and the library calls."""
    parts = []
    if program.rewrites:
        rules = ", ".join(dict.fromkeys(step.rule for step in program.rewrites))
        parts.append(f"Algebra: {rules}.")
    if program.library_calls:
        calls = ", ".join(sorted({call.op for call in program.library_calls}))
        parts.append(f"torch computes {calls}; the rest is fused around the calls.")
    return " ".join([*parts, seed.plan])


def _choices(
    backend: Backend, program: Program, design: Design, findings: tuple[Finding, ...]
) -> list[_Choice]:
    """The moves that change the design: first those that findings suggest, in the order of the findings, then
    all others."""
    suggested: list[tuple[Move, Finding | None]] = [
        (move, finding)
        for finding in _prioritized(findings)
        for move in backend.moves
        if finding.diagnostic in move.diagnostics
    ]
    choices: dict[Design, _Choice] = {}
    for move, finding in [*suggested, *((move, None) for move in backend.moves)]:
        if changed := move.apply(program, design):
            choices.setdefault(changed, _Choice(move, changed, finding))
    return list(choices.values())


def _prioritized(findings: tuple[Finding, ...]) -> list[Finding]:
    """The findings by priority. If some are about energy, the order is: large losses of time, which cost
    energy too; losses of energy; small losses of time."""
    if all(finding.objective == "speed" for finding in findings):
        return list(findings)

    def priority(finding: Finding) -> int:
        return 1 if finding.objective == "energy" else 0 if finding.severity == Severity.HIGH else 2

    return sorted(findings, key=lambda finding: (bool(finding.explained_by), priority(finding)))


def _new_drafts(
    assignment: Assignment, program: Program, backend: Backend, planned: list[tuple[Design, Draft]]
) -> list[Draft]:
    """The drafts of these designs, each distinct source once and without the parent's. Designs that the
    backend cannot write are left out."""
    assert assignment.parent
    writer = ShapeWriter.of(assignment)
    drafts: dict[str, Draft] = {}
    for design, draft in planned:
        with suppress(NoProposal):
            source = writer.write(backend, program, design)
            drafts.setdefault(source_fingerprint(source), replace(draft, source=source))
    drafts.pop(source_fingerprint(assignment.parent.source), None)
    return list(drafts.values())


def _nth_unwritten(assignment: Assignment, drafts: list[Draft]) -> Draft | None:
    """The n-th draft for the n-th attempt or, if the run already has its source, the next one that it does
    not have."""
    known = assignment.known_fingerprints
    later = drafts[assignment.attempt :]
    return next((draft for draft in later if source_fingerprint(draft.source) not in known), None)
