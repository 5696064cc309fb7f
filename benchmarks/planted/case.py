"""Cases: a task, a kernel with one or two planted defects, and its healthy twin."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Target = Literal["cpu", "cuda"]
SIDES = ("defective", "healthy")


@dataclass(frozen=True)
class Kernel:
    """What a family writes: the task, and a kernel for it."""

    task: str
    source: str


Write = Callable[[random.Random, frozenset[str]], Kernel]
"""Writes a kernel with these defects. The same seed gives the same task and the same healthy code."""


@dataclass(frozen=True)
class Family:
    """A healthy kernel with switches."""

    name: str
    target: Target
    language: str
    write: Write
    defects: dict[str, tuple[str, ...]]
    """By kind of defect, the diagnostics that name it."""
    apart: frozenset[frozenset[str]] = frozenset()
    """Pairs of kinds that exclude each other."""

    def can_combine(self, first: str, second: str) -> bool:
        """Whether both defects fit into one kernel and have different diagnostics."""
        same = set(self.defects[first]) & set(self.defects[second])
        return not same and frozenset((first, second)) not in self.apart


@dataclass(frozen=True)
class Case:
    """One kernel with planted defects, and its twin without."""

    name: str
    seed: int
    target: Target
    family: str
    language: str
    defects: tuple[str, ...]
    accepted: tuple[tuple[str, ...], ...]
    """For each defect, the diagnostics that name it."""
    task: str = field(repr=False)
    defective: str = field(repr=False)
    healthy: str = field(repr=False)

    @property
    def sides(self) -> tuple[str, ...]:
        """Both, or the healthy one alone where nothing is planted."""
        return tuple(side for side in SIDES if getattr(self, side))

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def generate(families: Sequence[Family], seed: int, count: int, pair_share: float = 0.25) -> list[Case]:
    """Draw cases: each kind of defect in turn, in a random family that has it; some get a second defect.

    The order of the kinds is drawn anew for each round, so that any number of cases covers them evenly.
    """
    rng = random.Random(f"cases {seed}")
    kinds = sorted({(family.target, kind) for family in families for kind in family.defects})
    cases: list[Case] = []
    while len(cases) < count:
        rng.shuffle(kinds)
        for _, kind in kinds[: count - len(cases)]:
            family = rng.choice([family for family in families if kind in family.defects])
            others = [other for other in family.defects if other != kind and family.can_combine(kind, other)]
            second = [rng.choice(others)] if others and rng.random() < pair_share else []
            cases.append(make_case(family, (kind, *second), rng.randrange(1 << 30)))
    return cases


def make_case(family: Family, defects: tuple[str, ...], seed: int) -> Case:
    """The case of these defects and this seed."""
    defective = family.write(random.Random(seed), frozenset(defects))
    healthy = family.write(random.Random(seed), frozenset())
    assert defective.task == healthy.task, f"{family.name}: {defects} changes the task"
    assert defective.source != healthy.source, f"{family.name}: {defects} changes nothing"
    return Case(
        name=f"{family.name}-{'+'.join(defects)}-{seed:x}",
        seed=seed,
        target=family.target,
        family=family.name,
        language=family.language,
        defects=defects,
        accepted=tuple(family.defects[kind] for kind in defects),
        task=defective.task,
        defective=defective.source,
        healthy=healthy.source,
    )


def exclude(*groups: Iterable[str]) -> frozenset[frozenset[str]]:
    """All pairs within each group."""
    return frozenset(frozenset(pair) for group in groups for pair in itertools.combinations(group, 2))


def write_task(forward: str, inputs: str, init: str = "[]", setup: str = "", parameters: str = "") -> str:
    """A task file: `forward` is the body of the reference, `inputs` the list that get_inputs returns."""
    constructor = (
        f"    def __init__(self, *sizes):\n        super().__init__()\n{_indent(parameters, 8)}\n"
        if parameters
        else ""
    )
    arguments = forward.split(":", 1)[0]
    body = forward.split(":", 1)[1].strip()
    return (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n"
        f"{constructor}    def forward(self, {arguments}):\n        return {body}\n\n\n{setup}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return {init}\n"
    )


def _indent(text: str, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in text.splitlines())
