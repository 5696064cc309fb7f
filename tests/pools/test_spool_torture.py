"""A spool with real workers, two of which are killed, and files that no worker wrote."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from spooling import judging, misbuilding, misspelt, worker

from kernelpro.pools.spool.entries import job_entry
from kernelpro.pools.spool.folder import SpoolFolder
from kernelpro.pools.spool.pool import SpoolPool
from kernelpro.records import BuildData, Status

BUILDS, LINES = 6, 40
OLD = (time.time() - 3600,) * 2


def test_nothing_is_lost_and_nothing_counts_twice(tmp_path: Path) -> None:
    jobs = [misbuilding(n) for n in range(BUILDS)] + [misspelt(n) for n in range(1, LINES + 1)]
    jobs += [judging("2", "right"), judging("3", "wrong")]
    heard: list[str] = []
    with SpoolPool(tmp_path, warn=heard.append) as spool:
        answers = [spool.submit(job) for job in jobs]
        called: list[str] = []
        for answer in answers:
            answer.add_done_callback(lambda future: called.append(future.result().job))
        workers = [worker(tmp_path, "--lease-timeout", "5") for _ in range(3)]
        try:
            killed = _kill_two_at_work(tmp_path, workers)
            torn = _tear(tmp_path)
            copied = _copy(tmp_path)
            results = [answer.result(timeout=240) for answer in answers]
            deadline = time.monotonic() + 30
            while not any(copied in text for text in heard) and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            for process in workers:
                process.send_signal(signal.SIGTERM)
            said = "".join(process.communicate()[1] for process in workers)
    assert sorted(called) == sorted(job.id for job in jobs), "each is answered once"
    reasons = [
        result.data.reason if isinstance(result.data, BuildData) else "" for result in results[:BUILDS]
    ]
    assert all(re.search(rf"\bnumber_{n}\b", reason) for n, reason in enumerate(reasons)), reasons
    told = [result.verdict.reason if result.verdict else "" for result in results[BUILDS:-2]]
    assert told == [f"syntax error in line {n}: invalid syntax" for n in range(1, LINES + 1)], (
        "to each its own"
    )
    right, wrong = (result.verdict for result in results[-2:])
    assert right and right.status is Status.PASSED and wrong and wrong.status is Status.WRONG
    assert len(list((tmp_path / "results").glob("*.json"))) == len(jobs)
    again = [key for key in killed if said.count(f"takes {_words(tmp_path, key)}\n") > 1]
    assert again, "what the killed ones were at was done by others"
    reports = said + "\n".join(heard)
    assert f"{torn} was moved to quarantine" in reports and "truncated" in reports
    assert f"{copied} was moved to quarantine" in reports and "has a result already" in reports
    assert not SpoolFolder(tmp_path).open_jobs() and not SpoolFolder(tmp_path).lease_holders()


def _kill_two_at_work(path: Path, workers: list[subprocess.Popen[str]]) -> set[str]:
    """The keys that the two had taken when they died."""
    folder = SpoolFolder(path)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        held: dict[int, set[str]] = {}
        for key, holder in folder.lease_holders().items():
            held.setdefault(int(holder.worker.rpartition("-")[2]), set()).add(key)
        victims = [process for process in workers if process.pid in held][:2]
        if len(victims) == 2:
            for process in victims:
                process.kill()
            return set().union(*(held[process.pid] for process in victims))
        time.sleep(0.02)
    raise AssertionError("no two workers were at work at the same time")


def _tear(path: Path) -> str:
    """Put half a result in the place of one that is not there yet."""
    folder = SpoolFolder(path)
    posted = folder.open_jobs()[-1]
    torn = path / "results" / f"{posted.key}.json"
    hidden = path / "half"
    hidden.write_text('{"key":"' + posted.key)
    os.utime(hidden, OLD)
    hidden.rename(torn)
    return str(torn)


def _copy(path: Path) -> str:
    """A result once more, under another name."""
    while not (done := sorted((path / "results").glob("*.json"))) or done[0].stat().st_size < 100:
        time.sleep(0.05)
    copy = done[0].with_name("copy of a result.json")
    copy.write_text(done[0].read_text())
    return str(copy)


def _words(path: Path, key: str) -> str:
    posted = SpoolFolder(path).job(key)
    assert posted and job_entry(posted.job).key == key
    return posted.description
