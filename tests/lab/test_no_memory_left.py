"""A device whose memory runs out while a candidate is judged: that one's end, and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from court import Court

from kernelpro.lab.judge import judge
from kernelpro.records import Status

BAD = Path(__file__).parents[1] / "bad"
pytestmark = pytest.mark.together


def test_it_ends_the_candidate_and_the_next_is_judged(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(outputs: object, truth: object) -> None:
        raise torch.OutOfMemoryError

    assert court.judge_files(BAD / "task.py", BAD / "good.py").status is Status.PASSED
    with monkeypatch.context() as patched:
        patched.setattr(judge, "measure", full)  # a CPU's memory does not end in this way
        verdict = court.judge_files(BAD / "task.py", BAD / "good.py")
    assert verdict.status is Status.CRASHED and "too little of the device's memory" in verdict.reason
    assert court.judge_files(BAD / "task.py", BAD / "good.py").status is Status.PASSED
