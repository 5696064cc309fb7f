"""A step in a few fields: what the tree, the list and the charts of the page need.

It is read from stored JSON without decoding the records: a run may have 10,000 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelpro.records import Record
from kernelpro.report.wording import is_compiler

_PLAN_CHARACTERS = 200


@dataclass(frozen=True)
class StepBrief(Record):
    """One step. Field names are short: thousands of them are sent."""

    n: int
    """Its number."""
    p: int
    """Its parent."""
    a: str
    """Its action."""
    s: str
    """Its state: the status of the verdict, why there is none, or its stage while it is open."""
    open: bool = False
    """It is being worked on, or waits for it."""
    ms: float | None = None
    x: float | None = None
    """Speed-up over the hardest baseline."""
    base: str = ""
    """The name of that baseline."""
    plan: str = ""
    by: str = ""
    compiler: bool = False
    pasted: bool = False
    donor: int = 0
    profiled: bool = False
    """It was, or could not be."""
    usd: float = 0.0
    tokens: int = 0
    lang: str = ""

    def sparse(self) -> dict[str, Any]:
        """As JSON, without fields at their default."""
        return {name: value for name, value in vars(self).items() if value}


def brief(step: dict[str, Any]) -> StepBrief:
    """The fields of a stored step. Damaged parts are left out."""
    verdict, cost = step.get("verdict") or {}, step.get("cost") or {}
    speedup = {
        name: ratio["value"] for name, ratio in (verdict.get("speedup") or {}).items() if "value" in ratio
    }
    hardest = min(speedup, key=lambda name: speedup[name], default="")
    stage = str(step.get("stage", "chosen"))
    text = str(step.get("plan") or step.get("note") or "")
    return StepBrief(
        n=int(step["number"]),
        p=int(step.get("parent", 0)),
        a=str(step.get("action", "")),
        s=str(verdict.get("status") or step.get("no_verdict") or stage),
        open=stage != "settled",
        ms=((verdict.get("times") or {}).get("candidate") or {}).get("value"),
        x=speedup.get(hardest),
        base=hardest,
        plan=text if len(text) <= _PLAN_CHARACTERS else text[: _PLAN_CHARACTERS - 1] + "…",
        by=str(step.get("author", "")),
        compiler=is_compiler(str(step.get("author", ""))),
        pasted=bool(step.get("pasted")),
        donor=int(step.get("donor") or 0),
        profiled=bool(step.get("diagnosis") or (step.get("details") or {}).get("profile_error")),
        usd=float(cost.get("dollars") or 0.0),
        tokens=int(cost.get("tokens_in") or 0) + int(cost.get("tokens_out") or 0),
        lang=str(verdict.get("language", "")),
    )
