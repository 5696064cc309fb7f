"""A step in a few fields: what the tree, the list and the charts of the page need.

It is read from stored JSON without decoding the records: a run may have 10,000 steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelpro.records import ComparableTimes, Record, Verdict
from kernelpro.report.wording import baseline_name, hardest_baseline, is_compiler

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
    """As measured."""
    c: float | None = None
    """Its comparable time (records/comparable.py), by which steps are ranked."""
    x: float | None = None
    """Speed-up over the hardest baseline."""
    base: str = ""
    """That baseline, named for people."""
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

    @property
    def outcome(self) -> str:
        """Its result in a few words: `passed, 1.52x over torch.compile`, `build failed`."""
        result = self.s.replace("_", " ")
        return f"{result}, {self.x:.2f}x over {self.base}" if self.x else result

    def sparse(self) -> dict[str, Any]:
        """As JSON, without fields at their default."""
        return {name: value for name, value in vars(self).items() if value}


def judged_again(step: StepBrief, verdict: Verdict, times: ComparableTimes) -> StepBrief:
    """The step with its result of the final judging."""
    time, comparable = verdict.times.get("candidate"), times.interval(verdict)
    if time is None or comparable is None or not verdict.speedup:
        return step
    hardest = hardest_baseline(verdict)
    x, base = verdict.speedup[hardest].value, baseline_name(hardest)
    return replace(step, ms=time.value, c=comparable.value, x=x, base=base)


def short_name(author: str) -> str:
    """An author without the folder that its inbox or its files are in: `inbox:questions`."""
    return ", ".join(
        f"{kind}:{Path(path).name}" if kind in ("inbox", "files") else name
        for name in author.split(", ")
        for kind, _, path in [name.partition(":")]
    )


UNREADABLE = "unreadable"
"""The state of a step that is damaged. The run does it again when it is resumed."""


def brief(step: dict[str, Any], times: ComparableTimes) -> StepBrief:
    """The fields of a stored step. Of a damaged one only its number is known."""
    try:
        return _brief(step, times)
    except (TypeError, ValueError, KeyError, AttributeError):
        return StepBrief(int(step["number"]), 0, "", UNREADABLE)


def _brief(step: dict[str, Any], times: ComparableTimes) -> StepBrief:
    verdict, cost = step.get("verdict") or {}, step.get("cost") or {}
    speedup = _ratios(verdict)
    ms = ((verdict.get("times") or {}).get("candidate") or {}).get("value")
    by_shape = [_ratios(shape) for shape in verdict.get("shapes") or ()]
    hardest = min(speedup, key=lambda name: speedup[name], default="")
    stage = str(step["stage"])
    text = str(step.get("plan") or step.get("note") or "")
    return StepBrief(
        n=int(step["number"]),
        p=int(step.get("parent", 0)),
        a=str(step.get("action", "")),
        s=str(verdict.get("status") or step.get("no_verdict") or stage),
        open=stage != "settled",
        ms=ms,
        c=times.value(ms, speedup, by_shape) if ms else None,
        x=speedup.get(hardest),
        base=baseline_name(hardest),
        plan=text if len(text) <= _PLAN_CHARACTERS else text[: _PLAN_CHARACTERS - 1] + "…",
        by=short_name(str(step.get("author", ""))),
        compiler=is_compiler(str(step.get("author", ""))),
        pasted=bool(step.get("pasted")),
        donor=int(step.get("donor") or 0),
        profiled=bool(step.get("diagnosis") or (step.get("details") or {}).get("profile_error")),
        usd=float(cost.get("dollars") or 0.0),
        tokens=int(cost.get("tokens_in") or 0) + int(cost.get("tokens_out") or 0),
        lang=str(verdict.get("language", "")),
    )


def _ratios(measured: dict[str, Any]) -> dict[str, float]:
    """The speed-ups of a stored verdict, or of one of its shapes."""
    return {
        name: ratio["value"] for name, ratio in (measured.get("speedup") or {}).items() if "value" in ratio
    }
