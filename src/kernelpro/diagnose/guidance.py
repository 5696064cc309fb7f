"""Guidance: findings in words, for an author or a person. At most five directives; numbers never without a meaning."""

from __future__ import annotations

from kernelpro.records import Diagnosis, Evidence, Finding

MOST_DIRECTIVES = 5
_MOST_ENERGY = 3
_MOST_EVIDENCE = 3
_MOST_ADVICE = 2
_SCALED = {"B": "B", "bytes": "B", "FLOP": "FLOP"}
"""Units that come in millions, and how they are written after a prefix."""


def write(diagnosis: Diagnosis, most: int = MOST_DIRECTIVES) -> str:
    """Deterministic text: the class, the directives, best first, and a line for each symptom that goes with them."""
    place = diagnosis.roofline
    time_ms, floor_ms = place["time_ms"], place["floor_ms"]
    lines = [
        f"Bound by {diagnosis.bound} (confidence {diagnosis.confidence}): {diagnosis.why}.",
        f"It takes {time_ms:.4f} ms in its profile; the floor is {floor_ms:.4f} ms ({place['of_floor']:.0%} reached).",
    ]
    told = [f for f in _distinct(diagnosis.findings) if f.objective == "speed"][:most]
    directives, symptoms = [f for f in told if not f.explained_by], [f for f in told if f.explained_by]
    if not told:
        lines.append("Nothing stands out. What is left lies in tuning, or in another algorithm.")
    for number, finding in enumerate(directives, 1):
        lines += ["", *_directive(number, finding)]
    if symptoms:
        lines += ["", "Symptoms, which should go with their causes:"]
        lines += [f"- {f.tool}{_place(f)}, from {f.explained_by}: {f.cause}." for f in symptoms]
    if diagnosis.energy:
        lines += ["", *_energy(diagnosis.findings, len(directives))]
    return "\n".join(lines)


def _energy(findings: tuple[Finding, ...], before: int) -> list[str]:
    told = [f for f in _distinct(findings) if f.objective == "energy" and not f.explained_by][:_MOST_ENERGY]
    if not told:
        return ["Energy counts here as well; nothing that wastes it stands out."]
    lines = ["Energy counts here as well. Without losing speed:"]
    for number, finding in enumerate(told, before + 1):
        lines += _directive(number, finding)
    return lines


def _distinct(findings: tuple[Finding, ...]) -> list[Finding]:
    """One of each tool: the first, which is its best; symptoms last."""
    found: dict[str, Finding] = {}
    for finding in findings:
        found.setdefault(finding.tool, finding)
    return sorted(found.values(), key=lambda finding: bool(finding.explained_by))


def _place(finding: Finding) -> str:
    kernel = f" in {finding.kernel}" if finding.kernel else ""
    return kernel + (f" at {finding.where}" if finding.where else "")


def _directive(number: int, finding: Finding) -> list[str]:
    lines = [f"{number}. [{finding.severity}] {finding.tool}{_place(finding)}: {finding.cause}."]
    if finding.evidence:
        lines.append(f"   Evidence: {'; '.join(map(evidence, finding.evidence[:_MOST_EVIDENCE]))}.")
    lines += [f"   {'Try' if i == 0 else 'Or'}: {text}." for i, text in enumerate(finding.advice[:_MOST_ADVICE])]
    factor = finding.gain.factor
    promise = f"up to {factor:.2f}x" if finding.objective == "speed" else f"up to {1 - 1 / factor:.0%} less energy"
    lines.append(f"   Expected: {promise} ({finding.gain.how}).")
    return lines


def evidence(item: Evidence) -> str:
    """`sectors a request 32 (vs 17)`: the value, and what it is held against. Against nothing at all, the value speaks alone."""
    limit = f" (vs {_measure(item.threshold, item.unit)})" if item.threshold else ""
    return f"{item.metric} {_measure(item.value, item.unit)}{limit}"


def _measure(value: float, unit: str) -> str:
    """A number with its unit; millions of bytes and operations with a prefix."""
    if unit in _SCALED and abs(value) >= 1e6:
        for prefix in ("M", "G", "T"):
            value /= 1e3 if prefix != "M" else 1e6
            if abs(value) < 1e3:
                break
        return f"{number(value)} {prefix}{_SCALED[unit]}"
    return number(value) + ("" if not unit else unit if unit in ("%", "x") else f" {unit}")


def number(value: float) -> str:
    """Three significant digits, without an exponent where a person would not write one."""
    if abs(value) < 999.5 and value != int(value):
        return f"{value:.3g}"
    return f"{value:.0f}" if abs(value) < 1e5 else f"{value:,.0f}".replace(",", " ")
