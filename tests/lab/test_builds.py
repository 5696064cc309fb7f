"""Builds in the background, and the quiet that timing on the CPU asks for."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import pytest

from kernelpro.lab.exclusive import compiling, without_compilers
from kernelpro.lab.sandbox.background import Pausable
from kernelpro.lab.sandbox.builds import Builds, when_all_end
from kernelpro.lab.sandbox.compilation import TimeLimitExceeded, TimeLimits
from kernelpro.lab.sandbox.launcher import SandboxLauncher
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.sandbox.process import SandboxedProcess
from kernelpro.records import Candidate, Options, Status

SOURCE = """
from kernelpro import runtime
lib = runtime.cpp('extern "C" int number() {{ return {number}; }}')
"""


def unseen() -> Candidate:
    return Candidate(SOURCE.format(number=secrets.randbits(31)))


HOLDS = """
from kernelpro.lab.exclusive import without_compilers
with without_compilers():
    print("held", flush=True)
    input()
"""


def test_no_compiler_runs_while_another_process_times_the_cpu(launcher: SandboxLauncher) -> None:
    builds = Builds(launcher)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin and other.stdout and other.stdout.readline() == "held\n"
        waiting = builds.begin(unseen(), "cpu", Options())
        assert not threading.Event().wait(0.5) and not waiting.done()
        other.stdin.write("\n")
        other.stdin.flush()
        assert waiting.result(60)
    with compiling():
        assert builds.get(unseen(), "cpu", Options()), "compilers run beside each other"
    builds.close()


LONG_BUILD = """
import subprocess, sys
from kernelpro import runtime
burn = "import time; end = time.monotonic() + 600\\nwhile time.process_time() < 1.5: pass"
subprocess.run([sys.executable, "-c", burn], process_group=0, check=True)  # like a compiler that ninja starts
lib = runtime.cpp('extern "C" int number() {{ return {number}; }}')
"""


def test_builds_are_paused_while_a_gpu_is_timed_and_continue_afterwards(launcher: SandboxLauncher) -> None:
    builds, options = Builds(launcher), Options()
    build = builds.begin(Candidate(LONG_BUILD.format(number=secrets.randbits(31))), "cpu", options)
    members = builds.background._members
    while not (members and len(_process_of(members).process_tree()) > 1):
        assert not build.done(), build.exception()
    process = _process_of(members)
    with builds.background.paused():
        threading.Event().wait(0.3)  # a signal takes effect when its process runs
        before = process.cpu_time_ms()
        later = builds.begin(unseen(), "cpu", options)
        threading.Event().wait(1)
        assert process.cpu_time_ms() == before and not build.done()
        assert len(members) == 1 and not later.done(), "no build starts meanwhile"
        assert builds.get(unseen(), "cpu", options), "a build that the timing side waits for continues"
    assert build.result(60) and later.result(60)
    assert not members
    builds.close()


def test_time_in_which_a_build_is_paused_does_not_count() -> None:
    calls = iter(range(8))

    def is_over(seconds: float) -> bool:
        time.sleep(seconds)
        return next(calls) == 7

    limits = TimeLimits(0.1, 0.1)
    limits.wait(is_over, lambda: False, is_paused=lambda: True)
    assert limits.run_seconds == limits.compile_seconds == 0
    with pytest.raises(TimeLimitExceeded):
        limits.wait(lambda seconds: bool(time.sleep(seconds)), lambda: False)


def _process_of(members: set[Pausable]) -> SandboxedProcess:
    (process,) = members
    assert isinstance(process, SandboxedProcess)
    return process


def test_a_build_that_a_job_waits_for_does_not_queue_behind_builds_ahead(launcher: SandboxLauncher) -> None:
    builds = Builds(launcher, workers=1)
    with without_compilers():  # nothing is built before the queue is full
        first, second = unseen(), unseen()
        queued = [builds.begin(each, "cpu", Options(), is_ahead=True) for each in (unseen(), first, second)]
        needed = builds.begin(second, "cpu", Options())
    assert needed.result(60) and queued[2].cancelled()
    assert builds.begin(second, "cpu", Options()) is needed, "no candidate is built twice"
    assert queued[1].result(60) and builds.begin(first, "cpu", Options()) is queued[1]
    builds.close()


def test_a_build_that_ran_out_of_time_is_tried_again_one_that_does_not_compile_is_not(
    launcher: SandboxLauncher,
) -> None:
    builds = Builds(launcher)
    heavy = unseen().source.replace("extern", "#include <regex>\\n#include <iostream>\\nextern", 1)
    slow, broken = Candidate(heavy), Candidate(SOURCE.format(number="no number"))
    with pytest.raises(CandidateRejected, match=r"compiling took more than 0\.01 s"):
        builds.get(slow, "cpu", Options(build_timeout=0.01))
    assert builds.get(slow, "cpu", Options())
    with pytest.raises(CandidateRejected) as first:
        builds.get(broken, "cpu", Options())
    with pytest.raises(CandidateRejected) as second:
        builds.get(broken, "cpu", Options())
    assert second.value is first.value
    builds.close()


def test_a_build_that_a_job_on_a_cpu_waits_for_has_the_usual_priority(launcher: SandboxLauncher) -> None:
    builds = Builds(launcher)
    source = "import os\nfrom kernelpro import runtime\nraise RuntimeError(f'nice {os.nice(0)}')"
    candidate = Candidate(f"{source}  # {secrets.token_hex()}")  # no cached build has notes
    builds.get(candidate, "cpu", Options())
    assert f"nice {os.nice(0)}" in builds.notes[candidate.id]
    builds.close()


def test_the_end_of_several_builds_is_reported_once_however_they_end() -> None:
    builds, ends = [Future[bytes]() for _ in range(3)], list[str]()
    when_all_end([*builds, builds[0]], lambda: ends.append("ended"))
    builds[0].set_result(b"")
    builds[1].cancel()
    assert not ends
    builds[2].set_exception(CandidateRejected(Status.BUILD_FAILED, ""))
    assert ends == ["ended"]
    when_all_end(builds, lambda: ends.append("again"))
    assert ends == ["ended", "again"], "they have ended already"
