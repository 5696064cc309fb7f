"""Builds in the background, and the quiet that timing on the CPU asks for."""

from __future__ import annotations

import secrets
import threading

from kernelpro.lab.judge.builds import Builds
from kernelpro.lab.judge.cell import Nursery
from kernelpro.records import Candidate, Options

SOURCE = """
from kernelpro import runtime
lib = runtime.cpp('extern "C" int number() {{ return {number}; }}')
"""


def unseen() -> Candidate:
    return Candidate(SOURCE.format(number=secrets.randbits(31)))


def test_no_compiler_runs_while_the_cpu_is_timed(nursery: Nursery) -> None:
    builds = Builds(nursery)
    with builds.quiet("cpu"):
        waiting = builds.begin(unseen(), "cpu", Options())
        assert not threading.Event().wait(0.5) and not waiting.done()
    assert waiting.result(60)
    with builds.quiet("cuda"):
        assert builds.get(unseen(), "cpu", Options())
    builds.close()
