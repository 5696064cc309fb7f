"""Energy in a verdict: real sandboxed processes, real calls, and a fake counter of their CPU time.

The counter replaces RAPL, which few machines expose: 5 W at idle, 100 W for each busy core, updated every 20 ms.
So two kernels of equal time, one computing and one sleeping, are known to differ in energy.
"""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from lab.energy.fake_counter import ASLEEP, BUSY, KERNEL, TASK, CpuTimeCounter, kernel, quick_windows
from quick_judge import QuickJudge

from kernelpro.lab.energy import meter
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.sandbox.memory import Region
from kernelpro.records import Candidate, Energy, Status, Task, Verdict

OVERCOUNTS = """
from kernelpro.lab.sandbox import candidate_server
honest = candidate_server.CandidateServer.loop
def loop(self, request, tail):
    answer, blob = honest(self, request, tail)
    return answer | {"calls": 40 * answer["calls"]}, blob
candidate_server.CandidateServer.loop = loop
"""
EXITS_LOOP = """
from kernelpro.lab.sandbox import candidate_server
def loop(self, request, tail):
    self._outputs = [self._model(*self._arguments[0])]
    return {"calls": 100, "outputs": [self._locate_all(output) for output in self._outputs]}, b""
candidate_server.CandidateServer.loop = loop
"""
CACHES_OUTPUTS = """
import time
class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.seen = {}, {}
    def forward(self, x):
        key = x.data_ptr()
        self.calls[key] = self.calls.get(key, 0) + 1
        if self.calls[key] < 20:
            y = torch.empty_like(x)
            lib.go(x, y, x.numel())
            self.seen[key] = y
            return y
        time.sleep(0.006)
        return self.seen[key].clone()
"""


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_windows(monkeypatch)


def measured(quick_judge: QuickJudge, candidate: Candidate, task: Task = TASK) -> tuple[Verdict, Energy]:
    verdict = quick_judge.judge(task, candidate, energy=True, disabled_tripwires=("all",))
    assert verdict.status is Status.PASSED, verdict.reason
    assert verdict.energy is not None
    return verdict, verdict.energy


def test_of_two_kernels_of_equal_speed_the_one_that_sleeps_takes_less(quick_judge: QuickJudge) -> None:
    (verdict, busy), (_, asleep) = (measured(quick_judge, kernel(rest)) for rest in (BUSY, ASLEEP))
    assert Verdict.from_json(verdict.to_json()).energy == busy
    assert not busy.unavailable and not asleep.unavailable, busy.unavailable + asleep.unavailable
    assert asleep.joules["candidate"].high < busy.joules["candidate"].low
    assert busy.ratio["power"].value > asleep.ratio["power"].value
    assert busy.lower == "no", "the reference does the same without waiting"
    for energy in (busy, asleep):
        assert energy.baseline in energy.joules and energy.counter == "fake RAPL"
        each = [window for window in energy.windows if window.side == "candidate" and not window.rejection]
        assert len(each) >= 3 and all(window.calls > 1 for window in each)
        seconds = energy.edp["candidate"].value / energy.joules["candidate"].value
        assert seconds > 0.005, "a call takes 6 ms at least"
        assert energy.idle_watts["before"] < energy.watts["candidate"].value + 5


class ThrottledCounter(CpuTimeCounter):
    """Throttled for a number of updates."""

    def __init__(self, steps: float):
        super().__init__()
        self._steps = steps

    def state(self) -> dict[str, int | None]:
        self._steps -= 1
        return {"throttle": 0x40 if self._steps > 0 else 0x4}


def test_a_window_in_which_the_device_was_throttled_is_made_again(
    quick_judge: QuickJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = ThrottledCounter(45)  # through the rest before, and into the first round
    monkeypatch.setattr(meter, "find_counter", lambda target: hot)
    monkeypatch.setattr(meter, "ROUNDS", {"quick": 2})
    _, energy = measured(quick_judge, kernel())
    assert not energy.unavailable and energy.joules
    rejected = [window for window in energy.windows if window.rejection]
    assert rejected and {window.rejection for window in rejected} == {"the device was throttled"}
    kept = [window for window in energy.windows if window.side == "candidate" and window not in rejected]
    assert len(kept) >= 2 and all(window.power_capped == 1 for window in kept), (
        "a power cap is the normal state of a busy board"
    )


class SlowCounter(CpuTimeCounter):
    """Fast to read at idle, slow under load."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = time.perf_counter()

    def joules(self) -> float:
        if time.perf_counter() - self._begun > 0.4:  # the rest before is over
            time.sleep(0.018)
        return super().joules()


def test_a_window_whose_steps_are_seen_late_goes_on_until_they_are_known(
    quick_judge: QuickJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "find_counter", lambda target: SlowCounter())
    monkeypatch.setattr(meter, "ROUNDS", {"quick": 2})
    _, energy = measured(quick_judge, kernel())
    assert not energy.unavailable and energy.joules
    kept = [window for window in energy.windows if not window.rejection]
    assert len(kept) >= 4 and all(window.seconds > 0.5 and window.uncertainty <= 0.03 for window in kept), (
        "0.4 s were asked for"
    )


@pytest.mark.long  # one of those before sees throttled windows dropped
def test_where_it_is_always_throttled_no_number_is_given(
    quick_judge: QuickJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "find_counter", lambda target: ThrottledCounter(math.inf))
    monkeypatch.setattr(meter, "ROUNDS", {"quick": 1})
    _, energy = measured(quick_judge, kernel())
    assert (
        "only 0 of 1 rounds were usable: the device was throttled" in energy.unavailable and not energy.joules
    )


def test_more_calls_than_were_made_are_not_believed(
    quick_judge: QuickJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "ROUNDS", {"quick": 1})
    _, energy = measured(quick_judge, kernel(head=OVERCOUNTS))
    assert "cannot be the same work" in energy.unavailable and not energy.joules


def test_answering_from_memory_is_noticed_when_inputs_change(quick_judge: QuickJudge) -> None:
    source = KERNEL.replace("REST", BUSY).replace("HEAD", CACHES_OUTPUTS)
    source = source[: source.index("class ModelNew")] + "class ModelNew(Memory): pass\n"
    assert quick_judge.judge(TASK, Candidate(source), energy=True).status is Status.WRONG


def test_leaving_the_loop_early_is_cheating(quick_judge: QuickJudge) -> None:
    verdict = quick_judge.judge(TASK, kernel(head=EXITS_LOOP), energy=True, disabled_tripwires=("all",))
    assert verdict.status is Status.CHEATING and "before it was told to" in verdict.reason
    assert verdict.energy is None


def test_without_a_counter_the_verdict_stands_and_says_why(
    quick_judge: QuickJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(target: str) -> object:
        raise meter.NoEnergyCounter("this CPU counts no energy")

    monkeypatch.setattr(meter, "find_counter", none)
    verdict, energy = measured(quick_judge, kernel())
    assert energy.unavailable == "this CPU counts no energy" and verdict.faster


@pytest.mark.long  # one more way to end
def test_a_baseline_that_dies_is_not_the_candidates_fault(
    quick_judge: QuickJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = meter.EnergyMeter._start_baseline

    def killed(self: meter.EnergyMeter) -> Participant:
        participant = started(self)
        os.kill(participant.process.pid, signal.SIGKILL)
        return participant

    with monkeypatch.context() as patched:
        patched.setattr(meter.EnergyMeter, "_start_baseline", killed)
        verdict, energy = measured(quick_judge, kernel())
    assert (
        "the baseline" in energy.unavailable
        and "failed while its energy was measured" in energy.unavailable
        and verdict.faster
    )
    _, energy = measured(quick_judge, kernel())
    assert not energy.unavailable, energy.unavailable


@pytest.mark.together
def test_where_there_is_no_room_for_the_baseline_nothing_of_it_stays(
    quick_judge: QuickJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU would refuse it; a CPU gives whatever is asked for."""
    made = Bench._region
    left, closed = [1] * 9, []  # eight for the candidate's inputs, one of the baseline's eight

    def scarce(self: Bench) -> Region:
        if not left:
            raise torch.OutOfMemoryError
        left.pop()
        region = made(self)
        monkeypatch.setattr(region, "close", lambda: closed.append(region))
        return region

    task = replace(TASK, source=f"{TASK.source}# another bench")
    quick_judge.judge(task, kernel(), disabled_tripwires=("all",))
    with monkeypatch.context() as patched:
        patched.setattr(Bench, "_region", scarce)
        verdict, energy = measured(quick_judge, kernel(), task)
    assert "out of device memory" in energy.unavailable and verdict.faster and len(closed) == 1


@pytest.mark.together
@pytest.mark.long  # compiles for long
def test_a_baseline_that_does_not_compile_is_no_baseline_for_energy(
    quick_judge: QuickJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = Participant.receive

    def fails(self: Participant, operation: str, seconds: float) -> dict[str, object]:
        told = receive(self, operation, seconds)
        return (
            {"failed": {"compile": "no compiler is left"}, "seeds": {}}
            if operation == "compile_variants"
            else told
        )

    both = {
        "energy": True,
        "disabled_tripwires": ("all",),
        "energy_baseline": "compile",
        "baselines": ("eager_fp32", "compile"),
    }
    assert quick_judge.judge(TASK, kernel(), **both | {"energy": False}).status is Status.PASSED
    with monkeypatch.context() as patched:
        patched.setattr(Participant, "receive", fails)
        verdict = quick_judge.judge(TASK, kernel(), **both)
    assert verdict.energy and "baseline compile left out: no compiler is left" in verdict.energy.unavailable


@pytest.mark.long  # compiles for long
def test_energy_is_measured_beside_the_baseline_that_is_asked_for(quick_judge: QuickJudge) -> None:
    baselines = ("eager_fp32", "compile")
    first = quick_judge.judge(TASK, kernel(), disabled_tripwires=("all",), baselines=baselines)
    slower = max(baselines, key=lambda name: first.times[name].value)
    verdict = quick_judge.judge(
        TASK, kernel(), energy=True, disabled_tripwires=("all",), energy_baseline=slower, baselines=baselines
    )
    assert verdict.energy and verdict.energy.baseline == slower, verdict.energy
