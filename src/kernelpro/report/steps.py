"""The steps of a run for the report."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import replace

from kernelpro.diagnose import guidance
from kernelpro.diagnose.account.parts import summarize
from kernelpro.engine import learning
from kernelpro.engine.store import RunStore
from kernelpro.memory.run_memory import Attempt
from kernelpro.records import BadInput, ComparableTimes, Diagnosis, Energy, Finding, Step, Verdict
from kernelpro.report.schema import AccountRow, CodeExcerpt, DiagnosisSummary, FindingSummary, StepSummary
from kernelpro.report.wording import author_name, hardest_baseline, is_compiler

_MAX_LINES = 800
"""Maximum number of lines of a step's code, so that a page with 300 steps still opens. The store has all
lines."""


def summarize_step(
    step: Step,
    parent: Step | None,
    store: RunStore,
    times: ComparableTimes,
    is_winner: bool,
    path: Collection[int],
    finalists: Collection[int],
) -> StepSummary:
    """The summary of a step. `path`: the steps from the first design to the winner."""
    verdict, attempt = step.verdict, _attempt(step, parent, times)
    parent_diagnosis = parent.diagnosis if parent and step.action in ("improve", "combine") else None
    return StepSummary(
        number=step.number,
        parent=step.parent,
        action=step.action,
        donor=step.donor,
        state=step.state,
        author=step.author,
        author_name=author_name(step.author),
        is_compiler=is_compiler(step.author),
        plan=step.plan,
        hypothesis=step.hypothesis,
        expected_speedup=step.details.expected_speedup or None,
        gain=times.gain(step, parent),
        confirmed=attempt.confirmed if attempt else None,
        diagnostic=step.details.diagnostic,
        parent_bound=parent.diagnosis.bound.value if parent and parent.diagnosis else "",
        parent_findings=_summarize_findings(parent_diagnosis) if parent_diagnosis else (),
        reason=verdict.reason if verdict else "",
        note=step.note,
        language=verdict.language if verdict else "",
        ms=verdict.times["candidate"] if verdict and verdict.times else None,
        comparable_ms=times.ms(step),
        hardest_baseline=hardest_baseline(verdict) if verdict and verdict.speedup else None,
        speedup=verdict.speedup if verdict else {},
        faster=verdict.faster if verdict else None,
        energy=energy_without_windows(verdict),
        error=verdict.error if verdict else None,
        tolerance=verdict.tolerance if verdict else None,
        verdict_notes=verdict.notes if verdict else (),
        cost=step.cost,
        device_seconds=step.details.device_seconds,
        tuning=step.details.tuning,
        diagnosis=summarize_diagnosis(step.diagnosis) if step.diagnosis else None,
        profile_error=step.details.profile_error,
        source=step.final_source,
        code=_excerpt(step, parent, store),
        is_winner=is_winner,
        on_path=step.number in path,
        is_finalist=step.number in finalists,
    )


def _attempt(step: Step, parent: Step | None, times: ComparableTimes) -> Attempt | None:
    events = learning.events(step, parent, times)
    return next((event for event in events if isinstance(event, Attempt)), None)


def summarize_diagnosis(diagnosis: Diagnosis) -> DiagnosisSummary:
    """A diagnosis in words."""
    return DiagnosisSummary(
        diagnosis.bound.value,
        diagnosis.confidence,
        diagnosis.why,
        _summarize_account(diagnosis),
        _summarize_findings(diagnosis),
        tuple(guidance.write(diagnosis).splitlines()),
        diagnosis.skipped,
    )


def _summarize_account(diagnosis: Diagnosis) -> tuple[AccountRow, ...]:
    total = sum(part.ms for part in diagnosis.account)
    return tuple(
        AccountRow(row.title, row.ms, row.ms / total, row.lines) for row in summarize(diagnosis.account)
    )


def _summarize_findings(diagnosis: Diagnosis) -> tuple[FindingSummary, ...]:
    return tuple(map(_summarize_finding, diagnosis.findings))


def _summarize_finding(finding: Finding) -> FindingSummary:
    return FindingSummary(
        diagnostic=finding.diagnostic,
        severity=finding.severity.value,
        kernel=finding.kernel,
        where=finding.where,
        cause=finding.cause,
        evidence=tuple(map(guidance.evidence, finding.evidence)),
        advice=finding.advice,
        gain=finding.gain.factor,
        gain_basis=finding.gain.basis,
        explained_by=finding.explained_by,
        objective=finding.objective,
    )


def energy_without_windows(verdict: Verdict | None) -> Energy | None:
    """The energy of a verdict without its list of windows; None if energy was not requested."""
    return replace(verdict.energy, windows=()) if verdict and verdict.energy else None


def _excerpt(step: Step, parent: Step | None, store: RunStore) -> CodeExcerpt | None:
    """The diff to the parent, or the source if there is no parent; long texts are truncated."""
    if not step.final_source:
        return None
    try:
        text = store.source(step.final_source)
        before = store.source(parent.final_source) if parent and parent.final_source else None
    except BadInput as error:
        return CodeExcerpt("lost", str(error))
    if before is None or parent is None:
        return _truncate("source", text.splitlines())
    names = (f"step {parent.number}", f"step {step.number}")
    diff = difflib.unified_diff(before.splitlines(), text.splitlines(), *names, lineterm="")
    return _truncate("diff", list(diff))


def _truncate(kind: str, lines: list[str]) -> CodeExcerpt:
    text, omitted = "\n".join(lines[:_MAX_LINES]), max(0, len(lines) - _MAX_LINES)
    return CodeExcerpt("diff" if kind == "diff" else "source", text, omitted)
