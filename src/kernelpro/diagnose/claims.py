"""Findings claim parts of the time account, so that their savings add up; unclaimed time is a finding too.

In order of rank, each finding takes the time that its remedy saves from the parts that it claims. If earlier
findings have taken a share of those parts, its saving shrinks by that share. On a CPU, cores idle for as long
as native code runs, so a claim on native code includes idle cores. A kernel that is far from its floor always
gets a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kernelpro.diagnose.account import NATIVE_PARTS, Account
from kernelpro.diagnose.account.parts import PARTS
from kernelpro.diagnose.diagnostic import MEDIUM, REPLACE
from kernelpro.diagnose.kernel_names import display_name
from kernelpro.records import AccountPart, Evidence, Finding, Gain, PartKind, Profile, Severity

UNEXPLAINED = "unexplained"
"""The name of the finding about parts that no diagnostic claims."""
MIN_UNEXPLAINED = 0.15
"""Share of a call from which unclaimed time is a finding."""
MIN_LEFT = 0.2
"""A finding becomes a symptom if earlier findings leave less than this share of its parts, and less than half
of the share that they leave of all parts."""
MIN_OWN = 0.25
"""A symptom whose parts no earlier finding has taken from is a cause, from this share of a call on."""
NEAR_FLOOR = 0.85
"""Share of the floor's speed below which a call without findings gets one."""
_AVOIDABLE = 0.5
"""Share of a part that a targeted rewrite usually removes."""
_MAX_NAMED = 3
_MIN_NAMED = 0.1
"""Share of the unclaimed time from which a kind of part is named."""


def share_claims(
    findings: Sequence[Finding], account: Account, least_ms: float = 0.0
) -> tuple[list[Finding], list[float]]:
    """The findings with `saves_ms`, and the milliseconds that they leave of each part of the account.

    Together they leave at least `least_ms` of the call: the time that a good kernel takes.
    """
    left = [0.0 if part.part == "floor" else part.ms for part in account.parts]
    surplus = sum(left)
    can_save = max(0.0, account.total_ms - least_ms)
    taken: list[dict[str, float]] = [{} for _ in account.parts]
    shared = []
    for finding in findings:
        if finding.objective != "speed":
            shared.append(finding)
            continue
        claimed = [i for i, part in enumerate(account.parts) if left[i] > 0 and _claims(finding, part)]
        available = sum(left[i] for i in claimed)
        whole = claimed_ms(finding, account)
        if finding.explained_by:
            names = {name for i in claimed for name in taken[i]}
            if available < MIN_OWN * account.total_ms or available < whole or names or not finding.claims:
                shared.append(finding)
                continue
            finding = replace(finding, explained_by="")  # no finding before it explains its parts
        remaining = sum(left) / surplus if surplus else 0.0
        if whole and available < min(MIN_LEFT, remaining / 2) * whole:
            cause = _taker(taken[i] for i, part in enumerate(account.parts) if _claims(finding, part))
            shared.append(replace(finding, explained_by=cause, claims=()))
            continue
        saves = account.total_ms * (1 - 1 / finding.gain.factor)
        saves = min(available, can_save, saves * available / whole) if whole else 0.0
        can_save -= saves
        for i in claimed:
            share = left[i] * saves / available if available else 0.0
            left[i] -= share
            taken[i][finding.diagnostic] = taken[i].get(finding.diagnostic, 0.0) + share
        kinds = dict.fromkeys(account.parts[i].part for i in claimed)
        shared.append(replace(finding, claims=tuple(kinds), saves_ms=saves))
    return sorted(shared, key=_order), left


def claimed_ms(finding: Finding, account: Account) -> float:
    """All time above the floor in the parts that a finding claims."""
    return sum(part.ms for part in account.surplus if _claims(finding, part))


def _order(finding: Finding) -> tuple[bool, bool]:
    """Causes, then symptoms; energy last, as it was ranked."""
    speed = finding.objective == "speed"
    return not speed, speed and bool(finding.explained_by)


def _taker(parts: Iterable[dict[str, float]]) -> str:
    """The finding that has taken most of these parts."""
    total: Counter[str] = Counter()
    for taken in parts:
        total.update(taken)
    return total.most_common(1)[0][0]


def _claims(finding: Finding, part: AccountPart) -> bool:
    kinds = (*finding.claims, "not_counted") if finding.claims else ()
    if any(kind in NATIVE_PARTS for kind in kinds):
        kinds = (*kinds, "idle_cores")
    if part.part not in kinds:
        return False
    if finding.claims_of:
        return part.kernel in ("", *finding.claims_of)
    return finding.level == "system" or finding.kernel in ("", part.kernel)


def unexplained(
    profile: Profile, account: Account, left: Sequence[float], has_findings: bool
) -> Finding | None:
    """The finding about the time above the floor that no other finding claims."""
    total = account.total_ms
    library = {display_name(kernel, profile.kernels) for kernel in profile.kernels if not kernel.authored}
    if has_findings:  # users cannot edit a library kernel, and other findings say what to do
        left = [0.0 if part.kernel in library else ms for part, ms in zip(account.parts, left, strict=True)]
    share = sum(left) / total if total else 0.0
    far = profile.floor_ms < NEAR_FLOOR * profile.time_ms
    if share <= 0 or not far or (has_findings and share < MIN_UNEXPLAINED):
        return None
    by_kind: dict[PartKind, float] = {}
    for part, ms in zip(account.parts, left, strict=True):
        by_kind[part.part] = by_kind.get(part.part, 0.0) + ms
    top = sorted(by_kind, key=lambda kind: -by_kind[kind])[:_MAX_NAMED]
    top = [kind for kind in top if by_kind[kind] >= _MIN_NAMED * sum(left)]
    largest = max(zip(left, account.parts, strict=True), key=lambda pair: pair[0])[1]
    lines = dict.fromkeys(
        line for part in account.parts if part.part in top and part.ms for line in part.lines[:1]
    )
    advice = dict.fromkeys(text for kind in top for text in PARTS[kind].advice_for(profile.target)[:1])
    factor = 1 / (1 - _AVOIDABLE * share)
    return Finding(
        UNEXPLAINED,
        "kernel",
        Severity.MEDIUM if factor >= MEDIUM else Severity.LOW,  # it names a place, not a defect
        tuple(Evidence(PARTS[kind].title, round(100 * by_kind[kind] / total), None, "%") for kind in top),
        f"{share:.0%} of the time is above the floor and explained by no other finding; most of it: "
        + ", ".join(PARTS[kind].title for kind in top[:2]),
        (*((REPLACE,) if largest.kernel in library else ()), *advice),
        Gain(round(factor, 3), f"half of the {share:.0%}: a targeted rewrite usually removes that much"),
        largest.kernel,
        ", ".join(list(dict.fromkeys((*largest.lines[:1], *lines)))[:_MAX_NAMED]),
        claims=tuple(top),
        saves_ms=_AVOIDABLE * share * total,
    )
