"""The corpus of planted defects, as measured on a GPU: the diagnosis names them and accuses no healthy kernel.

The record: NVIDIA H200, driver 580.159.04, CUDA 13.0, ncu 2025.3.1, torch 2.11, Triton 3.6, 2026-11-15; made by
benchmarks/diagnose_defects.py over tests/defects/gpu, and stripped of what no diagnostic reads.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from recorded_profiles import bare

from kernelpro.diagnose import guidance, runner
from kernelpro.diagnose.diagnostics import registry
from kernelpro.records import Diagnosis, Profile, Severity

DEFECTS = Path(__file__).parents[1] / "defects"
DIAGNOSTICS = list(registry().values())


@cache
def recorded() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(gzip.decompress((DEFECTS / "recorded" / "h200.json.gz").read_bytes()))
    return data


@cache
def profiles() -> dict[str, Profile]:
    return {name: Profile.from_json(data) for name, data in recorded().items()}


@cache
def diagnosis(name: str, counters: bool = True) -> Diagnosis:
    profile = profiles()[name]
    return runner.diagnose(profile if counters else bare(profile), DIAGNOSTICS)


def planted(name: str) -> set[str]:
    """Diagnostics that name the defect, from the first line of the candidate."""
    line = (DEFECTS / "gpu" / f"{name}.py").read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    about = dict(part.strip().partition(": ")[::2] for part in line.split("|"))
    return set(about["defect"].split("/"))


def rank(name: str, counters: bool = True) -> int:
    """At which place the planted defect is told; 0 where it is not."""
    names = list(dict.fromkeys(finding.diagnostic for finding in diagnosis(name, counters).findings))
    return next((place for place, found in enumerate(names, 1) if found in planted(name)), 0)


DEFECTIVE = sorted(name for name in recorded() if name.startswith("d_"))
HEALTHY = sorted(name for name in recorded() if name.startswith("c_"))


def test_the_record_holds_the_corpus() -> None:
    corpus = {path.stem for path in (DEFECTS / "gpu").glob("[cd]_*.py")}
    missing = sorted(corpus - set(recorded()))
    assert not missing, f"not recorded on a GPU yet (tests/defects/README.md): {', '.join(missing)}"
    assert set(recorded()) == corpus and len(DEFECTIVE) >= 35 and len(HEALTHY) >= 15


def test_profiles_survive_a_round_trip_through_json() -> None:
    for profile in profiles().values():
        assert Profile.from_json(json.loads(profile.dumps())) == profile


def test_an_empty_object_is_an_absent_record() -> None:
    profile = next(iter(profiles().values()))
    data = profile.to_json() | {
        "power": {},
        "cpu": {},
        "kernels": [profile.kernels[0].to_json() | {"code": {}}],
    }
    absent = Profile.from_json(data)
    assert absent.power is None and absent.cpu is None and absent.kernels[0].code is None


@pytest.mark.parametrize("name", [*DEFECTIVE, *HEALTHY])
def test_no_built_in_diagnostic_fails(name: str) -> None:
    """A diagnostic that raises is skipped, since it may be a third party's; built-in ones must not raise."""
    for profile in (profiles()[name], bare(profiles()[name])):
        skipped = runner.diagnose(profile, DIAGNOSTICS, energy=True, run_all=True).skipped
        assert not [item for item in skipped if item.why.startswith(("it failed", "internal error"))]


@pytest.mark.parametrize("name", DEFECTIVE)
def test_a_planted_defect_is_among_the_first_three(name: str) -> None:
    assert 1 <= rank(name) <= 3


def test_nine_in_ten_come_first() -> None:
    first = [name for name in DEFECTIVE if rank(name) == 1]
    assert len(first) >= 0.9 * len(DEFECTIVE), sorted(set(DEFECTIVE) - set(first))


def test_without_counters_half_are_found() -> None:
    found = [name for name in DEFECTIVE if 1 <= rank(name, counters=False) <= 3]
    assert len(found) >= 0.5 * len(DEFECTIVE), sorted(set(DEFECTIVE) - set(found))


@pytest.mark.parametrize("counters", [True, False], ids=["counted", "not counted"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_kernel_is_not_accused(name: str, counters: bool) -> None:
    severe = [finding for finding in diagnosis(name, counters).findings if finding.severity is Severity.HIGH]
    assert not severe


@pytest.mark.parametrize("name", [*DEFECTIVE, *HEALTHY])
def test_guidance_is_short_and_complete(name: str) -> None:
    text = guidance.write(diagnosis(name))
    assert len(text) < 4500 and text.count("\n1. ") == bool(diagnosis(name).findings)
    assert not any(sign in text for sign in (" None", "nan", "(s)", "  Evidence: .", "..\n"))
