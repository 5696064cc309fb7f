"""The spool's folder: who may take what, what is found again, and what is set aside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from spooling import TASK, building, judging

from kernelpro.lab.machine import Device, Gpu
from kernelpro.pools.factory import create_pool
from kernelpro.pools.pool import ResultPending
from kernelpro.pools.spool import transfer
from kernelpro.pools.spool.entries import JobEntry, job_entry, parse_entry, result_entry, to_line
from kernelpro.pools.spool.folder import MAX_ATTEMPTS, LeaseHolder, SpoolFolder
from kernelpro.pools.spool.pool import SpoolPool
from kernelpro.records import BadInput, BuildData, Job, Result, Status, Verdict

ME = LeaseHolder("me", "a processor", 60.0)
OTHER = LeaseHolder("another", "a processor", 60.0)


class Spooling:
    """A folder, and what it had to complain of."""

    def __init__(self, path: Path):
        self.heard: list[str] = []
        self.path = path
        self.folder = SpoolFolder(path, self.heard.append)

    def post(self, job: Job, match: str = "") -> JobEntry:
        posted = job_entry(job, match)
        self.folder.add_job(posted)
        return posted

    def finish(self, posted: JobEntry, **found: object) -> bool:
        result = Result(posted.job.id, **(found or {"data": BuildData(reason="1")}))  # type: ignore[arg-type]
        return self.folder.add_result(result_entry(posted, result, "me", "a processor", 1.0))

    def age(self, path: Path, seconds: float = 100.0) -> None:
        os.utime(path, (time.time() - seconds,) * 2)


@pytest.fixture
def spool(tmp_path: Path) -> Spooling:
    return Spooling(tmp_path / "spool")


# --- jobs and results ------------------------------------------------------------------------------------


def test_the_same_question_has_the_same_key_whoever_asks() -> None:
    asked = judging("2", "step 1")
    assert job_entry(asked).key == job_entry(judging("2", "step 9")).key
    assert job_entry(asked).key == job_entry(Job.from_json(json.loads(asked.dumps()))).key
    others = [
        judging("3"),
        replace(asked, kind="profile"),
        replace(asked, options=replace(asked.options, effort="full")),
    ]
    assert (
        len({job_entry(asked).key, job_entry(asked, "H200").key, *(job_entry(job).key for job in others)})
        == 5
    )
    earlier = json.loads(job_entry(asked).dumps())
    del earlier["job"]["options"]["energy_baseline"], earlier["job"]["tune_points"]
    assert parse_entry(json.dumps(earlier)), "posted by a version that had fewer options"


def test_a_result_is_found_again_under_the_name_of_whoever_asks(spool: Spooling) -> None:
    first = SpoolPool(spool.path, wait=False)
    with pytest.raises(ResultPending, match="judge relu step 1 waits in"):
        first.run(judging("2", "step 1"))
    assert first.pending_jobs == 1
    spool.finish(job_entry(judging("2")), verdict=Verdict("step 1", Status.WRONG, "off", task="relu"))
    found = SpoolPool(spool.path, wait=False).run(judging("2", "step 9"))
    assert found.job == "step 9" and found.verdict and found.verdict.candidate == "step 9"


def test_who_waits_gets_results_as_they_come(spool: Spooling) -> None:
    with SpoolPool(spool.path) as asking:
        stages: list[str] = []
        answers = [asking.submit(building(n), lambda step: stages.append(step.stage)) for n in range(3)]
        (first, *_) = posted = spool.folder.open_jobs()
        lease = spool.folder.acquire(first, ME)
        assert lease
        spool.folder.report_stage(lease, "building")
        while "building (me)" not in stages:
            time.sleep(0.05)
        for job in posted:
            spool.finish(job, data=BuildData(reason=job.job.id))
        assert [a.result(10).data for a in answers] == [BuildData(reason=f"build {n}") for n in range(3)]
        assert asking.pending_jobs == 0


def test_whoever_is_interrupted_while_asking_can_leave(
    spool: Spooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # what runs in the background ignores it
    try:
        with SpoolPool(spool.path) as asking, monkeypatch.context() as moment:
            moment.setattr(threading.Thread, "start", lambda self: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                asking.submit(building(1))
    finally:
        signal.signal(signal.SIGINT, before)
    assert [posted.job.id for posted in spool.folder.open_jobs()] == ["build 1"], (
        "what was asked for stays asked for"
    )


def test_an_error_is_handed_out_once(spool: Spooling) -> None:
    spool.finish(spool.post(building(1)), error="the GPU is throttling")
    asking = SpoolPool(spool.path, wait=False)
    assert asking.run(building(1)).error == "the GPU is throttling"
    assert not SpoolFolder(spool.path).open_jobs(), "nobody does it again unasked"
    with pytest.raises(ResultPending):
        asking.run(building(1))


def test_the_first_result_stands(spool: Spooling) -> None:
    posted = spool.post(building(1))
    assert spool.finish(posted, data=BuildData(reason="1")) and not spool.finish(
        posted, data=BuildData(reason="2")
    )
    assert SpoolPool(spool.path).run(building(1)).data == BuildData(reason="1")


# --- leases ----------------------------------------------------------------------------------------------


def test_one_job_has_one_holder(spool: Spooling) -> None:
    posted = spool.post(building(1))
    lease = spool.folder.acquire(posted, ME)
    assert lease and spool.folder.acquire(posted, OTHER) is None
    spool.folder.release(lease)
    again = spool.folder.acquire(posted, OTHER)
    assert again and spool.folder.attempts(posted.key) == 0, "what is given back was no attempt"
    spool.folder.report_stage(again, "building")
    assert spool.folder.attempts(posted.key) == 1


RACER = """
import sys
from pathlib import Path
from kernelpro.pools.spool.folder import LeaseHolder, SpoolFolder
folder = SpoolFolder(Path(sys.argv[1]))
jobs = folder.open_jobs()
print("ready", flush=True)
sys.stdin.readline()
print(" ".join(posted.key for posted in jobs if folder.acquire(posted, LeaseHolder(sys.argv[2], "a processor", 60.0))), flush=True)
"""


def test_processes_that_race_share_the_jobs(spool: Spooling) -> None:
    keys = {spool.post(building(n)).key for n in range(200)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(spool.path), str(n)], **pipes) for n in range(4)
    ]  # type: ignore[call-overload]
    assert all(racer.stdout.readline() == "ready\n" for racer in racers)
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    taken = [key for racer in racers for key in racer.communicate()[0].split()]
    assert sorted(taken) == sorted(keys), "each by exactly one"


def test_a_lease_that_is_not_renewed_returns(spool: Spooling) -> None:
    posted = spool.post(building(1))
    lost = spool.folder.acquire(posted, ME)
    assert lost
    spool.age(lost.path, 50)
    assert spool.folder.acquire(posted, OTHER) is None, "not yet"
    spool.age(lost.path, 70)
    assert spool.folder.acquire(posted, OTHER)
    spool.folder.renew(lost)
    assert spool.folder.lease_holders()[posted.key].worker == "another", "who comes back late holds nothing"


def test_a_job_that_outlives_all_its_workers_is_answered(spool: Spooling) -> None:
    posted = spool.post(judging("2"))
    for _ in range(MAX_ATTEMPTS):
        lease = spool.folder.acquire(posted, ME)
        assert lease
        spool.folder.report_stage(lease, "timing")
        spool.age(lease.path)
    assert spool.folder.acquire(posted, ME) is None
    asking = SpoolPool(spool.path, wait=False)
    found = asking.run(judging("2"))
    assert (
        found.verdict
        and found.verdict.status is Status.CRASHED
        and f"{MAX_ATTEMPTS} workers died" in found.verdict.reason
    )
    assert found.lost == found.verdict.reason, "the candidate may not be to blame"
    with pytest.raises(ResultPending):
        asking.run(judging("2"))
    assert spool.folder.acquire(posted, ME), "asked again, it is done again"


def test_a_job_that_was_taken_ahead_and_never_begun_has_no_attempts(spool: Spooling) -> None:
    posted = spool.post(judging("2"))
    for _ in range(2 * MAX_ATTEMPTS):
        lease = spool.folder.acquire(posted, ME)
        assert lease
        spool.age(lease.path)
    assert spool.folder.acquire(posted, ME) and spool.folder.attempts(posted.key) == 0


# --- hardware --------------------------------------------------------------------------------------------

H200, A100 = Device(Gpu("GPU-1", "NVIDIA H200")), Device(Gpu("GPU-2", "NVIDIA A100"))


def test_a_task_stays_on_one_kind_of_hardware(spool: Spooling) -> None:
    first, second = (spool.post(replace(judging(n), target="cuda")) for n in "23")
    assert (
        spool.folder.hardware_for(first, H200) == "NVIDIA H200"
        and spool.folder.hardware_for(first, A100) == "NVIDIA A100"
    )
    assert spool.folder.hardware_for(first, Device()) is None, "no GPU, no job for one"
    lease = spool.folder.acquire(first, LeaseHolder("me", "NVIDIA A100", 60.0))
    assert lease and spool.folder.hardware_for(second, H200), "what was not begun binds nobody"
    spool.folder.report_stage(lease, "building")
    assert (
        spool.folder.hardware_for(second, H200) is None
        and spool.folder.hardware_for(second, A100) == "NVIDIA A100"
    )
    other = spool.post(replace(judging("4"), task=replace(TASK, mode="eval"), target="cuda"))
    assert spool.folder.hardware_for(other, H200), "another task is free"


def test_a_task_stays_where_its_first_result_comes_from(spool: Spooling) -> None:
    first, second = (spool.post(replace(judging(n), target="cuda")) for n in "23")
    spool.folder.add_result(result_entry(first, Result("", error="no such device"), "me", "NVIDIA H200", 1.0))
    spool.folder.add_result(result_entry(second, Result("", data=BuildData()), "me", "NVIDIA A100", 1.0))
    assert spool.folder.hardware_for(first, A100) and not spool.folder.hardware_for(first, H200)


def test_match_chooses_the_hardware(spool: Spooling) -> None:
    posted = spool.post(replace(judging("2"), target="cuda"), match="h200")
    assert spool.folder.hardware_for(posted, H200) and not spool.folder.hardware_for(posted, A100)


# --- files that are not as they should be ----------------------------------------------------------------


def test_a_truncated_result_is_reported_and_its_job_is_open_again(spool: Spooling) -> None:
    posted = spool.post(building(1))
    spool.finish(posted)
    path = spool.path / "results" / f"{posted.key}.json"
    path.write_text(path.read_text()[:-20])
    assert SpoolFolder(spool.path).open_jobs() == [posted] and path.exists(), "it may be being copied"
    spool.age(path)
    assert SpoolFolder(spool.path, spool.heard.append).open_jobs() == [posted]
    assert (
        "truncated" in spool.heard[0]
        and not path.exists()
        and len(list((spool.path / "quarantine").iterdir())) == 1
    )


def test_a_folder_among_the_jobs_is_moved_out_of_the_way(spool: Spooling) -> None:
    posted = spool.post(building(1))
    folder = spool.path / "jobs" / "copied.json"
    folder.mkdir()
    spool.age(folder)
    assert SpoolFolder(spool.path, spool.heard.append).open_jobs() == [posted]
    assert "it is a folder" in spool.heard[0] and not folder.exists()


def test_a_changed_result_is_no_result(spool: Spooling) -> None:
    posted = spool.post(building(1))
    spool.finish(posted, data=BuildData(reason="12"))
    path = spool.path / "results" / f"{posted.key}.json"
    path.write_text(path.read_text().replace('"reason":"12"', '"reason":"13"'))
    spool.age(path)
    assert spool.folder.result(posted.key) is None and "checksum" in spool.heard[0]


def test_a_truncated_job_is_reported_and_written_anew_by_whoever_asks(spool: Spooling) -> None:
    posted = spool.post(building(1))
    path = spool.path / "jobs" / f"{posted.key}.json"

    def cut() -> None:
        path.write_text(to_line(posted)[:-20])
        spool.age(path)

    cut()
    assert SpoolFolder(spool.path, spool.heard.append).open_jobs() == []
    assert (
        "truncated" in spool.heard[0]
        and not path.exists()
        and len(list((spool.path / "quarantine").iterdir())) == 1
    )
    cut()
    SpoolPool(spool.path, wait=False, warn=spool.heard.append).submit(building(1))
    assert "was replaced: it is truncated" in spool.heard[1] and SpoolFolder(spool.path).open_jobs() == [
        posted
    ]


def test_who_waits_puts_a_lost_job_back(spool: Spooling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelpro.pools.spool.pool._REPAIR_EVERY", 1)
    with SpoolPool(spool.path) as asking:
        waiting = asking.submit(building(1))
        spool.folder.quarantine(spool.path / "jobs" / f"{job_entry(building(1)).key}.json", "it was damaged")
        while not (left := SpoolFolder(spool.path).open_jobs()):
            time.sleep(0.05)
        spool.finish(left[0])
        assert waiting.result(10).data == BuildData(reason="1")


def test_a_folder_that_is_gone_for_good_is_one_clear_line(
    spool: Spooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelpro.pools.spool.pool._UNREACHABLE_SECONDS", 0.0)
    with SpoolPool(spool.path, warn=spool.heard.append) as asking:
        waiting = asking.submit(building(1))
        spool.path.rename(spool.path.with_name("elsewhere"))
        with pytest.raises(BadInput, match=f"{spool.path}.* cannot be"):
            waiting.result(30)
        with pytest.raises(BadInput, match="cannot be"):
            asking.submit(building(2))
    assert len(spool.heard) == 1 and "retrying" in spool.heard[0]


# --- what is not wanted any more -------------------------------------------------------------------------


def test_a_cancelled_job_goes_unless_somebody_is_at_it(spool: Spooling) -> None:
    with SpoolPool(spool.path) as asking:
        free, taken, first, second = (asking.submit(building(n)) for n in (1, 2, 3, 3))
        assert spool.folder.acquire(job_entry(building(2)), ME)
        assert free.cancel() and taken.cancel() and first.cancel()
        assert {posted.job.id for posted in SpoolFolder(spool.path).open_jobs()} == {"build 2", "build 3"}, (
            "one is asked for twice"
        )
        assert asking.pending_jobs == 1
        assert second.cancel() and asking.pending_jobs == 0
        assert len(SpoolFolder(spool.path).open_jobs()) == 1
        spool.finish(job_entry(building(1)))
        assert asking.submit(building(1)).result(10).data == BuildData(reason="1"), (
            "it can be asked for again"
        )


def test_jobs_may_be_cancelled_while_others_look_for_work(spool: Spooling) -> None:
    entries = [job_entry(building(number)) for number in range(40)]
    ended, other = threading.Event(), SpoolFolder(spool.path)

    def add_and_cancel() -> None:
        while not ended.is_set():
            for change in (spool.folder.add_job, spool.folder.remove_job):
                for entry in entries:
                    change(entry)

    thread = threading.Thread(target=add_and_cancel)
    thread.start()
    try:
        seen = {entry.key for _ in range(300) for entry in other.open_jobs()}
    finally:
        ended.set()
        thread.join()
    assert seen <= {entry.key for entry in entries}


def test_results_under_other_names_are_taken_in_or_set_aside(spool: Spooling) -> None:
    first, second = spool.post(building(1)), spool.post(building(2))
    results = spool.path / "results"
    for posted in (first, second):
        spool.finish(posted)
    (results / f"{first.key} (copy).json").write_text((results / f"{first.key}.json").read_text())
    (results / f"{second.key}.json").rename(results / "renamed.json")
    spool.folder.adopt_stray_results()
    assert sorted(path.stem for path in results.iterdir()) == sorted([first.key, second.key])
    assert len(spool.heard) == 1 and "has a result already" in spool.heard[0]


# --- one file each way -----------------------------------------------------------------------------------


def test_jobs_and_results_travel_as_files(spool: Spooling, tmp_path: Path) -> None:
    for n in range(3):
        spool.post(building(n))
    assert transfer.pack_jobs(spool.folder, tmp_path / "jobs.jsonl") == 3
    there = Spooling(tmp_path / "there")
    assert transfer.merge(there.folder, tmp_path / "jobs.jsonl").jobs == 3
    for posted in there.folder.open_jobs():
        there.finish(posted)
    lines = [path.read_text() for path in (there.path / "results").iterdir()]
    (tmp_path / "results.jsonl").write_text("".join([lines[0], lines[1], lines[0], lines[2][:50]]))
    merged = transfer.merge(spool.folder, tmp_path / "results.jsonl")
    assert (merged.results, merged.duplicates) == (2, 1)
    assert len(merged.errors) == 1 and "line 4: it is truncated" in merged.errors[0]
    again = transfer.merge(spool.folder, there.path)
    assert (again.results, again.duplicates, again.errors) == (1, 5, []), "a copy of the folder does as well"
    assert spool.folder.open_jobs() == []


def test_a_result_that_nobody_asked_for_is_not_taken(spool: Spooling, tmp_path: Path) -> None:
    other = Spooling(tmp_path / "other")
    other.finish(other.post(building(1)))
    merged = transfer.merge(spool.folder, other.path / "results")
    assert merged.results == 0 and "that this spool does not have" in merged.errors[0]


def test_a_line_that_was_cut_short_swallows_no_other(spool: Spooling, tmp_path: Path) -> None:
    entries = [
        result_entry(spool.post(building(n)), Result("", data=BuildData(reason=str(n))), "me", "", 1.0)
        for n in range(3)
    ]
    out = tmp_path / "results.jsonl"
    transfer.append_result(out, entries[0])
    out.write_text(out.read_text() + to_line(entries[1])[:30])
    transfer.append_result(out, entries[1])
    transfer.append_result(out, entries[2])
    merged = transfer.merge(spool.folder, out)
    assert merged.results == 3 and len(merged.errors) == 1 and "line 2" in merged.errors[0]


@pytest.mark.parametrize("spec", ["spool:", "nowhere", "local:0", "local:many", ""])
def test_a_pool_that_is_none_is_one_clear_line(spec: str) -> None:
    with pytest.raises(BadInput, match=f"--pool {spec}: unknown pool; use local"):
        create_pool(spec)
