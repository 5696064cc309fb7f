"""What seeds, moves and retreats of all languages have in common.

Most moves are a `Change`: of one stage, made wherever a stage takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernelpro.authors.playbook.codegen.backend import Move, Seed
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.stages import Program, Stage, StoreStep
from kernelpro.authors.playbook.schedule.design import APPROXIMABLE_FUNCTIONS, Design, StageDesign

Change = Callable[[Stage, StageDesign], StageDesign | None]
"""The stage's new design; None if the change does not apply to this stage."""
Apply = Callable[[Program, Design], Design | None]


def apply_change(program: Program, design: Design, change: Change) -> Design | None:
    """The change wherever a stage takes it; None where none does."""
    stages = tuple(
        change(stage, how) or how for stage, how in zip(program.stages, design.stages, strict=True)
    )
    return replace(design, stages=stages) if stages != design.stages else None


def per_stage(change: Change) -> Apply:
    return lambda program, design: apply_change(program, design, change)


def use_fast_math(functions: frozenset[str]) -> Apply:
    """Mathematics of the writer's own in place of the library's, where one of the functions is called."""

    def apply(program: Program, design: Design) -> Design | None:
        return (
            replace(design, math="fast") if _called(program, functions) and design.math == "library" else None
        )

    return apply


def _approximate_math(program: Program, design: Design) -> Design | None:
    """Where such functions are parts of something larger: as results, values near zero would have too few digits."""
    results = {
        step.value
        for stage in program.stages
        for step in (*stage.steps, *stage.epilogue)
        if isinstance(step, StoreStep)
    }
    called = _called(program, APPROXIMABLE_FUNCTIONS)
    return (
        replace(design, math="approximate")
        if called and not called & results and design.math != "approximate"
        else None
    )


APPROXIMATE_MATH = Move(
    "cheap mathematics",
    "Take tanh, erf and log1p to float32's absolute error, in a few instructions: near zero nobody needs their digits here.",
    ("special_functions", "warp_stall", "energy_costly_math"),
    _approximate_math,
)


def more_exact_math(design: Design) -> Design:
    """A step back to more digits."""
    return replace(design, math="fast" if design.math == "approximate" else "library")


def _called(program: Program, functions: frozenset[str]) -> set[Expr]:
    values = [value for stage in program.stages for value in stage.expressions]
    return {node for value in values for node in value.walk() if node.op in functions}


def distinct_seeds(found: Sequence[Seed]) -> list[Seed]:
    """Each design once."""
    return [
        seed
        for place, seed in enumerate(found)
        if seed.design not in [other.design for other in found[:place]]
    ]


def distinct_fallbacks(design: Design, steps: Sequence[Design]) -> list[Design]:
    """Each step once, and none that stays where it is."""
    return [step for place, step in enumerate(steps) if step != design and step not in steps[:place]]
