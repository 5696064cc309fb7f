"""What the seeds, moves and fallbacks of all languages share: types, and moves on mathematical functions.

A seed is a design to start from. A move changes a design; most moves apply a `StageChange` to every stage
that it suits. A fallback is a simpler design for a candidate that failed.
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
"""The program's new design; None if the change does not suit it."""


@dataclass(frozen=True)
class Seed:
    """A design to start from."""

    plan: str
    """One sentence, shown in the search tree."""
    design: Design
    is_last_resort: bool = False
    """A design for tasks on which all others fail: it takes no part in the race, and comes after all
    others."""


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
    """The design with a change applied to every stage that it suits; None if it suits no stage."""
    pairs = zip(program.stages, design.stages, strict=True)
    stages = tuple(change(stage, stage_design) or stage_design for stage, stage_design in pairs)
    return replace(design, stages=stages) if stages != design.stages else None


def per_stage(change: StageChange) -> DesignChange:
    """A change of a stage as a change of the whole design."""
    return lambda program, design: apply_change(program, design, change)


def use_fast_math(functions: frozenset[str]) -> DesignChange:
    """The change to the backend's own functions, for programs that call one of `functions`."""

    def apply(program: Program, design: Design) -> Design | None:
        if design.math != "library" or not _calls(program, functions):
            return None
        return replace(design, math="fast")

    return apply


def _approximate_math(program: Program, design: Design) -> Design | None:
    """Not if the result of such a function is stored as it is: values near zero would have too few digits."""
    results = {step.value for stage in program.stages for step in (*stage.stores, *stage.epilogue)}
    calls = _calls(program, APPROXIMABLE_FUNCTIONS)
    if design.math == "approximate" or not calls or calls & results:
        return None
    return replace(design, math="approximate")


APPROXIMATE_MATH = Move(
    "approximate math",
    "Compute tanh, erf and log1p in a few instructions, with float32's absolute error: relative accuracy "
    "near zero does not matter here.",
    ("special_functions", "warp_stall", "energy_costly_math"),
    _approximate_math,
)


def more_exact_math(design: Design) -> Design:
    """The design with the next more accurate math mode."""
    return replace(design, math="fast" if design.math == "approximate" else "library")


def _calls(program: Program, functions: frozenset[str]) -> set[Expr]:
    return nodes_of([root for stage in program.stages for root in stage.expressions], *functions)


def distinct_seeds(seeds: Sequence[Seed]) -> list[Seed]:
    """The seeds without repeated designs."""
    return [s for i, s in enumerate(seeds) if s.design not in [other.design for other in seeds[:i]]]


def distinct_fallbacks(design: Design, fallbacks: Sequence[Design]) -> list[Design]:
    """The fallbacks without repetitions and without the design itself."""
    return [other for i, other in enumerate(fallbacks) if other != design and other not in fallbacks[:i]]
