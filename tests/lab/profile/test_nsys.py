"""Nsight Systems: its export as a hand-built database in its schema, its command lines, and what is said where a step fails."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from lab.profile.nsys_program import trace_program

from kernelpro.lab.profile import nsys
from kernelpro.lab.profile.timeline import summarize
from kernelpro.lab.profile.trace import CALL_RANGE, WAIT_RANGE, Trace, TracedCall
from kernelpro.records import Copy, Skipped

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER, rangeId INTEGER, text TEXT,
  globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL,
  mangledName INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
  gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
  staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, gridId INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER);
"""
"""Of nsys 2025, without columns that nobody reads. No memset happened, so there is no table of them."""
KERNEL = {
    "demangledName": "softmax(const float *, float *, int)",
    "shortName": "softmax",
    "mangledName": "_Z7softmaxPKfPfi",
}
SHAPE = {"gridX": 132, "gridY": 2, "gridZ": 1, "blockX": 256, "blockY": 1, "blockZ": 1}
USED = {"registersPerThread": 40, "staticSharedMemory": 64, "dynamicSharedMemory": 128}
CALLED = (
    ("cudaLaunchKernel_v7000", 100, 600, 1),
    ("cudaMemcpyAsync_v3020", 700, 900, 2),
    ("cudaStreamSynchronize_v3020", 1000, 5000, 3),
    ("cudaDeviceSynchronize_v3020", 6100, 7800, 4),
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two calls: launch, kernel, copy back, the candidate's synchronisation, ours."""
    path = tmp_path / "trace.sqlite"
    ids = {
        value: number
        for number, value in enumerate([WAIT_RANGE, *KERNEL.values(), *(name for name, *_ in CALLED)], 20)
    }
    db = sqlite3.connect(path)
    db.executescript(SCHEMA)
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, value) for value, number in ids.items()])

    def insert(table: str, start: int, end: int, **row: object) -> None:
        row = {"start": start, "end": end, **row}
        db.execute(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values())
        )

    named = {column: ids[value] for column, value in KERNEL.items()}
    for t in (10_000, 20_000):
        insert("NVTX_EVENTS", t, t + 8000, eventType=59, text=CALL_RANGE)
        insert("NVTX_EVENTS", t + 6000, t + 7900, eventType=59, textId=ids[WAIT_RANGE])
        for name, start, end, number in CALLED:
            insert(
                "CUPTI_ACTIVITY_KIND_RUNTIME",
                t + start,
                t + end,
                globalTid=281,
                correlationId=t + number,
                nameId=ids[name],
            )
        insert(
            "CUPTI_ACTIVITY_KIND_KERNEL", t + 1500, t + 3500, correlationId=t + 1, **named, **SHAPE, **USED
        )
        insert("CUPTI_ACTIVITY_KIND_MEMCPY", t + 4000, t + 4500, correlationId=t + 2, bytes=4, copyKind=2)
    db.commit()
    db.close()
    return path


def test_an_export_of_nsys_is_read(database: Path) -> None:
    trace = nsys.read_database(database)
    assert trace.source == "nsys" and trace.calls == (
        TracedCall(10_000, 16_000, 18_000),
        TracedCall(20_000, 26_000, 28_000),
    )
    timeline, kernels = summarize(trace.events, trace.calls, trace.source)
    assert (timeline.call_us, timeline.busy_us, timeline.gaps_us, timeline.launches) == (8, 2.5, 0.5, 1)
    assert timeline.copies == (Copy("DtoH", 1, 4, 0.5),) and timeline.syncs == {"cudaStreamSynchronize": 1}
    assert set(timeline.apis) == {"cudaLaunchKernel", "cudaMemcpyAsync"}
    (only,) = kernels
    assert only.name == "softmax(float const*, float*, int)", "as CUPTI's name reads"
    assert (only.grid, only.block, only.registers, only.static_shared, only.dynamic_shared) == (
        (132, 2, 1),
        (256, 1, 1),
        40,
        64,
        128,
    )
    assert (only.microseconds, only.launches, only.share) == (2, 1, 0.8)


def test_an_older_export_has_fewer_columns_and_tables(database: Path) -> None:
    db = sqlite3.connect(database)
    db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN mangledName")
    db.execute("DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY")
    db.commit()
    db.close()
    trace = nsys.read_database(database)
    timeline, kernels = summarize(trace.events, trace.calls, trace.source)
    assert kernels[0].name == "softmax(const float *, float *, int)" and timeline.copies == ()


def test_the_command_lines() -> None:
    argv = nsys.profile_command("/x/nsys", Path("/o/trace.nsys-rep"), ["python", "target.py"])
    assert argv[:2] == ["/x/nsys", "profile"] and argv[-4:] == ["-o", "/o/trace", "python", "target.py"]
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--cuda-graph-trace=node"} < set(
        argv
    )
    assert nsys.export_command("nsys", Path("a.nsys-rep"), Path("a.sqlite"))[-3:] == [
        "-o",
        "a.sqlite",
        "a.nsys-rep",
    ]


def test_the_newest_nsys_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nsys.find_nsys(tmp_path) is None
    for place in (
        "nsight-systems/2024.6.2/bin",
        "nsight-systems/2025.10.1/bin",
        "nsight-compute/2026.1.0/host/target-linux-x64",
    ):
        (tmp_path / "opt/nvidia" / place).mkdir(parents=True)
        (tmp_path / "opt/nvidia" / place / "nsys").touch()
    assert nsys.find_nsys(tmp_path) == str(tmp_path / "opt/nvidia/nsight-systems/2025.10.1/bin/nsys")


def run(argv: list[str]) -> tuple[int, str]:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """A program named nsys that does what the shell script says; $FOLDER is where the report belongs."""

    def make(script: str) -> str:
        path = tmp_path / "nsys"
        path.write_text(f"#!/bin/sh\nFOLDER={tmp_path}\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_nsys_says_what_is_missing(
    tmp_path: Path, program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def skipped(script: str) -> Skipped:
        found = trace_program(run, ["true"], tmp_path, program(script))
        assert isinstance(found, Skipped)
        return found

    assert (
        "status 3" in skipped("echo no such option; exit 3").why
        and "no such option" in skipped("echo no such option; exit 3").why
    )
    importer = skipped("touch $FOLDER/trace.qdstrm")
    assert "QdstrmImporter" in importer.why and "libdw1" in importer.enable
    named = skipped(
        "echo 'error while loading shared libraries: libfoo.so.2: cannot open shared object file'; exit 1"
    )
    assert "libfoo.so.2 is missing" in named.why and "libfoo.so.2" in named.enable
    assert (
        "export ended with status 5: disk full"
        in skipped("[ $1 = profile ] && touch $FOLDER/trace.nsys-rep || { echo disk full; exit 5; }").why
    )
    assert (
        "cannot be read"
        in skipped("[ $1 = export ] && echo 'this is no database at all' > $FOLDER/trace.sqlite").why
    )
    monkeypatch.setattr(nsys, "find_nsys", lambda: None)
    absent = trace_program(run, ["true"], tmp_path)
    assert isinstance(absent, Skipped) and "not found" in absent.why and "Nsight Systems" in absent.enable


def test_nsys_in_four_steps(tmp_path: Path, database: Path, program: Callable[[str], str]) -> None:
    ready = database.rename(tmp_path / "made.sqlite")
    trace = trace_program(
        run,
        ["true"],
        tmp_path,
        program(f"[ $1 = export ] && cp {ready} $FOLDER/trace.sqlite || touch $FOLDER/trace.nsys-rep"),
    )
    assert isinstance(trace, Trace) and len(trace.calls) == 2
