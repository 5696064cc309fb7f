"""Sessions: reopening, resuming and finishing runs; deleting a run whose task cannot be scored."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine.known_lab import KnownLab
from engine.verdicts import verdict

from kernelpro.engine import session
from kernelpro.engine.session import RunRequest
from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput, Job, Limits, ProbeData, Result, RunConfig, Shape, Task, Verdict

pytestmark = pytest.mark.together


class Lab(KnownLab):
    """Counts its jobs; `broken` says why the task cannot be scored."""

    def __init__(self, broken: str = ""):
        self.jobs: list[Job] = []
        self._broken = broken

    def verdict(self, job: Job, source: str) -> Verdict:
        return verdict(float(source.split("=")[1]))

    def _result(self, job: Job) -> Result:
        self.jobs.append(job)
        result = super()._result(job)
        if self._broken and isinstance(result.data, ProbeData):
            return Result(job.id, data=replace(result.data, scorable=False, reason=self._broken))
        return result


@pytest.fixture
def request_(tmp_path: Path) -> RunRequest:
    """Two candidates, offered by files."""
    folder = tmp_path / "candidates"
    folder.mkdir()
    for name, ms in (("a", 0.5), ("b", 0.4), ("c", 0.3)):
        (folder / f"{name}.py").write_text(f"ms = {ms}")
    limits = Limits(candidates=2, stop_at_floor=0.0)
    config = RunConfig(Task("", "t"), "cpu", f"files:{folder}", policy="best-of-n", limits=limits)
    return RunRequest(replace(config, knowledge=False, compile_seed=False), tmp_path / "runs", "cpu")


def work(store: RunStore, lab: Lab) -> Any:
    return asyncio.run(session.continue_run(store, lab, explain=False))  # type: ignore[arg-type]


def open_run(request: RunRequest, lab: Lab, **changes: Any) -> RunStore:
    return session.open_run(replace(request, **changes), lab)  # type: ignore[arg-type]


def test_a_finished_run_returns_its_outcome_and_judges_nothing(request_: RunRequest) -> None:
    lab = Lab()
    outcome = work(open_run(request_, lab), lab)
    assert outcome.best == 2 and "2 candidates" in outcome.reason
    done = Lab()
    store = open_run(request_, done, reuse="always")
    assert store.is_finished and work(store, done) == outcome and not done.jobs


def test_a_finished_run_with_a_higher_limit_continues(request_: RunRequest) -> None:
    store = open_run(request_, lab := Lab())
    work(store, lab)
    store.save_config(replace(store.config(), limits=replace(store.config().limits, candidates=3)))
    assert not store.is_finished and work(store, Lab()).best == 3 and store.is_finished


def test_a_higher_limit_without_a_further_candidate_changes_no_outcome(request_: RunRequest) -> None:
    request = replace(request_, config=replace(request_.config, limits=Limits(9, stop_at_floor=0.0)))
    store = open_run(request, lab := Lab())
    outcome = work(store, lab)
    assert outcome.best == 3 and "no further idea" in outcome.reason
    store.save_config(replace(store.config(), limits=Limits(99, stop_at_floor=0.0)))
    again = Lab()
    assert work(store, again) == outcome and not again.jobs


@pytest.mark.parametrize(
    ("reuse", "same"), [("never", (False, False)), ("unfinished", (True, False)), ("always", (True, True))]
)
def test_the_same_request_reopens_a_run_as_asked(
    request_: RunRequest, reuse: str, same: tuple[bool, bool]
) -> None:
    first = open_run(request_, lab := Lab())
    again = open_run(request_, lab, reuse=reuse)
    assert (again.id == first.id) == same[0]
    again.close()
    work(first, lab)
    first.close()
    runs = len(list(request_.runs_dir.iterdir()))
    open_run(request_, lab, reuse=reuse)
    assert (len(list(request_.runs_dir.iterdir())) == runs) == same[1] or reuse == "never"
    other = replace(request_, config=replace(request_.config, seed=1))
    assert open_run(other, lab, reuse=reuse).config().seed == 1, "another configuration is another run"


def test_a_task_that_cannot_be_scored_leaves_nothing_behind(request_: RunRequest) -> None:
    lab, written = Lab("its output is random; if that is dropout, use `--mode eval`"), []
    store = open_run(request_, lab)
    message = r"cannot be scored: its output is random.*--mode eval"
    with pytest.raises(BadInput, match=message), session.closing(store, written.append):
        work(store, lab)
    assert not store.folder.exists() and not written


def test_a_run_with_results_is_closed_with_a_report_however_it_ends(request_: RunRequest) -> None:
    store, written = open_run(request_, lab := Lab()), []
    with pytest.raises(BadInput, match="later"), session.closing(store, written.append):
        work(store, lab)
        raise BadInput("later")
    assert written == [store] and store.folder.exists()
    kept = open_run(request_, Lab())
    with pytest.raises(BadInput), session.closing(kept, written.append, delete_if_unmeasured=False):
        raise BadInput("the spool cannot be reached")
    assert kept.folder.exists()


def test_what_a_pool_cannot_do_is_rejected_before_a_run_exists(request_: RunRequest) -> None:
    bad_author = replace(request_, config=replace(request_.config, author="nobody"))
    with pytest.raises(BadInput, match="nobody"):
        session.validate(bad_author)
    two = replace(request_.config.task, shapes=(Shape(), Shape()))
    lean = replace(request_, config=replace(request_.config, task=two, objective="edp"))
    with pytest.raises(
        BadInput, match="for one shape only, and the task has 2: keep the shape with the most calls"
    ):
        session.validate(lean)
    fortran = replace(request_, config=replace(request_.config, languages=("fortran",)))
    with pytest.raises(BadInput, match="language fortran: kernels for cpu are written in cpp"):
        open_run(fortran, Lab())
    assert not request_.runs_dir.exists()
