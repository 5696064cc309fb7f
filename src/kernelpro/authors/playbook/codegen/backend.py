"""What a writer of one language must offer, and the moves that lead from one of its designs to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelpro.authors.playbook.ir.stages import Program
from kernelpro.authors.playbook.schedule.design import Design
from kernelpro.records import Target


@dataclass(frozen=True)
class Seed:
    """A design to begin with."""

    plan: str
    """In one sentence, as the tree shows it."""
    design: Design


@dataclass(frozen=True)
class Move:
    """One change to a design."""

    name: str
    plan: str
    """In one sentence: what is done, and why."""
    diagnostics: tuple[str, ...]
    """The tools whose findings ask for it."""
    apply: Callable[[Program, Design], Design | None]
    """None where it changes nothing or cannot be done."""


@dataclass(frozen=True)
class Backend:
    language: str
    target: Target
    write: Callable[[Program, Design], str]
    """The candidate's whole file. Raises NoIdea for what the language's templates cannot do, with the reason."""
    seeds: Callable[[Program], list[Seed]]
    """Fresh designs, most promising last but one or so: the first may be plain. All different. Raises NoIdea where it has none."""
    moves: tuple[Move, ...]
    """In the order in which they are tried where no finding speaks for one."""
    fallbacks: Callable[[Program, Design], list[Design]]
    """More careful designs of the same stages, for a candidate that failed: the nearest first."""
