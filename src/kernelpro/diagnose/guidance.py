"""Guidance: findings in words, for an author or a person. At most five directives; numbers never without a meaning."""

from __future__ import annotations

from kernelpro.records import Diagnosis, Evidence, Finding

MOST_DIRECTIVES = 5
_MOST_EVIDENCE = 3
_MOST_ADVICE = 2


def write(diagnosis: Diagnosis, most: int = MOST_DIRECTIVES) -> str:
    """Deterministic text: the class, then the directives, best first."""
    place = diagnosis.roofline
    lines = [
        f"Bound by {diagnosis.bound} (confidence {diagnosis.confidence}): {diagnosis.why}.",
        f"It takes {place['time_ms']:.4f} ms; the floor is {place['floor_ms']:.4f} ms ({place['of_floor']:.0%} reached).",
    ]
    chosen = _distinct(diagnosis.findings)[:most]
    if not chosen:
        lines.append("Nothing stands out. What is left lies in tuning, or in another algorithm.")
    for number, finding in enumerate(chosen, 1):
        lines += ["", *_directive(number, finding)]
    return "\n".join(lines)


def _distinct(findings: tuple[Finding, ...]) -> list[Finding]:
    """One directive a tool: the first, which is its best. Symptoms of a cause that is told are left out while others wait."""
    found: dict[str, Finding] = {}
    for finding in findings:
        found.setdefault(finding.tool, finding)
    kept = list(found.values())
    return [f for f in kept if not f.explained_by] + [f for f in kept if f.explained_by]


def _directive(number: int, finding: Finding) -> list[str]:
    kernel = f" in {finding.kernel}" if finding.kernel else ""
    where = f" at {finding.where}" if finding.where else ""
    because = f" (follows from {finding.explained_by})" if finding.explained_by else ""
    lines = [f"{number}. [{finding.severity}] {finding.tool}{kernel}{where}{because}: {finding.cause}."]
    if finding.evidence:
        lines.append(f"   Evidence: {'; '.join(map(evidence, finding.evidence[:_MOST_EVIDENCE]))}.")
    lines += [f"   {'Try' if i == 0 else 'Or'}: {text}." for i, text in enumerate(finding.advice[:_MOST_ADVICE])]
    lines.append(f"   Expected: up to {finding.gain.factor:.2f}x ({finding.gain.how}).")
    return lines


def evidence(item: Evidence) -> str:
    """`sectors per request 32 (should be at most 4)`."""
    unit = "" if not item.unit else item.unit if item.unit in ("%", "x") else f" {item.unit}"
    limit = f" (threshold {number(item.threshold)}{unit})" if item.threshold is not None else ""
    return f"{item.metric} {number(item.value)}{unit}{limit}"


def number(value: float) -> str:
    """Three significant digits, without an exponent where a person would not write one."""
    if value == int(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:,.0f}".replace(",", " ")
