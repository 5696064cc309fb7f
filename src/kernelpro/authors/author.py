"""What an author is: somebody who writes candidates when asked to."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernelpro.records import Action, Cost, Finding, Graph, Target, Task, Verdict, digest


class NoIdea(Exception):
    """The author has nothing (more) to offer for this assignment; the message says why, `cost` what it took to find out."""

    def __init__(self, message: str, cost: Cost | None = None):
        super().__init__(message)
        self.cost = cost or Cost()


class OutOfIdeas(NoIdea):
    """Nor for any other."""


class Unanswered(NoIdea):
    """This time: whoever was asked gave no usable answer. The same may be asked again."""


class Unheard(Unanswered):
    """Nor any other answer: who was asked could not be reached."""


class Waiting(Exception):
    """The answer is not there yet: ask again later."""


class Exhausted(Exception):
    """The author may not go on (its purse is empty); the message says why."""


@dataclass(frozen=True)
class Known:
    """A candidate that an author may look at."""

    number: int
    source: str
    plan: str
    verdict: Verdict | None


LANGUAGES: dict[Target, tuple[str, ...]] = {"cuda": ("triton", "cuda", "cute"), "cpu": ("cpp",)}
"""What kernels are written in."""


@dataclass(frozen=True)
class Assignment:
    """What an author is asked to do, and what it may know."""

    step: int
    action: Action
    task: Task
    target: Target
    precision: str
    floor_ms: float
    baselines: dict[str, float]
    """Milliseconds by name."""
    tolerance: float = 0.0
    """Relative error that still counts as right, on inputs as given; 0: not known."""
    objective: str = ""
    """What is looked for besides speed, in words."""
    turn: int = 0
    """How many steps the author was asked for before this one."""
    attempt: int = 0
    """How often the same was asked of the same parent before; for a fresh design: how many were asked for."""
    graph: Graph | None = None
    """The task's operators, where they could be read."""
    no_graph: str = ""
    """Why not, where they could not."""
    hardware: dict[str, Any] = field(default_factory=dict)
    """`name`, measured `bandwidth` and `rates`, and `facts` in words."""
    languages: tuple[str, ...] = ()
    """What may be written in; empty: whatever suits the target."""
    parent: Known | None = None
    """The candidate to improve or to mend; None for a fresh design."""
    second: Known | None = None
    """For a combination: a candidate of another design, to borrow from."""
    children: tuple[Known, ...] = ()
    """What was made of the parent before."""
    siblings: tuple[Known, ...] = ()
    cousins: tuple[Known, ...] = ()
    leaders: tuple[Known, ...] = ()
    """Others that work, the fastest first; what compilers wrote is not among them."""
    beside: tuple[Known, ...] = ()
    """What is being made of the parent at the same time, by steps before this one; without a plan where that is not known yet."""
    codes: frozenset[str] = frozenset()
    """What is written already, each as `normalised` has it: the same again would be a duplicate."""
    guidance: str = ""
    """The diagnosis of the parent, in words."""
    findings: tuple[Finding, ...] = ()
    """The same diagnosis as data, most promising first."""
    evidence: str = ""
    memory: str = ""
    """What this run has learnt."""
    knowledge: str = ""
    """What earlier runs have learnt."""


@dataclass(frozen=True)
class Draft:
    """What an author hands in."""

    source: str
    plan: str = ""
    hypothesis: str = ""
    author: str = ""
    cost: Cost = field(default_factory=Cost)
    advice: str = ""
    """The tool whose advice it took, if any: its track record is kept."""
    promised: float = 0.0
    """Times as fast as its parent, by its author's own hypothesis; 0: none."""
    facts: tuple[str, ...] = ()
    """What was found out on the way and should not be lost."""


class Author(Protocol):
    """One that can borrow from a second candidate has `combines = True`; others are asked for an improvement instead. One that can
    improve only what it wrote itself has `own_only = True`. One that has only so many fresh designs has a function `designs`: asked
    for the first, it says how many it may be asked for, at least 1. One that writes in no time has `in_turn = True`: steps that are
    open together are written one after another, each with the `codes` of those before it."""

    name: str

    async def write(self, assignment: Assignment) -> Draft:
        """May take long; raises NoIdea. The same assignment may be asked for again after a crash."""
        ...


def normalised(source: str) -> str:
    """A hash of the code, comments and layout aside; of the text where it is no Python. Where it is the same, so are candidates."""
    try:
        return digest("code", ast.unparse(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return digest("text", source)
