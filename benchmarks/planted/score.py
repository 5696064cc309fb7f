"""Scores the diagnosis of measured cases: ranks of the planted defects, predicted over measured gains."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kernelpro.diagnose import roofline, runner
from kernelpro.diagnose.claims import NEAR_FLOOR
from kernelpro.diagnose.diagnostics import registry
from kernelpro.records import Bound, Diagnosis, Finding, Profile, Severity
from planted.families import CPU, CUDA

MIN_EFFECT = 1.1
"""A planted defect that costs less has no effect on this machine: its rank is not counted."""
FIRST = 3


@dataclass(frozen=True)
class CaseScore:
    """What the diagnosis said of one case and of its twin."""

    name: str
    defects: tuple[str, ...]
    measured: float
    """Time with the defects over time without."""
    ranks: tuple[int, ...]
    """Rank of each planted defect among the findings; 0: not found."""
    predicted: float | None
    """The gain that the findings on the planted defects predict together; None: some is not found."""
    findings: tuple[str, ...]
    healthy_findings: tuple[str, ...]
    healthy_severe: bool
    of_floor: float
    healthy_of_floor: float
    empty: bool
    """Far from the floor and no finding, with the defect or without."""
    account_error: float

    @property
    def family(self) -> str:
        """The healthy kernel that it was made of."""
        return self.name.split("-")[0]

    @property
    def counts(self) -> bool:
        """Whether the defect has an effect."""
        return self.measured >= MIN_EFFECT

    @property
    def first(self) -> bool:
        """Whether a planted defect is the top finding."""
        return 1 in self.ranks

    @property
    def in_first_three(self) -> bool:
        """Whether all planted defects are among the first three findings."""
        return all(0 < rank <= FIRST for rank in self.ranks)


def lacks_counters(row: dict[str, Any]) -> bool:
    """Whether ncu was interrupted: a kernel on a GPU without counters, outside class launch."""
    profile = Profile.from_json(row["profiles"]["defective"])
    counted = any(kernel.metrics for kernel in profile.kernels)
    return profile.target == "cuda" and not counted and roofline.counted_class(profile) is not Bound.LAUNCH


def score(row: dict[str, Any]) -> CaseScore:
    """The score of a measured case."""
    case = row["case"]
    accepted = find_accepted(case)
    profiles = {side: Profile.from_json(data) for side, data in row["profiles"].items()}
    diagnoses = {side: runner.diagnose(profile, _DIAGNOSTICS) for side, profile in profiles.items()}
    sick = diagnoses["defective"]
    order = list(dict.fromkeys(finding.diagnostic for finding in sick.findings))
    ranks = tuple(
        next((rank for rank, name in enumerate(order, 1) if name in names), 0) for names in accepted
    )
    healthy = diagnoses["healthy"]
    return CaseScore(
        case["name"],
        tuple(case["defects"]),
        row["ms"]["defective"] / row["ms"]["healthy"],
        ranks,
        _predicted(sick, accepted) if all(ranks) else None,
        tuple(map(describe, sick.findings)),
        tuple(map(describe, healthy.findings)),
        any(finding.severity is Severity.HIGH for finding in healthy.findings),
        sick.roofline.of_floor,
        healthy.roofline.of_floor,
        any(not d.findings and d.roofline.of_floor < NEAR_FLOOR for d in diagnoses.values()),
        max(
            abs(sum(part.ms for part in diagnoses[side].account) / profiles[side].time_ms - 1)
            for side in profiles
        ),
    )


_DIAGNOSTICS = list(registry().values())
_FAMILIES = {family.name: family for family in (*CPU, *CUDA)}


def find_accepted(case: dict[str, Any]) -> list[tuple[str, ...]]:
    """The diagnostics that name each defect; as recorded where the family is gone."""
    family = _FAMILIES.get(case["family"])
    return [
        family.defects[kind] if family and kind in family.defects else tuple(recorded)
        for kind, recorded in zip(case["defects"], case["accepted"], strict=True)
    ]


def describe(finding: Finding) -> str:
    """`cpu_divisions 1.42h <cause`"""
    explained = f" <{finding.explained_by}" if finding.explained_by else ""
    return f"{finding.diagnostic} {finding.gain.factor:.2f}{finding.severity[0]}{explained}"


def _predicted(diagnosis: Diagnosis, accepted: Iterable[Iterable[str]]) -> float:
    """The joint gain of the findings on planted defects: their savings add up."""
    total = sum(part.ms for part in diagnosis.account)
    chosen: list[Finding] = []
    for names in accepted:  # without the defect, all findings that name it go
        named = [finding for finding in diagnosis.findings if finding.diagnostic in names]
        chosen += [finding for finding in named if not finding.explained_by] or named[:1]
    if len(chosen) == 1:
        return chosen[0].gain.factor
    saved = sum(finding.saves_ms for finding in chosen)
    return max(
        max(finding.gain.factor for finding in chosen),
        total / max(total - saved, min(total, diagnosis.roofline.floor_ms)),
    )


def find_inert(scores: Iterable[CaseScore]) -> frozenset[tuple[str, str]]:
    """The families and kinds whose single defects have no effect here, in the median."""
    effects: dict[tuple[str, str], list[float]] = {}
    for one in scores:
        if len(one.defects) == 1:
            effects.setdefault((one.family, one.defects[0]), []).append(one.measured)
    return frozenset(key for key, factors in effects.items() if statistics.median(factors) < MIN_EFFECT)


def summarize(scores: list[CaseScore]) -> dict[str, Any]:
    """The statistics over cases. `active_pairs`: of two defects that both have an effect alone."""
    counted = [one for one in scores if one.counts]
    singles = [one for one in counted if len(one.defects) == 1]
    pairs = [one for one in counted if len(one.defects) == 2]
    inert = find_inert(scores)
    active = [one for one in pairs if inert.isdisjoint((one.family, kind) for kind in one.defects)]
    ratios = sorted(one.predicted / one.measured for one in counted if one.predicted)
    healthy = len(scores)
    within = sum(0.6 <= ratio <= 1.5 for ratio in ratios)
    return {
        "cases": len(scores),
        "with_effect": len(counted),
        "single": len(singles),
        "single_first": _share(one.first for one in singles),
        "single_in_three": _share(one.in_first_three for one in singles),
        "pairs": len(pairs),
        "pairs_first": _share(one.first for one in pairs),
        "pairs_in_three": _share(one.in_first_three for one in pairs),
        "active_pairs": len(active),
        "active_pairs_in_three": _share(one.in_first_three for one in active),
        "healthy": healthy,
        "healthy_severe": sum(one.healthy_severe for one in scores),
        "empty_pages": sum(one.empty for one in scores),
        "account_error": round(max((one.account_error for one in scores), default=0.0), 4),
        "gains": len(ratios),
        "gain_median": round(statistics.median(ratios), 3) if ratios else None,
        "gain_within": round(within / len(ratios), 3) if ratios else None,
    }


def _share(values: Iterable[bool]) -> float | None:
    listed = list(values)
    return round(sum(listed) / len(listed), 3) if listed else None


def print_scores(scores: list[CaseScore], misses_only: bool = False) -> None:
    """A line for each case, then the statistics."""
    for one in scores:
        good = one.first if len(one.defects) == 1 else one.in_first_three
        mark = "ok" if good else "none" if not all(one.ranks) else f"rank {max(one.ranks)}"
        mark = mark if one.counts else f"({mark})"
        off = one.predicted and not 0.6 <= one.predicted / one.measured <= 1.5
        if misses_only and good and not off and not one.healthy_severe and not one.empty:
            continue
        predicted = f"{one.predicted:5.2f}" if one.predicted else "  -  "
        found = "; ".join(one.findings[:4])
        healthy = f" || healthy {one.healthy_of_floor:.2f}: {'; '.join(one.healthy_findings[:2])}"
        flag = "!" if one.healthy_severe else " "
        print(
            f"{one.name:48} {mark:8} {one.measured:5.2f} {predicted} {one.of_floor:.2f} | {found}{flag}{healthy}"
        )
    for name, value in summarize(scores).items():
        print(f"{name}: {value}")
