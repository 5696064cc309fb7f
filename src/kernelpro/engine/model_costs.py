"""What models were asked in a run, and what that cost: by role, by step and in all.

Every exchange is in the transcripts, however it ended: failed and cancelled ones were paid for as well. Authors that ask no
model here say what they cost in their steps.
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
"""How the keys of a step's questions begin."""


@dataclass(frozen=True)
class ModelCosts:
    total: Cost
    roles: dict[str, Cost]
    """Of roles that were paid for."""
    steps: dict[int, Cost]
    prompts: tuple[str, ...]
    """Versions of the prompts, the first one used first; more than one where KernelPro was updated in between."""


def read(folder: Path, steps: Iterable[Step]) -> ModelCosts:
    """`folder` is the run's."""
    purse, prompts = SpendingCap(), dict[str, None]()
    for line in Transcripts(folder / FILE).entries():
        purse.restore([(line.role, line.key, line.dollars, line.cost)])
        prompts |= {line.prompt_version: None} if line.prompt_version else {}
    asked: defaultdict[int, Cost] = defaultdict(Cost)
    for key, cost in purse.by_key().items():
        if match := _STEP.match(key):
            asked[int(match[1])] += cost
    others = {step.number: step.cost for step in steps if step.number not in asked}
    roles = {role: cost for role, cost in purse.by_role().items() if cost.calls}
    return ModelCosts(purse.spent + sum(others.values(), Cost()), roles, {**asked, **others}, tuple(prompts))
