"""Workers of a spool as processes: what they refuse, what they survive, and a file of jobs that is done more than once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from spooling import building, stand_in, wish

from kernelpro.cli import spool
from kernelpro.lab.machine import Device, Gpu
from kernelpro.pools.spool import torch_check, transfer
from kernelpro.pools.spool.entries import job_entry
from kernelpro.pools.spool.folder import SpoolFolder
from kernelpro.pools.spool.packing import pack_worker
from kernelpro.pools.spool.pool import SpoolPool
from kernelpro.records import BadInput, BuildData

pytestmark = pytest.mark.together


def said_by(process: subprocess.Popen[str]) -> tuple[int, str]:
    said = process.communicate(timeout=60)[1]
    assert "Traceback" not in said, said
    return process.returncode, said


# --- one file each way -----------------------------------------------------------------------------------


def test_a_file_is_done_again_where_it_failed_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, file, results = tmp_path / "here", tmp_path / "jobs.jsonl", tmp_path / "jobs.results.jsonl"
    asking = SpoolPool(here, wait=False)
    hopes = [wish("work"), wish(f"need {tmp_path / 'luck'}")]

    def carry() -> tuple[int, str]:
        for job in hopes:
            asking.submit(job)
        spool.pack_jobs(str(here), str(file))
        found = said_by(stand_in(file, "--once"))
        spool.merge_results(str(here), [str(results)])
        return found

    code, said = carry()
    assert code == 0 and "2 jobs done, 0 left" in said and f"2 results in {results}" in said
    assert [asking.run(job).error for job in hopes] == [None, "it is not there"]
    (tmp_path / "luck").touch()
    code, said = carry()
    assert code == 0 and "1 jobs done, 0 left" in said and "failed: it is not there" in said
    assert [asking.run(job).data for job in hopes] == [BuildData(reason=job.id) for job in hopes]

    whole = results.read_text()
    results.write_text(whole[:50])  # as a kill may leave it
    assert "0 jobs done, 0 left" in said_by(stand_in(file, "--once"))[1] and results.read_text() == whole
    shutil.rmtree(tmp_path / "jobs.spool")
    assert "0 jobs done, 0 left" in said_by(stand_in(file, "--once"))[1] and results.read_text() == whole
    capsys.readouterr()
    spool.pack_jobs(str(here), str(file))
    assert capsys.readouterr().out == f"no open jobs in {here}: {file} is empty\n"


def test_what_an_earlier_file_asked_for_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    earlier = SpoolFolder(tmp_path / "jobs.spool")
    earlier.add_job(job_entry(wish("earlier")))
    asking = SpoolFolder(tmp_path / "here")
    asking.add_job(job_entry(wish("now")))
    transfer.pack_jobs(asking, file)
    assert "1 jobs done, 0 left" in said_by(stand_in(file, "--once"))[1]
    assert (tmp_path / "jobs.results.jsonl").read_text().count("\n") == 1


# --- what is refused -------------------------------------------------------------------------------------


def test_what_is_no_spool_is_left_as_it_is(tmp_path: Path) -> None:
    notes, folder = tmp_path / "notes.txt", tmp_path / "folder"
    notes.write_text("one\ntwo\n")
    folder.mkdir()
    (folder / "thesis.tex").touch()
    code, said = said_by(stand_in(notes))
    assert code == 2 and said.count("\n") == 1 and "has no jobs" in said
    code, said = said_by(stand_in(folder))
    assert code == 2 and said.count("\n") == 1 and "is not a spool" in said
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "notes.txt", "thesis.tex"]


def test_a_python_without_torch_takes_nothing(tmp_path: Path) -> None:
    pack_worker(tmp_path / "worker.pyz")
    SpoolPool(tmp_path / "spool", wait=False).submit(building(1))
    bare = [sys.executable, "-S", str(tmp_path / "worker.pyz"), str(tmp_path / "spool"), "--once"]
    code, said = said_by(subprocess.Popen(bare, stderr=subprocess.PIPE, text=True))
    assert code == 2 and said.count("\n") == 1 and "has no torch: install it" in said
    assert len(SpoolFolder(tmp_path / "spool").open_jobs()) == 1 and not list(
        (tmp_path / "spool" / "quarantine").iterdir()
    )


@pytest.mark.long  # torch is imported for it
def test_a_torch_that_cannot_use_the_gpu_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_check.check_torch([Device()])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(BadInput, match=r"cannot use the GPU \(.+\): install one that can"):
        torch_check.check_torch([Device(Gpu("GPU-1", "NVIDIA H200"))])


# --- what fails ------------------------------------------------------------------------------------------


def test_only_the_job_that_was_begun_counts_a_killed_worker(tmp_path: Path) -> None:
    asking = SpoolPool(tmp_path, wait=False)
    for text in ("hang", "work", "more work"):
        asking.submit(wish(text))
    process = stand_in(tmp_path)
    folder = SpoolFolder(tmp_path)
    while len(folder.lease_holders()) < 3 or not any(
        holder.stage for holder in folder.lease_holders().values()
    ):
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert sorted(folder.attempts(job_entry(wish(text)).key) for text in ("hang", "work", "more work")) == [
        0,
        0,
        1,
    ]


def test_a_folder_that_comes_back_is_used_and_one_that_does_not_ends_the_worker(tmp_path: Path) -> None:
    spool, away = tmp_path / "spool", tmp_path / "away"
    with SpoolPool(spool) as asking:
        process = stand_in(spool, "--lease-timeout", "1")
        assert asking.submit(wish("work")).result(60).data == BuildData(reason="work")
    spool.rename(away)
    assert process.stderr
    while "retrying" not in (text := process.stderr.readline()):
        assert text
    away.rename(spool)
    with SpoolPool(spool) as asking:
        assert asking.submit(wish("more work")).result(60).data == BuildData(reason="more work")
    shutil.rmtree(spool)
    code, said = said_by(process)
    assert code == 1 and said.count("retrying") == 1 and "stops: the spool was unusable" in said


def test_a_sick_device_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asking = SpoolPool(tmp_path, wait=False)
    asking.submit(wish("break the device"))
    code, said = said_by(stand_in(tmp_path, "--once"))
    assert code == 1 and "failed its health check" in said
    spool.show_status(str(tmp_path), False)
    assert "stopped using" in (told := capsys.readouterr().out) and "it failed its health check" in told
    assert said_by(stand_in(tmp_path, "--once"))[0] == 0, "mended"
    spool.show_status(str(tmp_path), True)
    assert json.loads(capsys.readouterr().out)["failed_devices"] == {}
    assert asking.run(wish("break the device")).lost
