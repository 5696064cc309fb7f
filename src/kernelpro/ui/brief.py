"""A step in the few fields that the page's tree, list and charts need.

The fields are read from stored JSON without decoding the records, because a run may have 10,000 steps.
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
    """One step. Field names are short because thousands of steps are sent."""

    n: int
    """Its number."""
    p: int
    """The number of its parent."""
    a: str
    """Its action."""
    s: str
    """Its state: the status of the verdict, or the reason why there is none; while it is open, its stage."""
    open: bool = False
    """Whether it is in progress or queued."""
    ms: float | None = None
    """The measured time of a call."""
    c: float | None = None
    """Its comparable time (records/comparable.py), by which steps are ranked."""
    x: float | None = None
    """The speed-up over the hardest baseline."""
    base: str = ""
    """The display name of that baseline."""
    plan: str = ""
    by: str = ""
    compiler: bool = False
    pasted: bool = False
    donor: int = 0
    profiled: bool = False
    """Whether it was profiled, or profiling failed."""
    usd: float = 0.0
    tokens: int = 0
    lang: str = ""

    @property
    def outcome(self) -> str:
        """Its result in a few words: `passed, 1.52x over torch.compile`, `build failed`."""
        result = self.s.replace("_", " ")
        return f"{result}, {self.x:.2f}x over {self.base}" if self.x else result

    def sparse(self) -> dict[str, Any]:
        """As JSON, without fields that have their default value."""
        return {name: value for name, value in vars(self).items() if value}


def judged_again(step: StepBrief, verdict: Verdict, times: ComparableTimes) -> StepBrief:
    """The step with the times of the final judging."""
    time, comparable = verdict.times.get("candidate"), times.interval(verdict)
    if time is None or comparable is None or not verdict.speedup:
        return step
    hardest = hardest_baseline(verdict)
    x, base = verdict.speedup[hardest].value, baseline_name(hardest)
    return replace(step, ms=time.value, c=comparable.value, x=x, base=base)


def short_name(author: str) -> str:
    """An author's name without the parent folders of its inbox or files: `inbox:questions`."""
    return ", ".join(
        f"{kind}:{Path(path).name}" if kind in ("inbox", "files") else name
        for name in author.split(", ")
        for kind, _, path in [name.partition(":")]
    )


UNREADABLE = "unreadable"
"""The state of a damaged step. A resumed run repeats it."""


def brief(step: dict[str, Any], times: ComparableTimes) -> StepBrief:
    """The fields of a stored step. Of a damaged step, only the number is known."""
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
    """The speed-ups in a stored verdict, or in one of its shapes, by baseline."""
    return {
        name: ratio["value"] for name, ratio in (measured.get("speedup") or {}).items() if "value" in ratio
    }
