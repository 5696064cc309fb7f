"""The interface of an author: it receives an assignment and returns a draft of a candidate."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from kernelpro.records import (
    Action,
    ComparableTimes,
    Cost,
    Finding,
    Graph,
    Hardware,
    Limits,
    ShapeTimes,
    Target,
    Task,
    Verdict,
    digest,
)


class NoProposal(Exception):
    """The author has no proposal for this assignment. The message says why; `cost` is the cost of the
    attempt."""

    def __init__(self, message: str, cost: Cost | None = None):
        super().__init__(message)
        self.cost = cost or Cost()


class NoMoreProposals(NoProposal):
    """The author has no proposal for this or any other assignment."""


class NoUsableAnswer(NoProposal):
    """The model gave no usable answer this time. The same question may be asked again."""


class ModelUnreachable(NoUsableAnswer):
    """The model could not be reached."""


class AnswerPending(Exception):
    """The answer has not arrived yet: ask again later."""


class BudgetExhausted(Exception):
    """The author's budget is spent; the message says which."""


@dataclass(frozen=True)
class KnownCandidate:
    """An earlier candidate of the run, as an author sees it."""

    number: int
    source: str
    plan: str
    verdict: Verdict | None


LANGUAGES: dict[Target, tuple[str, ...]] = {"cuda": ("triton", "cuda", "cute"), "cpu": ("cpp",)}
"""Languages of kernels, by target."""


@dataclass(frozen=True)
class Assignment:
    """What the engine asks of an author, and everything that the author may know."""

    step: int
    action: Action
    task: Task
    target: Target
    precision: str
    floor_ms: float
    baselines: dict[str, float]
    """Times of the baselines in milliseconds, by name."""
    tolerance: float = 0.0
    """The relative error (norm) that passes on inputs as given; 0 if unknown."""
    objective: str = ""
    """The objective in words, if it is not speed alone."""
    turn: int = 0
    """Number of steps that this author was asked for before."""
    attempt: int = 0
    """Number of earlier requests with the same action and parent; for a new design, the number of earlier
    designs."""
    graph: Graph | None = None
    """The task's operator graph, if it could be captured."""
    graph_error: str = ""
    """Why there is no graph."""
    other_graphs: tuple[Graph, ...] = ()
    """The graph for each further shape of the task; if it has one shape, the graph for another batch size."""
    shapes: tuple[ShapeTimes, ...] = ()
    """The shapes of the task, with their baselines."""
    hardware: Hardware = field(default_factory=Hardware)
    languages: tuple[str, ...] = ()
    """The allowed languages; empty for all languages of the target."""
    parent: KnownCandidate | None = None
    """The candidate to improve or repair; None for a new design."""
    donor: KnownCandidate | None = None
    """For a combination: a candidate of another design to borrow from."""
    children: tuple[KnownCandidate, ...] = ()
    """Earlier children of the parent."""
    siblings: tuple[KnownCandidate, ...] = ()
    """Other children of the parent's parent."""
    cousins: tuple[KnownCandidate, ...] = ()
    """Children of the parent's siblings."""
    leaders: tuple[KnownCandidate, ...] = ()
    """Other candidates that passed, fastest first; without compile seeds."""
    concurrent: tuple[KnownCandidate, ...] = ()
    """Steps in progress that start from the same parent; their plan may be empty."""
    known_fingerprints: frozenset[str] = frozenset()
    """Fingerprints of all sources so far (`source_fingerprint`): an equal one would be a duplicate."""
    guidance: str = ""
    """The diagnosis of the parent as text."""
    findings: tuple[Finding, ...] = ()
    """The same diagnosis as data, largest expected gain first."""
    evidence: str = ""
    """Measurements behind the diagnosis, as text."""
    memory: str = ""
    """What this run has learned."""
    knowledge: str = ""
    """What earlier runs have learned."""
    hints: tuple[str, ...] = ()
    """Hints from the user, in words."""

    @property
    def times(self) -> ComparableTimes:
        """The scale on which candidates are compared."""
        return ComparableTimes(self.baselines, self.shapes)


@dataclass(frozen=True)
class Draft:
    """A candidate as its author delivers it."""

    source: str
    plan: str = ""
    hypothesis: str = ""
    author: str = ""
    cost: Cost = field(default_factory=Cost)
    diagnostic: str = ""
    """The diagnostic whose advice the draft follows, if any. The engine records whether the advice helped."""
    expected_speedup: float = 0.0
    """Speed-up over the parent that the author expects; 0 if none is given."""
    facts: tuple[str, ...] = ()
    """Facts that the author found and that later steps should see."""


class Author(ABC):
    """Writes candidates. The class attributes tell the engine which steps the author supports."""

    name: str
    combines: ClassVar[bool] = False
    """Whether it can borrow from a second candidate. If not, the engine asks for an improvement instead."""
    improves_own_only: ClassVar[bool] = False
    """Whether it can improve only candidates that it wrote itself, not torch.compile's code."""
    writes_in_order: ClassVar[bool] = False
    """Whether the engine has concurrent steps written one after another, so that each sees the fingerprints
    of the ones before. For authors that write in almost no time."""

    @abstractmethod
    async def write(self, assignment: Assignment) -> Draft:
        """Write one candidate; this may take long. Raises NoProposal. After a crash the engine may repeat an
        assignment."""

    def set_limits(self, limits: Limits) -> None:  # noqa: B027 (most authors spend nothing)
        """Apply raised limits of the run to later questions, in authors that spend money."""

    def trusted_designs(self, assignment: Assignment) -> list[Draft]:
        """The author's first designs, if KernelPro itself writes their code: the engine may race them in one
        process before they are judged. `write` returns the same drafts in the same order."""
        return []

    def design_count(self, assignment: Assignment) -> int | None:
        """Return how many new designs the author has for this task (at least 1); None if unknown.
        `assignment` is the run's first one."""
        return None


def source_fingerprint(source: str) -> str:
    """Return a hash of the code without comments and layout, or of the text if it is not Python."""
    try:
        return digest("code", ast.unparse(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return digest("text", source)
