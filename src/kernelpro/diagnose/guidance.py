"""Guidance: the findings as text for an author or a person, in at most five directives."""

from __future__ import annotations

from collections.abc import Sequence

from kernelpro.diagnose.account.parts import summarize
from kernelpro.diagnose.diagnostic import FLOOR_TOLERANCE
from kernelpro.diagnose.runner import ENERGY
from kernelpro.records import AccountPart, Bound, Diagnosis, Evidence, Finding

MAX_DIRECTIVES = 5
"""Including those for energy: at least one if there is an energy finding."""
_MAX_ENERGY = 3
_NEAR_FLOOR = 0.8
"""Share of the floor's speed that few kernels exceed."""
_MAX_NAMES = 6
_MAX_EVIDENCE = 3
_MAX_ADVICE = 2
_SUBJECT = {Bound.LAUNCH: "call", Bound.LATENCY: "call"}
"""The subject of the first sentence: the task, except in these classes."""
_SCALED_UNITS = {"B": "B", "bytes": "B", "FLOP": "FLOP"}
"""Units with large values, and how they are written after a prefix."""


def write(diagnosis: Diagnosis, max_directives: int = MAX_DIRECTIVES) -> str:
    """Deterministic text: the class, the directives, best first, and a line for each symptom."""
    lines = [
        f"The {_SUBJECT.get(diagnosis.bound, 'task')} is {diagnosis.bound.phrase} "
        f"(confidence {diagnosis.confidence}): {diagnosis.why}.",
        _distance_to_floor(diagnosis),
        *account_lines(diagnosis.account),
    ]
    distinct = _first_of_each(diagnosis.findings)
    speed = [f for f in distinct if f.objective == "speed"]
    energy = [f for f in distinct if f.objective == "energy" and not f.explained_by and diagnosis.energy]
    energy = energy[: min(_MAX_ENERGY, max(1, max_directives - len(speed)))]
    speed = speed[: max_directives - len(energy)]
    directives, symptoms = [f for f in speed if not f.explained_by], [f for f in speed if f.explained_by]
    if not speed:
        lines.append(_no_findings(diagnosis))
    for number, finding in enumerate(directives, 1):
        lines += ["", *_directive(number, finding)]
    if symptoms:
        lines += ["", "Symptoms, which should disappear with their root causes:"]
        lines += [f"- {f.diagnostic}{_place(f)}, caused by {f.explained_by}: {f.cause}." for f in symptoms]
    if diagnosis.energy:
        lines += ["", *_energy_section(diagnosis, energy, len(directives))]
    return "\n".join(lines)


def account_lines(parts: Sequence[AccountPart]) -> list[str]:
    """The time account, one line a part: `40%  shared memory accesses at kernel.cu:16`."""
    total = sum(part.ms for part in parts)
    lines = []
    for row in summarize(parts):
        where = f" at {', '.join(row.lines)}" if row.lines else ""
        lines.append(f"- {row.ms / total:4.0%}  {row.title}{where}")
    return [f"Where the {total:.4f} ms go:", *lines] if lines else []


def _distance_to_floor(diagnosis: Diagnosis) -> str:
    roofline = diagnosis.roofline
    time, floor = f"Profiled time {roofline.time_ms:.4f} ms", f"{roofline.floor_ms:.4f} ms"
    if roofline.of_floor > FLOOR_TOLERANCE:
        return f"{time}, below the floor of {floor}: the floor is wrong here and does not cap the gains."
    return f"{time}; floor {floor} ({roofline.of_floor:.0%} of the floor's speed)."


def _no_findings(diagnosis: Diagnosis) -> str:
    """What the absence of findings means, by the distance to the floor and by what was skipped."""
    if _NEAR_FLOOR <= diagnosis.roofline.of_floor <= FLOOR_TOLERANCE:
        return "No findings: the call is close to its floor. Tune parameters, or try another algorithm."
    names = list(dict.fromkeys(item.what for item in diagnosis.skipped))
    if names:
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        return f"No diagnostic matched. Some did not run: {', '.join(names[:_MAX_NAMES])}{more}."
    return (
        "No diagnostic matched: none of them covers the cause. Try another algorithm, or compare with "
        "a library kernel."
    )


def _energy_section(diagnosis: Diagnosis, findings: list[Finding], offset: int) -> list[str]:
    if not findings:
        reason = next((item.why for item in diagnosis.skipped if item.what == ENERGY), "")
        return [f"Energy is an objective too: no findings{f' ({ENERGY}: {reason})' if reason else ''}."]
    lines = ["Energy is an objective too. Without losing speed:"]
    for number, finding in enumerate(findings, offset + 1):
        lines += _directive(number, finding)
    return lines


def _first_of_each(findings: tuple[Finding, ...]) -> list[Finding]:
    """The first, and best, finding of each diagnostic; symptoms last."""
    best: dict[str, Finding] = {}
    for finding in findings:
        best.setdefault(finding.diagnostic, finding)
    return sorted(best.values(), key=lambda finding: bool(finding.explained_by))


def _place(finding: Finding) -> str:
    kernel = f" in {finding.kernel}" if finding.kernel else ""
    return kernel + (f" at {finding.where}" if finding.where else "")


def _directive(number: int, finding: Finding) -> list[str]:
    lines = [f"{number}. [{finding.severity}] {finding.diagnostic}{_place(finding)}: {finding.cause}."]
    if finding.evidence:
        lines.append(f"   Evidence: {'; '.join(map(evidence, finding.evidence[:_MAX_EVIDENCE]))}.")
    lines += [
        f"   {'Try' if i == 0 else 'Or'}: {text}." for i, text in enumerate(finding.advice[:_MAX_ADVICE])
    ]
    factor = finding.gain.factor
    gain = f"{factor:.2f}x" if finding.objective == "speed" else f"{1 - 1 / factor:.0%} less energy"
    saves = f", {_milliseconds(finding.saves_ms)} of the call" if finding.saves_ms else ""
    lines.append(f"   Expected: up to {gain}{saves} ({finding.gain.basis}).")
    return lines


def _milliseconds(ms: float) -> str:
    return f"{ms:.4f} ms" if ms < 10 else f"{ms:.1f} ms"


def evidence(item: Evidence) -> str:
    """`sectors per request 32 (vs 17)`: the value and its threshold; a threshold of zero is left out."""
    limit = f" (vs {_with_unit(item.threshold, item.unit)})" if item.threshold else ""
    return f"{item.metric} {_with_unit(item.value, item.unit)}{limit}"


def _with_unit(value: float, unit: str) -> str:
    """A number with its unit; millions of bytes and operations with a prefix."""
    if unit in _SCALED_UNITS and abs(value) >= 1e6:
        for prefix in ("M", "G", "T"):
            value /= 1e3 if prefix != "M" else 1e6
            if abs(value) < 1e3:
                break
        return f"{number(value)} {prefix}{_SCALED_UNITS[unit]}"
    return number(value) + ("" if not unit else unit if unit in ("%", "x") else f" {unit}")


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) < 999.5 and value != int(value):
        return f"{value:.3g}"
    return f"{value:.0f}" if abs(value) < 1e5 else f"{value:,.0f}".replace(",", " ")
