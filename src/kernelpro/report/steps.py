"""A step of a run as plain data: who wrote it and why, what the judge said, how it differs from its parent."""

from __future__ import annotations

import difflib
from typing import Any

from kernelpro.diagnose import guidance
from kernelpro.engine import learning
from kernelpro.engine.store import Store
from kernelpro.memory.run_memory import Attempt
from kernelpro.records import BadInput, Diagnosis, Finding, Step, Verdict
from kernelpro.report.sentence import best_of, by, compiled

_LONGEST_CODE = 800
"""Lines of a step's code or difference: 300 steps must still make a page that opens. The store has all of them."""


def describe(step: Step, parent: Step | None, store: Store) -> dict[str, Any]:
    """All of a step but its place in the run (winner, path, time), which is the run's to say."""
    verdict, attempt = step.verdict, _attempt(step, parent)
    hardest = best_of(verdict) if verdict and verdict.speedup else None
    return {
        "number": step.number,
        "parent": step.parent,
        "action": step.action,
        "second": step.second,
        "state": step.state,
        "author": step.author,
        "by": by(step.author),
        "compiler": compiled(step.author),
        "plan": step.plan,
        "hypothesis": step.hypothesis,
        "promised": step.details.get("promised"),
        "gain": attempt.gain if attempt and parent and parent.ms else None,
        "confirmed": attempt.confirmed if attempt else None,
        "advice": step.details.get("advice", ""),
        "parent_bound": parent.diagnosis.bound.value if parent and parent.diagnosis else "",
        "parent_findings": findings(parent.diagnosis)
        if parent and parent.diagnosis and step.action in ("improve", "combine")
        else [],
        "reason": verdict.reason if verdict else "",
        "note": step.note,
        "language": verdict.language if verdict else "",
        "ms": verdict.times["candidate"].to_json() if verdict and verdict.times else None,
        "against": hardest,
        "speedup": {name: ratio.to_json() for name, ratio in verdict.speedup.items()} if verdict else {},
        "faster": verdict.faster if verdict else None,
        "energy": energy(verdict),
        "error": verdict.error if verdict else None,
        "tolerance": verdict.tolerance if verdict else None,
        "verdict_notes": list(verdict.notes) if verdict else [],
        "cost": step.cost.to_json(),
        "device_seconds": step.details.get("device_seconds", 0.0),
        "tuned": _tuned(step),
        "diagnosis": diagnosis(step.diagnosis) if step.diagnosis else None,
        "not_profiled": step.details.get("not_profiled", ""),
        "source": step.final_source,
        "code": _code(step, parent, store),
    }


def _attempt(step: Step, parent: Step | None) -> Attempt | None:
    return next((event for event in learning.events(step, parent) if isinstance(event, Attempt)), None)


def _tuned(step: Step) -> dict[str, Any] | None:
    """The chosen point of its tunables, and how many were tried; None where it declared none."""
    found = step.details.get("tuned")
    if not found:
        return None
    changed = step.source != step.final_source
    return {"point": found["point"], "why": found["why"], "tried": found["tried"], "changed": changed}


def diagnosis(found: Diagnosis) -> dict[str, Any]:
    return {
        "bound": found.bound.value,
        "confidence": found.confidence,
        "why": found.why,
        "findings": findings(found),
        "guidance": guidance.write(found).splitlines(),
        "skipped": [skipped.to_json() for skipped in found.skipped],
    }


def findings(found: Diagnosis) -> list[dict[str, Any]]:
    return [_finding(finding) for finding in found.findings]


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "tool": finding.tool,
        "severity": finding.severity.value,
        "kernel": finding.kernel,
        "where": finding.where,
        "cause": finding.cause,
        "evidence": [guidance.evidence(item) for item in finding.evidence],
        "advice": list(finding.advice),
        "gain": finding.gain.factor,
        "how": finding.gain.how,
        "explained_by": finding.explained_by,
        "objective": finding.objective,
    }


def energy(verdict: Verdict | None) -> dict[str, Any] | None:
    """What was measured, without the single windows; None where nobody asked."""
    if verdict is None or verdict.energy is None:
        return None
    return {name: value for name, value in verdict.energy.to_json().items() if name != "windows"}


def told(step: dict[str, Any]) -> bool:
    """Whether a step, described as above, has a measured energy."""
    return bool(step["energy"]) and not step["energy"]["refused"]


def _code(step: Step, parent: Step | None, store: Store) -> dict[str, Any] | None:
    """The difference to its parent, or the whole text where there is none to compare with; long ones are cut."""
    if not step.final_source:
        return None
    try:
        text = store.source(step.final_source)
        before = store.source(parent.final_source) if parent and parent.final_source else None
    except BadInput as error:
        return {"kind": "lost", "text": str(error), "left_out": 0}
    if before is None or parent is None:
        return _cut("source", text.splitlines())
    names = (f"step {parent.number}", f"step {step.number}")
    return _cut(
        "diff", list(difflib.unified_diff(before.splitlines(), text.splitlines(), *names, lineterm=""))
    )


def _cut(kind: str, lines: list[str]) -> dict[str, Any]:
    return {
        "kind": kind,
        "text": "\n".join(lines[:_LONGEST_CODE]),
        "left_out": max(0, len(lines) - _LONGEST_CODE),
    }
