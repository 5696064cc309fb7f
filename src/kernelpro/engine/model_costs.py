"""What the models of a run cost: by role, by step and in total.

The transcripts contain every exchange, including failed and cancelled ones, which cost money too. Authors
that use no transcripts report their cost in their steps.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernelpro.llm.cap import SpendingCap
from kernelpro.llm.transcripts import FILE, Transcripts
from kernelpro.records import Cost, Step

_STEP = re.compile(r"step-(\d+)/")
"""The prefix of the keys of a step's questions."""


@dataclass(frozen=True)
class ModelCosts:
    """Costs of a run."""

    total: Cost
    roles: dict[str, Cost]
    """Cost by role, for roles that made calls."""
    steps: dict[int, Cost]
    """Cost by step."""
    prompts: tuple[str, ...]
    """Versions of the prompts in order of use; several if KernelPro was updated during the run."""


def read(folder: Path, steps: Iterable[Step]) -> ModelCosts:
    """The costs of a run. `folder`: the run's folder."""
    spending, prompts = SpendingCap(), dict[str, None]()
    for entry in Transcripts(folder / FILE).entries():
        spending.restore([(entry.role, entry.key, entry.dollars, entry.cost)])
        prompts |= {entry.prompt_version: None} if entry.prompt_version else {}
    by_step: defaultdict[int, Cost] = defaultdict(Cost)
    for key, cost in spending.by_key().items():
        if match := _STEP.match(key):
            by_step[int(match[1])] += cost
    others = {step.number: step.cost for step in steps if step.number not in by_step}
    roles = {role: cost for role, cost in spending.by_role().items() if cost.calls}
    return ModelCosts(
        spending.spent + sum(others.values(), Cost()), roles, {**by_step, **others}, tuple(prompts)
    )
