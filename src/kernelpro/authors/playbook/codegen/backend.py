"""What a language must provide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelpro.authors.playbook.ir.stages import Program
from kernelpro.authors.playbook.schedule.design import Design
from kernelpro.authors.playbook.schedule.moves import Move, Seed
from kernelpro.records import Target


@dataclass(frozen=True)
class Backend:
    """Writes programs in one language, and knows which designs to try."""

    language: str
    target: Target
    write: Callable[[Program, Design], str]
    """The candidate's source file. Raises NoProposal, with the reason, for a program that the backend cannot
    write."""
    seeds: Callable[[Program], list[Seed]]
    """Distinct designs to start from. Raises NoProposal if there are none."""
    moves: tuple[Move, ...]
    """Moves, in the order in which they are tried if no finding suggests one."""
    fallbacks: Callable[[Program, Design], list[Design]]
    """Simpler designs of the same stages for a candidate that failed, the most similar first."""
