"""The kernels in examples/gpu as cases without a defect: their accounts, and findings that they do not deserve."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernelpro.diagnose import runner
from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab.languages import detect
from kernelpro.records import Profile, Severity
from planted.case import Case
from planted.score import describe

FAMILY = "example"
_EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "gpu"


def example_cases() -> list[Case]:
    """A case for each kernel."""
    return [
        Case(
            name=f"{path.parent.name}-{path.stem}",
            seed=0,
            target="cuda",
            family=FAMILY,
            language=detect(path.read_text(encoding="utf-8")).name,
            defects=(),
            accepted=(),
            task=(path.parent / "task.py").read_text(encoding="utf-8"),
            defective="",
            healthy=path.read_text(encoding="utf-8"),
        )
        for path in sorted(_EXAMPLES.glob("*/*.py"))
        if path.stem != "task"
    ]


def print_examples(rows: Iterable[dict[str, Any]]) -> None:
    """A line for each kernel, then the largest error of an account and the number of severe findings."""
    errors, severe = [], 0
    for row in rows:
        profile = Profile.from_json(row["profiles"]["healthy"])
        diagnosis = runner.diagnose(profile, registry().values())
        errors.append(abs(sum(part.ms for part in diagnosis.account) / profile.time_ms - 1))
        severe += any(finding.severity is Severity.HIGH for finding in diagnosis.findings)
        counted = "counted" if any(kernel.metrics for kernel in profile.kernels) else "no counters"
        print(
            f"{row['case']['name']:36} {profile.time_ms:8.4f} ms {diagnosis.roofline.of_floor:4.0%} of the floor,"
            f" account off by {errors[-1]:.1%}, {counted} | "
            + "; ".join(f"{part.ms / profile.time_ms:.0%} {part.part}" for part in diagnosis.account[:4])
            + f" | {'; '.join(map(describe, diagnosis.findings[:3]))}"
        )
    if errors:
        print(f"examples: {len(errors)}, account off by at most {max(errors):.2%}, severe findings: {severe}")
