"""The playbook: an author that writes kernels from templates of its own, without a model.

It reads the task's operator graph into a program of stages, has a writer of the target's language write it, and improves
it by moves. Which move comes next is decided by what the diagnosis of the parent found: the same findings that a model
would read, most promising first; then come the moves that nobody asked for. All that it must remember stands in the
candidate (design.py), and the n-th time it is asked the same it takes the n-th choice: a run that was killed goes on as it
would have.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from kernelpro.authors.author import LANGUAGES, Assignment, Draft, NoIdea
from kernelpro.authors.playbook import cpp, cuda, triton
from kernelpro.authors.playbook.design import Design, of_source
from kernelpro.authors.playbook.reading import read
from kernelpro.authors.playbook.stages import Program
from kernelpro.authors.playbook.writer import Move, Writer
from kernelpro.records import Finding

WRITERS: tuple[Writer, ...] = (cpp.WRITER, triton.WRITER, cuda.WRITER)


class Playbook:
    """`guided` False: moves at random, without a look at the findings, to see what the findings are worth."""

    def __init__(self, guided: bool = True):
        self.name = "playbook" if guided else "playbook:random"
        self._guided = guided

    async def write(self, assignment: Assignment) -> Draft:
        if assignment.graph is None:
            raise NoIdea("the task's operators could not be read, and the playbook needs them")
        program = read(assignment.graph)
        if assignment.action == "seed":
            return self._seed(assignment, program)
        assert assignment.parent
        design = of_source(assignment.parent.source)
        writer = next((w for w in WRITERS if w.language == design.language), None)
        if writer is None or len(design.stages) != len(program.stages):
            raise NoIdea("the parent was written by another version of the playbook")
        if assignment.action == "debug":
            return self._mend(assignment, program, design, writer)
        return self._improve(assignment, program, design, writer)

    def _seed(self, assignment: Assignment, program: Program) -> Draft:
        """Seeds of the target's languages in turn: the first of each, then the second of each."""
        allowed = assignment.languages or LANGUAGES[assignment.target]
        writers = [writer for writer in WRITERS if writer.target == assignment.target and writer.language in allowed]
        if not writers:
            raise NoIdea(f"the playbook writes no kernels for {assignment.target} in {' or '.join(allowed)}")
        offers = [[(writer, seed) for seed in writer.seeds(program)] for writer in writers]
        depth = max(len(offer) for offer in offers)
        everything = [offer[place] for place in range(depth) for offer in offers if place < len(offer)]
        if assignment.attempt >= len(everything):
            raise NoIdea(f"all {len(everything)} designs that the playbook begins with have been written")
        writer, seed = everything[assignment.attempt]
        design = (
            replace(seed.design, precision="fp32") if assignment.precision == "fp32" and writer.target == "cuda" else seed.design
        )
        return Draft(writer.write(program, design), seed.plan, author=self.name)

    def _improve(self, assignment: Assignment, program: Program, design: Design, writer: Writer) -> Draft:
        choices = _ranked(writer, program, design, assignment.findings if self._guided else ())
        if not self._guided:
            random.Random(assignment.parent.number if assignment.parent else 0).shuffle(choices)
        if assignment.attempt >= len(choices):
            raise NoIdea(f"no move is left that changes this design ({len(choices)} were made)")
        choice = choices[assignment.attempt]
        source = writer.write(program, choice.design)
        if choice.finding is None:
            return Draft(source, choice.move.plan, author=self.name)
        gain = choice.finding.gain
        hypothesis = f"{choice.finding.cause}. Expected: {gain.factor:.2f}x ({gain.how})."
        return Draft(source, choice.move.plan, hypothesis, self.name, advice=choice.finding.tool, promised=gain.factor)

    def _mend(self, assignment: Assignment, program: Program, design: Design, writer: Writer) -> Draft:
        careful = writer.safer(program, design)
        if assignment.attempt >= len(careful):
            raise NoIdea("the most careful design of these stages failed too")
        plan = "Back to a more careful design of the same stages."
        return Draft(writer.write(program, careful[assignment.attempt]), plan, author=self.name)


@dataclass(frozen=True)
class _Choice:
    move: Move
    design: Design
    finding: Finding | None


def _ranked(writer: Writer, program: Program, design: Design, findings: tuple[Finding, ...]) -> list[_Choice]:
    """Moves that change the design: those that findings ask for, in the order of the findings, then the rest."""
    wanted: list[tuple[Move, Finding | None]] = []
    wanted += [(move, finding) for finding in findings for move in writer.moves if finding.tool in move.answers]
    wanted += [(move, None) for move in writer.moves]
    choices: list[_Choice] = []
    for move, finding in wanted:
        made = move.apply(program, design)
        if made is not None and made not in [choice.design for choice in choices]:
            choices.append(_Choice(move, made, finding))
    return choices
