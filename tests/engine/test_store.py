"""The store loses nothing: killed processes, full disks, damaged records."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelpro.engine import database
from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput, Cost, Outcome, RunConfig, Step, Task, TaskFacts

CONFIG = RunConfig(
    Task("class Model: pass", "demo"), "cpu", "files:somewhere", policy="greedy", constants={"a": 1.0}
)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path, CONFIG, "demo")


def test_what_was_kept_comes_back(store: RunStore) -> None:
    step = Step(
        1, 0, "seed", "drafted", store.save_source("x = 1\n"), plan="a plan", cost=Cost(0.25, 100, 50, 1)
    )
    store.save_step(step)
    store.save_task_facts(TaskFacts({"compile": 2.0}, 0.1, "fp32"))
    store.save_outcome(Outcome("the budget is spent", 1))
    reopened = RunStore.open(store.folder.parent, store.id)
    assert reopened.config() == CONFIG
    assert reopened.steps() == [step] and reopened.source(step.source) == "x = 1\n"
    assert reopened.task_facts() == TaskFacts({"compile": 2.0}, 0.1, "fp32")
    assert reopened.outcome() == Outcome("the budget is spent", 1)


def test_runs_of_one_name_are_numbered(tmp_path: Path) -> None:
    assert [RunStore.create(tmp_path, CONFIG, "demo").id for _ in range(3)] == ["demo-1", "demo-2", "demo-3"]


def test_an_unknown_run_names_those_there_are(store: RunStore) -> None:
    with pytest.raises(BadInput, match=r"there is no run other .* existing runs: demo-1"):
        RunStore.open(store.folder.parent, "other")


WRITER = """
import sys
from pathlib import Path
from kernelpro.engine.store import RunStore
from kernelpro.records import Step
store = RunStore(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    store.save_step(Step(number, 0, "seed", "drafted", store.save_source(f"x = {number}")))
    print(number, flush=True)
"""


def test_whatever_was_acknowledged_survives_sigkill(store: RunStore) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(store.folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    acknowledged = [int(process.stdout.readline()) for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in process.stdout]
    process.wait()
    steps = RunStore(store.folder).steps()
    assert len(steps) >= acknowledged[-1] and [s.number for s in steps] == list(range(1, len(steps) + 1))
    assert all(store.source(s.source) == f"x = {s.number}" for s in steps)


HOLDER = """
import sys, time
from pathlib import Path
from kernelpro.engine.store import RunStore
store = RunStore(Path(sys.argv[1]))
store.lock()
print("held", flush=True)
time.sleep(60)
"""


def test_two_processes_on_one_run_are_refused_and_the_lock_dies_with_its_holder(store: RunStore) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "held\n"
    with pytest.raises(BadInput, match=f"another process .PID {process.pid}."):
        store.lock()
    process.kill()
    process.wait()
    store.lock()


def test_a_full_disk_is_reported_and_nothing_is_lost(store: RunStore) -> None:
    store.save_step(Step(1, 0, "seed"))
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count={pages + 2}")
    with pytest.raises(BadInput, match=r"no space left .*`kernelpro resume demo-1`"):
        for number in range(2, 100):
            store.save_step(Step(number, 0, "seed", plan="x" * 2000))
    kept = [step.number for step in RunStore(store.folder).steps()]
    assert kept == list(range(1, len(kept) + 1)) and kept


def test_a_full_disk_in_a_transaction_is_reported_and_the_store_goes_on(store: RunStore) -> None:
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count={pages + 1}")
    with pytest.raises(BadInput, match="no space left"), store.transaction():
        store.save_step(Step(1, 0, "seed"))
        store.save_step(Step(2, 0, "seed", plan="x" * 50_000))
    store._db.execute("PRAGMA max_page_count=100000")
    assert store.steps() == []
    with store.transaction():
        store.save_step(Step(1, 0, "seed"))
    assert len(RunStore(store.folder).steps()) == 1


def open_and_close(folder: Path) -> str:
    store = RunStore(folder)
    state = store.state()
    store.close()
    return state


def test_a_file_that_several_processes_open_first_is_migrated_once(tmp_path: Path) -> None:
    for turn in range(10):
        folder = tmp_path / f"demo-{turn}"
        folder.mkdir()
        sqlite3.connect(folder / "run.db").execute("PRAGMA journal_mode=WAL")
        with ThreadPoolExecutor(6) as threads:
            assert set(threads.map(open_and_close, [folder] * 6)) == {"stopped"}


def test_a_run_is_visible_only_once_it_is_whole(tmp_path: Path) -> None:
    """Pages look for new runs all the time."""
    done = threading.Event()

    def watch() -> list[str]:
        errors = []
        while not done.is_set():
            for path in tmp_path.glob("*/run.db"):
                try:
                    watched = RunStore(path.parent)
                    assert watched.config() == CONFIG and watched.state()
                    watched.close()
                except BadInput as error:
                    errors.append(str(error))
        return errors

    with ThreadPoolExecutor(2) as threads:
        watchers = [threads.submit(watch) for _ in range(2)]
        try:
            for _ in range(10):
                run = RunStore.create(tmp_path, CONFIG, "demo")
                run.lock()
                run.close()
        finally:
            done.set()
    assert [watcher.result() for watcher in watchers] == [[], []]


def test_a_deleted_run_stays_deleted_though_others_watch_it(store: RunStore) -> None:
    watcher = RunStore(store.folder)
    store.delete()
    watcher.close()
    assert not store.folder.exists()
    store.folder.mkdir()
    with pytest.raises(BadInput, match="it was deleted"):
        RunStore(store.folder)
    assert not list(store.folder.iterdir())


def test_a_folder_that_cannot_be_written_can_be_read(store: RunStore) -> None:
    store.save_step(Step(1, 0, "seed"))
    for is_open in (True, False):  # with the log of the process that writes it, and without
        reader = RunStore(store.folder)
        reader._db.close()
        reader._db = database._connect_for_reading(store.folder / "run.db")
        assert len(reader.steps()) == 1 and reader.config() == CONFIG
        with pytest.raises(BadInput, match="cannot be written"):
            reader.save_step(Step(2, 0, "seed"))
        reader.close()
        if is_open:
            store.close()


def test_a_broken_record_is_told_and_done_again(store: RunStore) -> None:
    store.save_step(Step(1, 0, "seed", "settled", plan="good"))
    store.save_step(Step(2, 0, "seed", "settled", plan="broken"))
    raw = json.loads(store._db.execute("SELECT data FROM step WHERE number = 2").fetchone()[0])
    store._db.execute(
        "UPDATE step SET data = ? WHERE number = 2", (json.dumps(raw | {"verdict": {"status": "no such"}}),)
    )
    steps = store.steps()
    assert [s.stage for s in steps] == ["settled", "chosen"] and "step 2 cannot be read" in store.damage[0]


def test_a_damaged_file_is_one_clear_line(store: RunStore) -> None:
    store.close()
    path = store.folder / "run.db"
    path.write_bytes(b"not a database at all" * 100)
    for side in store.folder.glob("run.db-*"):
        side.unlink()
    with pytest.raises(BadInput, match="is damaged"):
        RunStore(store.folder)


def test_a_changed_or_lost_source_is_noticed(store: RunStore) -> None:
    key = store.save_source("x = 1\n")
    path = store.folder / "sources" / f"{key}.py"
    path.write_text("x = 2\n")
    with pytest.raises(BadInput, match="was changed on disk"):
        store.source(key)
    path.unlink()
    with pytest.raises(BadInput, match="is missing"):
        store.source(key)


def test_a_newer_file_is_refused(store: RunStore) -> None:
    with sqlite3.connect(store.folder / "run.db") as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(BadInput, match="newer KernelPro"):
        RunStore(store.folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BadInput):
        RunStore.create(tmp_path, CONFIG, "demo")
