"""What seeds, moves and retreats of all languages have in common.

Most moves are a `Change`: of one stage, made wherever a stage takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kernelpro.authors.playbook.codegen.writer import Move, Seed
from kernelpro.authors.playbook.design import CHEAP, Design, StageDesign
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.stages import Program, Stage, Store

Change = Callable[[Stage, StageDesign], dict[str, Any] | None]
"""The fields of the stage's design that become others; None where it is not for this stage."""
Apply = Callable[[Program, Design], Design | None]


def changed(program: Program, design: Design, change: Change) -> Design | None:
    """The change wherever a stage takes it; None where none does."""
    made = design
    for place, stage in enumerate(program.stages):
        if changes := change(stage, design.stages[place]):
            made = made.with_stage(place, **changes)
    return made if made != design else None


def staged(change: Change) -> Apply:
    return lambda program, design: changed(program, design, change)


def own_maths(functions: frozenset[str]) -> Apply:
    """Mathematics of the writer's own in place of the library's, where one of the functions is called."""

    def apply(program: Program, design: Design) -> Design | None:
        return (
            replace(design, maths="own")
            if _called(program, functions) and design.maths == "library"
            else None
        )

    return apply


def _cheap_maths(program: Program, design: Design) -> Design | None:
    """Where such functions are parts of something larger: as results, values near zero would have too few digits."""
    results = {
        step.value
        for stage in program.stages
        for step in (*stage.steps, *stage.after)
        if isinstance(step, Store)
    }
    called = _called(program, CHEAP)
    return (
        replace(design, maths="cheap")
        if called and not called & results and design.maths != "cheap"
        else None
    )


CHEAP_MATHS = Move(
    "cheap mathematics",
    "Take tanh, erf and log1p to float32's absolute error, in a few instructions: near zero nobody needs their digits here.",
    ("special_functions", "warp_stall", "energy_costly_math"),
    _cheap_maths,
)


def exact_maths(design: Design) -> Design:
    """A step back to more digits."""
    return replace(design, maths="own" if design.maths == "cheap" else "library")


def _called(program: Program, functions: frozenset[str]) -> set[Expr]:
    values = [value for stage in program.stages for value in stage.values]
    return {node for value in values for node in value.walk() if node.op in functions}


def seeds_apart(found: Sequence[Seed]) -> list[Seed]:
    """Each design once."""
    return [
        seed
        for place, seed in enumerate(found)
        if seed.design not in [other.design for other in found[:place]]
    ]


def retreats(design: Design, steps: Sequence[Design]) -> list[Design]:
    """Each step once, and none that stays where it is."""
    return [step for place, step in enumerate(steps) if step != design and step not in steps[:place]]
