"""Seeds, moves and fallbacks: the designs that the playbook tries. What all languages share is here.

Most moves are a `StageChange`, applied to every stage that it suits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelpro.authors.playbook.ir.expressions import Expr, nodes_of
from kernelpro.authors.playbook.ir.stages import Program, Stage
from kernelpro.authors.playbook.schedule.design import APPROXIMABLE_FUNCTIONS, Design, StageDesign

StageChange = Callable[[Stage, StageDesign], StageDesign | None]
"""The stage's new design; None if the change does not suit this stage."""
DesignChange = Callable[[Program, Design], Design | None]
"""The program's new design; None if nothing changes."""


@dataclass(frozen=True)
class Seed:
    """A design to start from."""

    plan: str
    """One sentence, shown in the search tree."""
    design: Design
    is_last_resort: bool = False
    """For where the others fail: it does not race, and comes after all others."""


@dataclass(frozen=True)
class Move:
    """One change to a design."""

    name: str
    plan: str
    """One sentence: what changes, and why."""
    diagnostics: tuple[str, ...]
    """The diagnostics whose findings suggest it."""
    apply: DesignChange


def apply_change(program: Program, design: Design, change: StageChange) -> Design | None:
    """Applies a change to every stage that it suits; None if it suits no stage."""
    pairs = zip(program.stages, design.stages, strict=True)
    stages = tuple(change(stage, stage_design) or stage_design for stage, stage_design in pairs)
    return replace(design, stages=stages) if stages != design.stages else None


def per_stage(change: StageChange) -> DesignChange:
    """A change of stages as a change of the design."""
    return lambda program, design: apply_change(program, design, change)


def use_fast_math(functions: frozenset[str]) -> DesignChange:
    """The backend's functions instead of the library's, if the program calls one of `functions`."""

    def apply(program: Program, design: Design) -> Design | None:
        if design.math != "library" or not _calls(program, functions):
            return None
        return replace(design, math="fast")

    return apply


def _approximate_math(program: Program, design: Design) -> Design | None:
    """Only if no such function is a result by itself: its values near zero would have too few digits."""
    results = {step.value for stage in program.stages for step in (*stage.stores, *stage.epilogue)}
    calls = _calls(program, APPROXIMABLE_FUNCTIONS)
    if design.math == "approximate" or not calls or calls & results:
        return None
    return replace(design, math="approximate")


APPROXIMATE_MATH = Move(
    "approximate math",
    "Compute tanh, erf and log1p in a few instructions, to float32's absolute error: digits near zero do not "
    "matter here.",
    ("special_functions", "warp_stall", "energy_costly_math"),
    _approximate_math,
)


def more_exact_math(design: Design) -> Design:
    """The design with the next more accurate functions."""
    return replace(design, math="fast" if design.math == "approximate" else "library")


def _calls(program: Program, functions: frozenset[str]) -> set[Expr]:
    return nodes_of([root for stage in program.stages for root in stage.expressions], *functions)


def distinct_seeds(seeds: Sequence[Seed]) -> list[Seed]:
    """The seeds without repeated designs."""
    return [s for i, s in enumerate(seeds) if s.design not in [other.design for other in seeds[:i]]]


def distinct_fallbacks(design: Design, fallbacks: Sequence[Design]) -> list[Design]:
    """The fallbacks without repetitions and without the design itself."""
    return [other for i, other in enumerate(fallbacks) if other != design and other not in fallbacks[:i]]
