"""Workers that share a device: beside each other while they hold it, one at a time while they are alone."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from kernelpro.lab.device_lock import DeviceLock
from kernelpro.lab.seeds import call_before_benchmarks

WORKERS, ROUNDS = 3, 8

SHARER = """
import os, sys, time
from pathlib import Path
from kernelpro.lab.device_lock import DeviceLock

name, folder, workers, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
lock = DeviceLock("shared-device", shares=workers)

def note(text):
    os.write(log, f"{name} {text}\\n".encode())

for number in range(rounds):
    with lock.held(lambda stage: None):
        note("holds")
        while number == 0 and not all((folder / f"here-{n}").exists() for n in range(workers)):
            (folder / f"here-{name}").touch()  # all of them hold it at once
            time.sleep(0.005)
        note("ends")
        with lock.alone():
            note("alone")
            with lock.alone():
                time.sleep(0.003)
            note("done")
        note("holds")
        time.sleep(0.002)
        note("ends")
"""

TIMER = """
import os, sys
from pathlib import Path
from kernelpro.lab.exclusive import exclusive

log = os.open(Path(sys.argv[2]) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(int(sys.argv[4])):
    with exclusive("shared-device", lambda stage: None):
        os.write(log, f"{sys.argv[1]} alone\\n".encode())
        os.write(log, f"{sys.argv[1]} done\\n".encode())
"""


def test_what_is_timed_is_alone_and_all_get_their_turn(tmp_path: Path) -> None:
    arguments = [str(tmp_path), str(WORKERS), str(ROUNDS)]
    processes = [
        subprocess.Popen([sys.executable, "-c", code, name, *arguments])
        for name, code in [*((str(number), SHARER) for number in range(WORKERS)), ("timer", TIMER)]
    ]
    try:
        assert [process.wait(timeout=60) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    holding: set[str] = set()
    alone, most = "", 0
    for who, what in lines:
        assert alone in ("", who), f"{who} {what} while {alone} was alone"
        if what == "holds":
            holding.add(who)
        elif what == "ends":
            holding.discard(who)
        elif what == "alone":
            assert not holding, f"{who} was alone beside {holding}"
        alone = who if what == "alone" else "" if what == "done" else alone
        most = max(most, len(holding))
    assert most == WORKERS
    assert Counter(who for who, what in lines if what == "alone") == dict.fromkeys(
        ["0", "1", "2", "timer"], ROUNDS
    )


def test_one_share_is_exclusive_and_waiting_does_not_count() -> None:
    lock = DeviceLock("one-share")
    with lock.held(lambda stage: None), lock.alone():
        assert lock.waited_seconds == 0.0
    shared = DeviceLock("two-shares", shares=2)
    with shared.held(lambda stage: None, alone=True), shared.alone():
        assert shared.waited_seconds == 0.0


def test_a_compiler_asks_before_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime import benchmarking

    events: list[str] = []
    monkeypatch.setattr(benchmarking, "benchmarker", type(benchmarking.benchmarker)())
    call_before_benchmarks(lambda: events.append("asked"))
    milliseconds = benchmarking.benchmarker.benchmark(lambda x: events.append("ran"), (torch.ones(2),), {})
    assert milliseconds >= 0
    assert events[0] == "asked" and "ran" in events
