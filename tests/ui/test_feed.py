"""Batches of a run: everything once, then what changed; a cursor continues."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from report import made_runs
from ui.generated_runs import record

from kernelpro.engine.store import RunStore
from kernelpro.records.events import HintGiven, NodePinned, Note, SteeringApplied
from kernelpro.ui import feed as feed_module
from kernelpro.ui.feed import Cursor, RunFeed, read_all
from kernelpro.ui.locations import Locations
from kernelpro.ui.overview import Overview


def test_a_feed_gives_everything_and_then_what_changed(tmp_path: Path) -> None:
    store = record(tmp_path, 30)
    feed = RunFeed(RunStore(store.folder))
    first = feed.next()
    assert first and first["complete"] and len(first["steps"]) == 30
    assert first["status"]["spent"]["candidates"] == 28 and first["status"]["died"]
    assert feed.next() is None
    store.add_event(Note("new"))
    store.save_step(replace(store.steps()[4], plan="another plan"))
    second = feed.next()
    assert second and [line["text"] for line in second["lines"]] == ["new"]
    assert [(step["n"], step["plan"]) for step in second["steps"]] == [(5, "another plan")]


def test_a_cursor_continues_where_a_page_was(tmp_path: Path) -> None:
    store = record(tmp_path, 30)
    feed = RunFeed(RunStore(store.folder))
    feed.next()
    cursor = str(feed.cursor)
    assert Cursor.parse(cursor) == feed.cursor and Cursor.parse("<script>") == Cursor()
    store.add_event(Note("missed"))
    again = RunFeed(RunStore(store.folder), Cursor.parse(cursor)).next()
    assert again and [line["text"] for line in again["lines"]] == ["missed"] and not again["steps"]
    assert again["status"]["spent"]["candidates"] == 28, "the state is complete all the same"


def test_the_log_says_how_a_step_ended(tmp_path: Path) -> None:
    lines = [line["text"] for line in read_all(record(tmp_path, 30))["lines"]]
    assert any(text.startswith("step ") and "x over torch.compile" in text for text in lines)
    assert any(text.endswith(": build failed") for text in lines)


def test_a_damaged_step_hides_no_other(tmp_path: Path) -> None:
    store = record(tmp_path / "runs", 12)
    for number, data in ((3, "{cut"), (4, "[]"), (5, json.dumps({"stage": "settled", "verdict": "no"}))):
        store._db.execute("UPDATE step SET data = ? WHERE number = ?", (data, number))
    states = {step["n"]: step["s"] for step in read_all(RunStore(store.folder))["steps"]}
    assert len(states) == 12 and [states[n] for n in (3, 4, 5)] == ["unreadable"] * 3
    rows = Overview().rows(Locations(tmp_path / "runs", tmp_path).run_folders())
    assert [(row["id"], row["steps"]) for row in rows] == [(store.id, 12)]


def test_a_large_run_comes_in_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "_STEPS_PER_BATCH", 40)
    store = record(tmp_path, 50)
    feed = RunFeed(RunStore(store.folder))
    first, second = feed.next(), feed.next()
    assert first and second and not first["complete"] and second["complete"]
    assert len(first["steps"]) == 40 and len(second["steps"]) == 10
    assert len(read_all(RunStore(store.folder))["steps"]) == 50


def test_what_the_user_asked_for_is_part_of_the_status(tmp_path: Path) -> None:
    store = record(tmp_path, 10)
    before = read_all(RunStore(store.folder))["status"]["spent"]["wall_seconds"]
    hint = store.add_event(HintGiven("wider tiles"))
    store.add_event(SteeringApplied(hint, 11))
    after = read_all(RunStore(store.folder))["status"]["spent"]["wall_seconds"]
    assert after == before, "no process works"
    store.add_event(NodePinned(3))
    batch = read_all(RunStore(store.folder))
    assert "authors read the hint from step 11 on" in [line["text"] for line in batch["lines"]]
    steering = batch["status"]["steering"]
    assert steering["hints"] == [{"id": hint, "text": "wider tiles"}] and not steering["pinned"]
    assert [(event["event"], event["step"]) for event in steering["pending"]] == [("pin", 3)]


def test_activity_is_shown_while_a_process_works(tmp_path: Path) -> None:
    store = record(tmp_path, 10)
    store.lock()
    store.set_activity("step 9", "timing")
    status = read_all(RunStore(store.folder))["status"]
    jobs = {row["job"]: row["stage"] for row in status["activity"]}
    assert status["state"] == "running" and jobs == {"step 9": "timing", "step 10": "writing"}
    store.set_activity("step 9", "")
    assert not store.activity()


def test_the_list_reads_a_run_again_only_if_it_changed(tmp_path: Path) -> None:
    made_runs.won(tmp_path / "runs")
    store = made_runs.searched(tmp_path / "runs")
    damaged = tmp_path / "runs" / "damaged-1"
    damaged.mkdir()
    (damaged / "run.db").write_text("not a database, and longer than a header of one")
    locations, overview = Locations(tmp_path / "runs", tmp_path / "benches"), Overview()
    rows = {row["id"]: row for row in overview.rows(locations.run_folders())}
    assert rows["affine-1"]["state"] == "finished" and round(rows["affine-1"]["speedup"], 2) == 2.44
    assert rows["affine-2"]["state"] == "stopped" and rows["affine-2"]["died"]
    assert "damaged" in rows["damaged-1"]["error"]
    before = overview._rows[store.folder][1]
    overview.rows(locations.run_folders())
    assert overview._rows[store.folder][1] is before
    made_runs.settle(store, replace(store.steps()[0], number=8, parent=0))
    assert next(row for row in overview.rows(locations.run_folders()) if row["id"] == store.id)["steps"] == 8
