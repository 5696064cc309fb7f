"""The knowledge base: merging, ranking, export and import, and damaged or shared files."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kernelpro.memory.knowledge import Knowledge, Observation, default_path
from kernelpro.records import BadInput

TILING = Observation(
    "stage tiles of 64 rows in shared memory",
    "memory",
    "H200",
    "cuda",
    "matmul",
    math.log(2.0),
    run="r1",
    date="2026-01-01",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "knowledge.db"


def silent(path: Path) -> Knowledge:
    def report(line: str) -> None:
        raise AssertionError(line)

    return Knowledge(path, report)


def test_equal_circumstances_merge_and_the_same_observation_counts_once(path: Path) -> None:
    knowledge = silent(path)
    again = replace(
        TILING,
        method="Stage tiles of 128 rows in shared memory",
        gain=-math.log(1.5),
        run="r2",
        date="2026-01-02",
        conditions="rows > 64",
    )
    even = replace(TILING, gain=0.001, run="r2", date="2026-01-03")
    assert knowledge.add([TILING, again, even]) == 3
    assert knowledge.add([TILING]) == 0 and knowledge.add([]) == 0
    assert knowledge.add([replace(TILING, node="another candidate")]) == 1
    (entry,) = silent(path).entries()
    assert (entry.count, entry.wins, entry.losses, entry.runs) == (4, 2, 1, 2)
    assert entry.gain == pytest.approx((2 * math.log(2) - math.log(1.5) + 0.001) / 4)
    assert entry.conditions == ("rows > 64",) and entry.date == "2026-01-03" and entry.method == even.method


def test_answers_are_ranked_by_what_is_to_be_expected_here(path: Path) -> None:
    knowledge = silent(path)
    lucky = replace(TILING, method="one lucky trick", gain=math.log(3))
    steady = [replace(TILING, method="vectorise loads", gain=math.log(2), node=str(n)) for n in range(10)]
    harmful = [replace(TILING, method="unroll by 32", gain=-math.log(2), node=str(n)) for n in range(5)]
    foreign = [
        replace(TILING, method="swizzle", gain=math.log(2), hardware="A100", family="scan", node=str(n))
        for n in range(10)
    ]
    knowledge.add([lucky, *steady, *harmful, *foreign])
    advice_list = knowledge.query("memory", "H200", "matmul", "cuda", 10)
    assert [advice.method for advice in advice_list] == [
        "vectorise loads",
        "swizzle",
        "one lucky trick",
        "unroll by 32",
    ]
    assert advice_list[0].expected == pytest.approx(10 * math.log(2) / 13) and advice_list[-1].expected < 0
    assert advice_list[1].count == 10
    elsewhere = knowledge.query("memory", "A100", "scan", "cuda", 2)
    assert [advice.method for advice in elsewhere] == ["swizzle", "vectorise loads"]


def test_one_method_seen_in_many_places_is_one_answer(path: Path) -> None:
    knowledge = silent(path)
    knowledge.add(
        [replace(TILING, hardware=name, conditions=f"on {name}") for name in ("H200", "A100", "L4", "T4")]
    )
    (advice,) = knowledge.query("memory", "A100", "matmul", "cuda", 5)
    assert advice.count == 4 and advice.conditions[0] == "on A100" and len(advice.conditions) == 3
    assert advice.expected == pytest.approx(math.log(2) * 2.5 / 5.5)
    assert len(knowledge.entries()) == 4


def test_export_and_import_merge_exactly(path: Path, tmp_path: Path) -> None:
    mine, theirs = silent(path), silent(tmp_path / "theirs.db")
    mine.add([TILING])
    theirs.add([TILING, replace(TILING, run="theirs", gain=0.1)])
    exported = tmp_path / "export.json"
    assert theirs.export_json(exported) == 2
    assert mine.import_json(exported) == 1 and mine.import_json(exported) == 0
    assert mine.entries() == theirs.entries()
    assert mine.clear() == 2 and mine.entries() == [] and mine.import_json(exported) == 2
    assert [p.name for p in tmp_path.glob("export*")] == ["export.json"]


GOOD = TILING.to_json()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "not a knowledge file"),
        ('{"format": "kernelpro-knowledge", "version": 1}', "not a knowledge file"),
        (json.dumps({"format": "kernelpro-knowledge", "version": 2, "observations": []}), "version 2"),
        (
            json.dumps({"format": "kernelpro-knowledge", "version": 1, "observations": [GOOD, 3]}),
            "observation 2 is not an object",
        ),
        (
            json.dumps(
                {"format": "kernelpro-knowledge", "version": 1, "observations": [GOOD | {"gain": "2"}]}
            ),
            "gain is missing or is not a number",
        ),
        (
            json.dumps(
                {"format": "kernelpro-knowledge", "version": 1, "observations": [GOOD | {"gain": math.inf}]}
            ),
            "not a finite number",
        ),
        (
            json.dumps(
                {"format": "kernelpro-knowledge", "version": 1, "observations": [GOOD | {"gain": 10**400}]}
            ),
            "observation 1: ",
        ),
        (
            json.dumps(
                {"format": "kernelpro-knowledge", "version": 1, "observations": [GOOD | {"method": " "}]}
            ),
            "name its method",
        ),
        (
            json.dumps(
                {"format": "kernelpro-knowledge", "version": 1, "observations": [GOOD | {"run": None}]}
            ),
            "run is missing or is not text",
        ),
    ],
)
def test_a_malformed_file_is_refused_whole(path: Path, tmp_path: Path, text: str, words: str) -> None:
    knowledge = silent(path)
    knowledge.add([replace(TILING, run="kept")])
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        knowledge.import_json(file)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert [entry.count for entry in knowledge.entries()] == [1]


def test_files_that_cannot_be_used_are_said_in_one_line(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        silent(path).import_json(tmp_path / "nowhere.json")
    with pytest.raises(BadInput, match="cannot be exported"):
        silent(path).export_json(tmp_path / "nowhere" / "x.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be used"):
        silent(tmp_path / "file" / "knowledge.db").add([TILING])


def damage_header(path: Path) -> None:
    path.write_bytes(b"this was a database" * 1000)


def damage_middle(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(os.urandom(4000))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 7)


@pytest.mark.parametrize("damage", [damage_header, damage_middle, cut])
@pytest.mark.parametrize("opened_before", [True, False])
def test_a_corrupt_file_is_kept_aside_and_a_new_one_begun(
    path: Path, damage: object, opened_before: bool
) -> None:
    lines: list[str] = []
    knowledge = Knowledge(path, lines.append)
    knowledge.add([replace(TILING, node=str(n)) for n in range(300)])
    damage(path)  # type: ignore[operator]
    damaged = path.read_bytes()
    if not opened_before:
        knowledge = Knowledge(path, lines.append)
    if opened_before and damage is damage_middle:
        knowledge = Knowledge(
            path, lines.append
        )  # damage that no query meets is found when the file is next opened
    knowledge.entries()
    assert knowledge.add([TILING]) == 1 and [entry.count for entry in silent(path).entries()] == [1]
    assert len(lines) == 1 and "was corrupt" in lines[0] and "\n" not in lines[0]
    (kept,) = [p for p in path.parent.glob("knowledge.db.corrupt-*") if p.name in lines[0]]
    assert kept.read_bytes() == damaged


WRITER = """
import sys
from pathlib import Path
from kernelpro.memory.knowledge import Knowledge, Observation
knowledge = Knowledge(Path(sys.argv[1]))
for n in range(int(sys.argv[3])):
    knowledge.add([Observation("tile", "memory", "cpu", "cpp", "scan", 0.1, run=sys.argv[2], node=f"{n}.{i}") for i in range(3)])
    print(n, flush=True)
"""


def writer(path: Path, run: str, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), run, str(rounds)], stdout=subprocess.PIPE, text=True
    )


def test_several_processes_write_at_the_same_time(path: Path) -> None:
    """They even begin the file together."""
    writers = [writer(path, f"run{n}", 30) for n in range(3)]
    for process in writers:
        process.communicate(timeout=120)
        assert process.returncode == 0
    (entry,) = silent(path).entries()
    assert entry.count == 3 * 30 * 3 and entry.runs == 3


def test_killed_at_any_moment_nothing_written_is_lost(path: Path) -> None:
    written = 0
    for attempt in range(5):
        process = writer(path, f"run{attempt}", 10_000)
        assert process.stdout
        process.stdout.readline()
        time.sleep(0.02 * attempt)
        process.send_signal(signal.SIGKILL)
        said = 1 + len(process.stdout.read().splitlines())
        process.wait()
        entries = silent(path).entries()
        count = entries[0].count
        assert count % 3 == 0 and 0 <= count - written - 3 * said <= 3
        written = count


def test_switched_off_it_takes_nothing_in_and_answers_nothing(tmp_path: Path) -> None:
    off = Knowledge(None)
    assert not off.enabled and off.add([TILING]) == 0 and off.clear() == 0
    assert off.query("memory", "H200", "matmul", "cuda", 5) == [] and off.entries() == []
    for work in (off.export_json, off.import_json):
        with pytest.raises(BadInput, match="disabled"):
            work(tmp_path / "x.json")


def test_it_lives_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_path() == Path("/data/kernelpro/knowledge.db")
