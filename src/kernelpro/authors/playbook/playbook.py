"""The playbook: an author that writes kernels from templates of its own, without a model.

It reads the task's operator graph into a program of stages, has a writer of the target's language write it, and improves
it by moves. Which move comes next is decided by what the diagnosis of the parent found: the same findings that a model
would read, most promising first (where energy counts too, its findings before small gains in time); then come the moves
that nobody asked for. All that it must remember stands in the candidate (design.py), and the n-th time it is asked the
same it takes the n-th choice: a run that was killed goes on as it would have. A choice that gives no new code, because it
changes nothing here or another branch came to the same, is passed over.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, replace
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
from kernelpro.authors.playbook.codegen.backend import Backend, Move, Seed
from kernelpro.authors.playbook.cpp import backend as cpp
from kernelpro.authors.playbook.cuda import backend as cuda
from kernelpro.authors.playbook.fusion.fuser import fuse
from kernelpro.authors.playbook.ir.stages import Program
from kernelpro.authors.playbook.schedule.design import Design, parse_design
from kernelpro.authors.playbook.triton import backend as triton
from kernelpro.records import Finding, Severity

BACKENDS: tuple[Backend, ...] = (cpp.BACKEND, triton.BACKEND, cuda.BACKEND)
Order = Literal["findings", "fixed", "random"]


class Playbook(Author):
    """`order` of the moves: `findings` first, or without a look at them, to see what they are worth: `fixed`, as the writer lists
    them, or `random`, by the run's seed, the task and the parent."""

    improves_own_only = True
    writes_in_order = True

    def __init__(self, order: Order = "findings", seed: int = 0):
        self.name = "playbook" if order == "findings" else f"playbook:{order}"
        self._order, self._seed = order, seed

    def design_count(self, assignment: Assignment) -> int:
        """1 where it has none: whoever asks for it is told why."""
        try:
            return len(self._first(assignment, _program(assignment)))
        except NoProposal:
            return 1

    async def write(self, assignment: Assignment) -> Draft:
        program = _program(assignment)
        if assignment.action == "seed":
            return self._fresh(assignment, program)
        assert assignment.parent
        design = parse_design(assignment.parent.source)
        writer = next((w for w in BACKENDS if w.language == design.language), None)
        if writer is None or len(design.stages) != len(program.stages):
            raise NoProposal("the parent was written by another version of the playbook")
        if assignment.action == "debug":
            return self._mend(assignment, program, design, writer)
        return self._improve(assignment, program, design, writer)

    def _fresh(self, assignment: Assignment, program: Program) -> Draft:
        drafts = self._first(assignment, program)
        if assignment.attempt >= len(drafts):
            raise NoProposal(f"all {len(drafts)} designs that the playbook begins with have been written")
        return drafts[assignment.attempt]

    def _first(self, assignment: Assignment, program: Program) -> list[Draft]:
        """Seeds of the target's languages in turn: the first of each, then the second of each. What a language cannot write is
        left out; where nothing is left, the reasons are raised."""
        allowed = assignment.languages or LANGUAGES[assignment.target]
        writers = [
            writer for writer in BACKENDS if writer.target == assignment.target and writer.language in allowed
        ]
        if not writers:
            raise NoProposal(
                f"the playbook writes no kernels for {assignment.target} in {' or '.join(allowed)}"
            )
        drafts: dict[str, Draft] = {}
        refused: dict[str, None] = {}
        for writer, seed in _in_turn(writers, program, refused):
            exact = assignment.precision == "fp32" and writer.target == "cuda"
            try:
                source = writer.write(
                    program, replace(seed.design, precision="fp32") if exact else seed.design
                )
            except NoProposal as reason:
                refused[str(reason)] = None
                continue
            drafts.setdefault(source_fingerprint(source), Draft(source, seed.plan, author=self.name))
        if not drafts:
            raise NoProposal("; ".join(refused))
        return list(drafts.values())

    def _improve(self, assignment: Assignment, program: Program, design: Design, writer: Backend) -> Draft:
        findings = assignment.findings if self._order == "findings" else ()
        choices = _ranked(writer, program, design, findings)
        drafts = _others(
            assignment, program, writer, [(choice.design, self._planned(choice)) for choice in choices]
        )
        if self._order == "random" and assignment.parent:
            random.Random(f"{self._seed}:{assignment.task.source}:{assignment.parent.number}").shuffle(drafts)
        if (draft := _next(assignment, drafts)) is None:
            raise NoProposal(f"no move is left that gives new code ({len(drafts)} change this design)")
        return draft

    def _planned(self, choice: _Choice) -> Draft:
        """All but the source."""
        if choice.finding is None:
            return Draft("", choice.move.plan, author=self.name)
        gain, faster = choice.finding.gain, choice.finding.objective == "speed"
        expected = f"{gain.factor:.2f}x" if faster else f"{1 - 1 / gain.factor:.0%} less energy"
        hypothesis = f"{choice.finding.cause}. Expected: {expected} ({gain.basis})."
        promised = gain.factor if faster else 0.0
        return Draft(
            "",
            choice.move.plan,
            hypothesis,
            self.name,
            diagnostic=choice.finding.diagnostic,
            expected_speedup=promised,
        )

    def _mend(self, assignment: Assignment, program: Program, design: Design, writer: Backend) -> Draft:
        plan = Draft("", "Back to a more careful design of the same stages.", author=self.name)
        careful = _others(
            assignment, program, writer, [(step, plan) for step in writer.fallbacks(program, design)]
        )
        if (draft := _next(assignment, careful)) is None:
            raise NoProposal("the most careful design of these stages failed too")
        return draft


@dataclass(frozen=True)
class _Choice:
    move: Move
    design: Design
    finding: Finding | None


def _program(assignment: Assignment) -> Program:
    if assignment.graph is None:
        why = f" ({assignment.graph_error})" if assignment.graph_error else ""
        raise NoMoreProposals(f"the task's operators could not be read{why}, and the playbook needs them")
    return fuse(assignment.graph)


def _in_turn(
    writers: list[Backend], program: Program, refused: dict[str, None]
) -> list[tuple[Backend, Seed]]:
    offers = []
    for writer in writers:
        try:
            offers.append([(writer, seed) for seed in writer.seeds(program)])
        except NoProposal as reason:
            refused[str(reason)] = None
    depth = max((len(offer) for offer in offers), default=0)
    return [offer[place] for place in range(depth) for offer in offers if place < len(offer)]


def _ranked(
    writer: Backend, program: Program, design: Design, findings: tuple[Finding, ...]
) -> list[_Choice]:
    """Moves that change the design: those that findings ask for, in the order of the findings, then the rest."""
    wanted: list[tuple[Move, Finding | None]] = []
    wanted += [
        (move, finding)
        for finding in _in_order(findings)
        for move in writer.moves
        if finding.diagnostic in move.diagnostics
    ]
    wanted += [(move, None) for move in writer.moves]
    choices: list[_Choice] = []
    for move, finding in wanted:
        made = move.apply(program, design)
        if made is not None and made not in [choice.design for choice in choices]:
            choices.append(_Choice(move, made, finding))
    return choices


def _in_order(findings: tuple[Finding, ...]) -> list[Finding]:
    """Where energy counts too: what costs much time, since that costs energy as well, then what costs energy, then the rest."""
    if all(finding.objective == "speed" for finding in findings):
        return list(findings)

    def turn(finding: Finding) -> int:
        return 1 if finding.objective == "energy" else 0 if finding.severity == Severity.HIGH else 2

    return sorted(findings, key=lambda finding: (bool(finding.explained_by), turn(finding)))


def _others(
    assignment: Assignment, program: Program, writer: Backend, planned: list[tuple[Design, Draft]]
) -> list[Draft]:
    """Each code once, and not the parent's; what the language cannot write is left out."""
    assert assignment.parent
    own = source_fingerprint(assignment.parent.source)
    found: dict[str, Draft] = {}
    for design, draft in planned:
        with suppress(NoProposal):
            source = writer.write(program, design)
            found.setdefault(source_fingerprint(source), replace(draft, source=source))
    return [draft for code, draft in found.items() if code != own]


def _next(assignment: Assignment, drafts: list[Draft]) -> Draft | None:
    """The n-th, the n-th time; where that was written before, one behind it."""
    return next(
        (
            draft
            for draft in drafts[assignment.attempt :]
            if source_fingerprint(draft.source) not in assignment.known_fingerprints
        ),
        None,
    )
