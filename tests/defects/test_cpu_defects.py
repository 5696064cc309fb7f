"""Planted defects on the CPU through the whole pipeline: worker, sandbox, compiler, profile, diagnosis."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from defects.building import about

from kernelpro.diagnose.account.parts import PARTS
from kernelpro.diagnose.claims import UNEXPLAINED
from kernelpro.diagnose.diagnostics import registry
from kernelpro.engine.profiling import ProfileSpec, profile
from kernelpro.pools import local
from kernelpro.records import Candidate, Diagnosis, Job, Profile, Result, Severity, Task

HERE = Path(__file__).parent
CANDIDATES = sorted((HERE / "cpu").glob("*.py"))
DEFECTS = [path for path in CANDIDATES if "defect" in about(path)]
CONTROLS = [path for path in CANDIDATES if "control" in about(path)]
DIAGNOSTICS = list(registry().values())


def usual(paths: list[Path], kind: str) -> list[Path]:
    """The first of every seventh kind of defect, and one control; `make test-long` profiles all."""
    first = {about(path)[kind]: path for path in reversed(paths)}
    return sorted(first.values())[::7] if kind == "defect" else paths[:1]


USUAL = [*usual(DEFECTS, "defect"), *usual(CONTROLS, "control")]


def either(paths: list[Path]) -> Any:
    """The usual candidates, or all."""
    some = [path for path in paths if path in USUAL]
    return pytest.mark.parametrize(
        "paths", [pytest.param(some, id="usual"), pytest.param(paths, id="all", marks=pytest.mark.long)]
    )


MAX_PROFILES = 3
"""Other work on the machine can hide how threads interfere: a candidate with a wrong diagnosis is profiled again."""
MAX_WRONG = 1
"""Candidates whose diagnosis may be wrong all the same."""


def rank_of(path: Path, diagnosis: Diagnosis) -> int:
    """Return the rank of the planted defect among the findings; 0: not found."""
    names = list(dict.fromkeys(finding.diagnostic for finding in diagnosis.findings))
    wanted = about(path)["defect"].split("/")
    return next((index for index, name in enumerate(names, 1) if name in wanted), 0)


def causes(diagnosis: Diagnosis) -> list[str]:
    return [f"{finding.diagnostic} {finding.gain.factor}x: {finding.cause}" for finding in diagnosis.findings]


def severe(diagnosis: Diagnosis) -> list[str]:
    return [finding.diagnostic for finding in diagnosis.findings if finding.severity is Severity.HIGH]


class CachedDiagnoses:
    """Profiles each candidate once. Candidates of one task follow each other, so its bench is set up once."""

    def __init__(self, pool: local.LocalPool):
        self._pool = pool
        self._results: dict[Path, tuple[Profile, Diagnosis]] = {}

    def diagnose(self, path: Path) -> tuple[Profile, Diagnosis]:
        if path not in self._results:
            for _ in range(MAX_PROFILES):
                _, diagnosis = self._results[path] = self._profile(path)
                if rank_of(path, diagnosis) == 1 if path in DEFECTS else not severe(diagnosis):
                    break
        return self._results[path]

    def _profile(self, path: Path) -> tuple[Profile, Diagnosis]:
        async def ask(job: Job) -> Result:
            return await asyncio.wrap_future(self._pool.submit(job))

        task = Task.from_file(HERE / "cpu_tasks" / f"{about(path)['task']}.py")
        return asyncio.run(profile(ask, ProfileSpec(task, Candidate.from_file(path), "cpu"), DIAGNOSTICS))


@pytest.fixture(scope="module")
def diagnoses() -> Iterator[CachedDiagnoses]:
    with local.LocalPool() as pool:
        yield CachedDiagnoses(pool)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.long] * (path not in USUAL))
        for path in sorted(CANDIDATES, key=lambda path: about(path)["task"])
    ],
)
def test_findings_are_whole(path: Path, diagnoses: CachedDiagnoses) -> None:
    profile, diagnosis = diagnoses.diagnose(path)
    assert profile.cpu
    assert profile.cpu.sampled or not profile.cpu.static.functions, "only native code has loops to sample"
    assert all("cpu" in PARTS[part.part].targets for part in diagnosis.account)
    assert sum(part.ms for part in diagnosis.account) == pytest.approx(profile.time_ms, rel=0.03)
    for finding in diagnosis.findings:
        assert finding.evidence and finding.cause and finding.advice and finding.gain.basis
        assert finding.gain.factor > 1
        places = finding.where.split(", ") if finding.diagnostic == UNEXPLAINED else [finding.where]
        assert all(re.fullmatch(r"kernel\.cpp:\d+", place) for place in places if place)


@either(DEFECTS)
def test_nine_in_ten_defects_come_first_and_all_but_one_among_the_first_three(
    paths: list[Path], diagnoses: CachedDiagnoses
) -> None:
    ranks = {path.stem: rank_of(path, diagnoses.diagnose(path)[1]) for path in paths}
    findings = {path.stem: causes(diagnoses.diagnose(path)[1]) for path in paths if ranks[path.stem] != 1}
    assert sum(rank == 1 for rank in ranks.values()) >= 0.9 * len(paths), findings
    assert sum(1 <= rank <= 3 for rank in ranks.values()) >= len(paths) - MAX_WRONG, findings


@either(CONTROLS)
def test_the_healthy_are_not_accused(paths: list[Path], diagnoses: CachedDiagnoses) -> None:
    accused = {
        path.stem: causes(diagnoses.diagnose(path)[1])
        for path in paths
        if severe(diagnoses.diagnose(path)[1])
    }
    assert len(accused) <= MAX_WRONG, accused


def test_every_diagnostic_has_its_kernel() -> None:
    assert len(DEFECTS) >= 9 and len(CONTROLS) >= 4
    planted = {name for path in DEFECTS for name in about(path)["defect"].split("/")}
    known = {diagnostic.name for diagnostic in DIAGNOSTICS if diagnostic.target == "cpu"}
    assert planted == known - {"cpu_memory_roof", "cpu_subnormals"}, (
        "cpu_memory_roof reports healthy kernels at the roof; cpu_subnormals depends on the processor"
    )
