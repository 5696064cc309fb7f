"""What a run adds to the track record of diagnostics; without knowledge, nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from engine.known_lab import KnownLab
from engine.verdicts import verdict

from kernelpro.authors.author import Assignment, Author, Draft
from kernelpro.diagnose.track_record import TrackRecord, default_path
from kernelpro.engine.loop import Engine
from kernelpro.engine.store import RunStore
from kernelpro.records import Job, Limits, Profile, Result, RunConfig, Task, Verdict

pytestmark = pytest.mark.together
PROFILE = Path(__file__).parents[1] / "diagnose" / "profiles" / "narrow_access.json"


class Lab(KnownLab):
    def verdict(self, job: Job, source: str) -> Verdict:
        return verdict(1.0 if source == "step = 1" else 0.5)

    def _result(self, job: Job) -> Result:
        if job.kind == "profile":
            return Result(job.id, profile=Profile.from_json(json.loads(PROFILE.read_text(encoding="utf-8"))))
        return super()._result(job)


class Obedient(Author):
    """Takes the first advice."""

    name = "obedient"

    async def write(self, assignment: Assignment) -> Draft:
        advice = assignment.findings[0].diagnostic if assignment.findings else ""
        return Draft(f"step = {assignment.step}", "a plan", diagnostic=advice)


@pytest.mark.parametrize("knowledge", [True, False])
def test_advice_is_kept_for_later_runs_where_they_may_learn(
    knowledge: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    TrackRecord.load().add("of an earlier run", 2.0, 2.0)
    before = default_path().read_text()
    config = RunConfig(
        Task("", "t"),
        "cuda",
        "obedient",
        policy="greedy",
        limits=Limits(2),
        concurrency=1,
        knowledge=knowledge,
    )
    store = RunStore.create(tmp_path, config, "demo")
    asyncio.run(Engine(store, Lab(), Obedient()).run())  # type: ignore[arg-type]
    assert store.steps()[1].details.diagnostic
    assert (default_path().read_text() != before) == knowledge
