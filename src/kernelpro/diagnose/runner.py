"""Stage 2: selects diagnostics, requests the counters they need, runs them, and ranks their findings.

Diagnostics that need no counters (timeline, machine code) always run. The others run where the class of
the bottleneck is among their `bounds`, and only their counters are collected. All selected diagnostics run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from kernelpro.diagnose import roofline
from kernelpro.diagnose.account import ACCOUNT_METRICS, Account, make_account
from kernelpro.diagnose.claims import claimed_ms, share_claims, unexplained
from kernelpro.diagnose.diagnostic import ANY, Diagnostic, DiagnosticContext, MissingData
from kernelpro.diagnose.kernel_names import display_name
from kernelpro.diagnose.track_record import TrackRecord
from kernelpro.records import Bound, Diagnosis, Finding, Profile, ProfileRequest, Skipped
from kernelpro.records.base import describe_bug

_LOG = logging.getLogger(__name__)
_MIN_SHARE = 0.05
"""Share of the device time: even removing a smaller kernel would not be noticeable."""
_MIN_GAIN = 1.03
"""Smaller predicted gains are dropped: repeated measurements differ by as much."""
ENERGY = "energy diagnostics"
"""The name under which skipped energy diagnostics are reported."""


def select(
    diagnostics: Iterable[Diagnostic], bound: Bound, target: str, energy: bool = False
) -> list[Diagnostic]:
    """Diagnostics that run for this class; energy diagnostics only where energy is an objective."""
    return _selected(_applicable(diagnostics, target, energy), {bound})


def _selected(applicable: Iterable[Diagnostic], bounds: set[Bound]) -> list[Diagnostic]:
    return [d for d in applicable if not d.metrics or bounds & d.bounds]


def _applicable(diagnostics: Iterable[Diagnostic], target: str, energy: bool) -> list[Diagnostic]:
    return [d for d in diagnostics if d.target == target and (energy or d.objective == "speed")]


def request_for(
    diagnostics: Iterable[Diagnostic],
    profile: Profile,
    bound: Bound,
    references: tuple[str, ...] = (),
    energy: bool = False,
) -> ProfileRequest:
    """The counters of the diagnostics that this class selects; none where the device mostly idles."""
    if bound is Bound.LAUNCH or profile.target == "cpu":
        return ProfileRequest()
    selected = select(diagnostics, bound, profile.target, energy)
    return ProfileRequest(_metrics(selected), any(d.sample_lines for d in selected), references)


def request_all(
    diagnostics: Iterable[Diagnostic], target: str, references: tuple[str, ...] = ()
) -> ProfileRequest:
    """The counters of all diagnostics, whatever the class."""
    return ProfileRequest(_metrics(d for d in diagnostics if d.target == target), True, references)


def _metrics(diagnostics: Iterable[Diagnostic]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*ACCOUNT_METRICS, *(metric for d in diagnostics for metric in d.metrics))))


def diagnose(
    profile: Profile,
    diagnostics: Iterable[Diagnostic],
    record: TrackRecord | None = None,
    energy: bool = False,
    run_all: bool = False,
) -> Diagnosis:
    """The class of the bottleneck, ranked findings, and what was skipped.

    `run_all`: also run diagnostics that the class does not select.
    """
    classification = roofline.classify(profile)
    account = make_account(profile)
    applicable = _applicable(diagnostics, profile.target, energy)
    bounds = {classification.bound, roofline.counted_class(profile)}
    selected = applicable if run_all else _selected(applicable, bounds)
    findings: list[Finding] = []
    skipped = list(profile.skipped)
    completed = []
    for diagnostic in selected:
        contexts = _contexts(profile, classification.bound, diagnostic, account)
        new_findings, failures = _run(diagnostic, contexts)
        findings += new_findings
        skipped += failures
        if len(failures) < len(contexts):
            completed.append(diagnostic)
    if left_out := [d.name for d in applicable if d not in selected]:
        why = f"not run in class {classification.bound}: {', '.join(left_out)}"
        skipped.append(Skipped("diagnostics for other classes", why, "run all with --all-counters"))
    for_energy = [d for d in applicable if d.objective == "energy"]
    if energy and (why := _energy_skip_reason(profile, classification.bound, for_energy, completed)):
        skipped.append(Skipped(ENERGY, why))
    ranked = _rank(findings, {d.name: d for d in selected}, profile, record or TrackRecord(), account)
    return Diagnosis(
        classification.bound,
        classification.confidence,
        classification.why,
        roofline.position(profile),
        tuple(_with_unexplained(ranked, profile, account)),
        tuple(dict.fromkeys(skipped)),
        energy,
        account.parts,
    )


def _with_unexplained(ranked: list[Finding], profile: Profile, account: Account) -> list[Finding]:
    """Findings whose saved times add up and, after the causes, one about unexplained time."""
    shared, left = share_claims(ranked, account, _least_ms(profile, account))
    rest = unexplained(profile, account, left, any(f.objective == "speed" and f.claims for f in ranked))
    causes = sum(finding.objective == "speed" and not finding.explained_by for finding in shared)
    return [*shared[:causes], rest, *shared[causes:]] if rest else shared


def _least_ms(profile: Profile, account: Account) -> float:
    """Milliseconds that a good CPU kernel would take; claims must leave them.

    0 where the floor alone limits the gains: no finding can claim the floor.
    """
    context = DiagnosticContext(profile, Bound.MEMORY, account=account)
    if profile.target != "cpu" or profile.cpu is None or not context.floor_is_valid:
        return 0.0
    return account.total_ms / context.reachable_gain


def _run(diagnostic: Diagnostic, contexts: list[DiagnosticContext]) -> tuple[list[Finding], list[Skipped]]:
    """The findings of one diagnostic, and why it was skipped. An exception skips only this diagnostic."""
    findings, skipped = [], []
    for context in contexts:
        try:
            match = diagnostic.analyze(context)
            finding = context.to_finding(diagnostic, match) if match is not None else None
        except MissingData as missing:
            skipped.append(Skipped(diagnostic.name, f"the profile lacks {missing}"))
        except Exception as error:
            why = f"it failed: {type(error).__name__}: {error}".splitlines()[0]
            if diagnostic.analyze.__module__.startswith("kernelpro."):
                _LOG.exception("diagnostic %s failed", diagnostic.name)
                why = describe_bug(error)
            skipped.append(Skipped(diagnostic.name, why))
        else:
            if finding is not None and finding.gain.factor >= _MIN_GAIN:
                findings.append(finding)
    return findings, skipped


def _energy_skip_reason(
    profile: Profile, bound: Bound, for_energy: list[Diagnostic], completed: list[Diagnostic]
) -> str:
    """Why energy diagnostics could not run; empty where all ran."""
    missing = sum(diagnostic not in completed for diagnostic in for_energy)
    if not for_energy:
        return "there are none for this target"
    if not missing:
        return ""
    if any(kernel.metrics for kernel in profile.kernels):
        why = "the profile lacks their data"
    elif bound is Bound.LAUNCH:
        why = "counters are not collected in class launch"
    else:
        why = "counters were not collected"
    return f"{missing} of {len(for_energy)} did not run: {why}"


def _contexts(
    profile: Profile, bound: Bound, diagnostic: Diagnostic, account: Account
) -> list[DiagnosticContext]:
    if diagnostic.level == "system" or profile.target == "cpu":
        return [DiagnosticContext(profile, bound, account=account)]
    return [DiagnosticContext(profile, bound, k, account) for k in profile.kernels if k.share >= _MIN_SHARE]


def _rank(
    findings: list[Finding],
    diagnostics: dict[str, Diagnostic],
    profile: Profile,
    record: TrackRecord,
    account: Account,
) -> list[Finding]:
    """Root causes by discounted gain, then symptoms; energy after speed.

    Findings inside library kernels rank last: you cannot edit them. A finding that the kernel should not be
    called at all ranks before them. Of equal gains, as where both end at the floor, the one comes first whose
    parts of the account are larger.
    """
    library = {display_name(kernel, profile.kernels) for kernel in profile.kernels if not kernel.authored}

    def in_library(finding: Finding) -> bool:
        return finding.level != "system" and finding.kernel in library

    def explains(cause: Finding, finding: Finding) -> bool:
        if (
            cause.diagnostic == finding.diagnostic
            or cause.kernel not in (finding.kernel, "")
            or in_library(cause) > in_library(finding)
            or cause.objective != finding.objective  # speed and energy are reported apart
        ):
            return False
        causes = diagnostics[finding.diagnostic].symptom_of
        inside = cause.level != "system" and ANY not in diagnostics[cause.diagnostic].symptom_of
        return cause.diagnostic in causes or (ANY in causes and inside)

    def gain(finding: Finding) -> float:
        return record.discounted_gain(finding.diagnostic, finding.gain.factor)

    causes_of = [[cause for cause in findings if explains(cause, finding)] for finding in findings]
    roots = [finding for finding, causes in zip(findings, causes_of, strict=True) if not causes]
    explained = [
        replace(finding, explained_by=max(causes, key=lambda c: (c in roots, gain(c))).diagnostic)
        if causes
        else finding
        for finding, causes in zip(findings, causes_of, strict=True)
    ]
    return sorted(
        explained,
        key=lambda f: (
            f.objective == "energy",
            in_library(f),
            bool(f.explained_by),
            -gain(f),
            -claimed_ms(f, account),
            f.diagnostic,
            f.kernel,
        ),
    )
