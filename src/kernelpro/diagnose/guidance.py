"""Guidance: findings in words, for an author or a person. At most five directives; numbers never without a meaning."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import FLOOR_HOLDS
from kernelpro.diagnose.runner import ENERGY
from kernelpro.records import Diagnosis, Evidence, Finding

MOST_DIRECTIVES = 5
"""Those for energy among them: one at least where there is one."""
_MOST_ENERGY = 3
_NEAR = 0.8
"""Of the floor: few kernels come closer."""
_MOST_NAMES = 6
_MOST_EVIDENCE = 3
_MOST_ADVICE = 2
_SCALED = {"B": "B", "bytes": "B", "FLOP": "FLOP"}
"""Units that come in millions, and how they are written after a prefix."""


def write(diagnosis: Diagnosis, most: int = MOST_DIRECTIVES) -> str:
    """Deterministic text: the class, the directives, best first, and a line for each symptom that goes with them."""
    lines = [
        f"Bound by {diagnosis.bound} (confidence {diagnosis.confidence}): {diagnosis.why}.",
        _reached(diagnosis),
    ]
    distinct = _distinct(diagnosis.findings)
    told = [f for f in distinct if f.objective == "speed"]
    saving = (
        [f for f in distinct if f.objective == "energy" and not f.explained_by] if diagnosis.energy else []
    )
    saving = saving[: min(_MOST_ENERGY, max(1, most - len(told)))]
    told = told[: most - len(saving)]
    directives, symptoms = [f for f in told if not f.explained_by], [f for f in told if f.explained_by]
    if not told:
        lines.append(_nothing(diagnosis))
    for number, finding in enumerate(directives, 1):
        lines += ["", *_directive(number, finding)]
    if symptoms:
        lines += ["", "Symptoms, which should go with their causes:"]
        lines += [f"- {f.diagnostic}{_place(f)}, from {f.explained_by}: {f.cause}." for f in symptoms]
    if diagnosis.energy:
        lines += ["", *_energy(diagnosis, saving, len(directives))]
    return "\n".join(lines)


def _reached(diagnosis: Diagnosis) -> str:
    place = diagnosis.roofline
    taken, floor = f"It takes {place['time_ms']:.4f} ms in its profile", f"{place['floor_ms']:.4f} ms"
    if place["of_floor"] > FLOOR_HOLDS:
        return f"{taken}, less than the floor of {floor}: that floor is wrong here, and gains are not held against it."
    return f"{taken}; the floor is {floor} ({place['of_floor']:.0%} reached)."


def _nothing(diagnosis: Diagnosis) -> str:
    """Nothing was found: what that means, by how far it is from the floor and by what was looked at."""
    reached = diagnosis.roofline["of_floor"]
    if _NEAR <= reached <= FLOOR_HOLDS:
        return (
            "Nothing stands out, so close to the floor. What is left lies in tuning, or in another algorithm."
        )
    names = list(dict.fromkeys(item.what for item in diagnosis.skipped))
    if names:
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return f"No tool says why. Not all could look: {', '.join(names[:_MOST_NAMES])}{more}."
    return "No tool says why: the cause is one that none of them knows. Compare with another algorithm or a library's kernel."


def _energy(diagnosis: Diagnosis, told: list[Finding], before: int) -> list[str]:
    if not told:
        unseen = next((item.why for item in diagnosis.skipped if item.what == ENERGY), "")
        return [
            f"Energy counts here as well; {f'no waste was found, but {unseen}' if unseen else 'nothing that wastes it stands out'}."
        ]
    lines = ["Energy counts here as well. Without losing speed:"]
    for number, finding in enumerate(told, before + 1):
        lines += _directive(number, finding)
    return lines


def _distinct(findings: tuple[Finding, ...]) -> list[Finding]:
    """One of each tool: the first, which is its best; symptoms last."""
    found: dict[str, Finding] = {}
    for finding in findings:
        found.setdefault(finding.diagnostic, finding)
    return sorted(found.values(), key=lambda finding: bool(finding.explained_by))


def _place(finding: Finding) -> str:
    kernel = f" in {finding.kernel}" if finding.kernel else ""
    return kernel + (f" at {finding.where}" if finding.where else "")


def _directive(number: int, finding: Finding) -> list[str]:
    lines = [f"{number}. [{finding.severity}] {finding.diagnostic}{_place(finding)}: {finding.cause}."]
    if finding.evidence:
        lines.append(f"   Evidence: {'; '.join(map(evidence, finding.evidence[:_MOST_EVIDENCE]))}.")
    lines += [
        f"   {'Try' if i == 0 else 'Or'}: {text}." for i, text in enumerate(finding.advice[:_MOST_ADVICE])
    ]
    factor = finding.gain.factor
    promise = (
        f"up to {factor:.2f}x" if finding.objective == "speed" else f"up to {1 - 1 / factor:.0%} less energy"
    )
    lines.append(f"   Expected: {promise} ({finding.gain.basis}).")
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
