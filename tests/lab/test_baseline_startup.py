"""Baselines start in the background; a candidate that never ends is rejected before they are ready."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kernelpro.lab.jobs import JobRunner
from kernelpro.lab.judge.baseline_startup import BaselineStartup
from kernelpro.lab.judge.judge import Judge
from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import BadInput, Candidate, Options, Status, Task

TASK = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""
CANDIDATE = """
import time
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        {work}
"""
ENDLESS = CANDIDATE.format(work="time.sleep(1000)")
HONEST = CANDIDATE.format(work="return torch.clamp_min(x, 0)")
WRONG = CANDIDATE.format(work="return x")


@pytest.fixture
def bench(worker: JobRunner) -> Iterator[Bench]:
    options = Options(baselines=("eager_fp32",), effort="quick", call_timeout=1.0)
    bench = Bench(Task(TASK, "relu").for_target("cpu"), "cpu", options, worker._launcher, worker._builds)
    bench.open(lambda stage: None)
    yield bench
    bench.close()


class Compilers:
    """Start of baselines that waits until it may end, and may fail the first time."""

    def __init__(self, failures: int = 0):
        self.may_end, self.failures, self.starts = threading.Event(), failures, 0

    def start(self) -> Baselines:
        self.starts += 1
        self.may_end.wait()
        if self.starts <= self.failures:
            raise BadInput("the baselines do not compile: no memory")
        raise BadInput("they are not needed here")


def test_a_candidate_that_never_ends_is_rejected_while_the_baselines_compile(bench: Bench) -> None:
    compilers = Compilers()
    startup = BaselineStartup(bench, compilers.start)
    try:
        assert startup.will_take_long()
        with pytest.raises(CandidateRejected, match=r"in forward: took more than 1 s") as caught:
            startup.try_meanwhile(Candidate(ENDLESS, "endless"))
        assert caught.value.status is Status.TIMED_OUT
        for source in (HONEST, WRONG, "no Python"):  # left to the checks
            startup.try_meanwhile(Candidate(source, "other"))
    finally:
        compilers.may_end.set()
        startup.close()


@pytest.mark.parametrize(("tried", "starts"), [(False, 1), (True, 2)])
def test_baselines_that_failed_beside_a_candidate_start_anew(bench: Bench, tried: bool, starts: int) -> None:
    compilers = Compilers(failures=1)
    startup = BaselineStartup(bench, compilers.start)
    if tried:
        startup.try_meanwhile(Candidate(HONEST, "honest"))
    compilers.may_end.set()
    with pytest.raises(BadInput, match="not needed" if tried else "do not compile"):
        startup.finish()
    assert compilers.starts == starts
    startup.close()


def test_a_judge_that_has_rejected_one_candidate_judges_the_next(worker: JobRunner, bench: Bench) -> None:
    judge = Judge(bench, lambda stage: None)
    judge.prepare()
    assert judge._startup
    wait, judge._startup.will_take_long = judge._startup.will_take_long, lambda: True  # type: ignore[method-assign]
    endless = judge.judge(Candidate(ENDLESS, "endless"))
    assert endless.status is Status.TIMED_OUT and judge._baselines is None
    judge._startup.will_take_long = wait  # type: ignore[method-assign]
    assert judge.judge(Candidate(HONEST, "honest")).status is Status.PASSED
    assert judge.preparation_seconds["calibrate"] > 0
