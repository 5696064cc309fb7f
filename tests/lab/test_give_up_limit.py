"""A limit on the time that is still of interest: candidates above it are timed for a few rounds only."""

from __future__ import annotations

from pathlib import Path

from kernelpro.lab.jobs import JobRunner
from kernelpro.lab.sandbox.launcher import SandboxLauncher
from kernelpro.records import Candidate, Job, Options, ProbeData, Progress, Record, Status, Task, Verdict

BAD = Path(__file__).parents[1] / "bad"
NOTE = "timing stopped early: the kernel is clearly slower than the fastest baseline"
NOBODY, ANYBODY = 1e-9, 1e9
"""Multiples of the baseline's time that no call and that every call keeps."""


def judged(worker: JobRunner, candidate: str, give_up_ratio: float) -> Verdict:
    options = Options(effort="quick", baselines=("eager_fp32",), give_up_ratio=give_up_ratio)
    result = worker.run(
        Job(
            "test",
            "judge",
            Task.from_file(BAD / "task.py"),
            Candidate.from_file(BAD / candidate),
            "cpu",
            options,
        )
    )
    assert result.verdict is not None, result.error
    return result.verdict


def test_a_candidate_above_the_limit_is_timed_for_a_few_rounds_on_the_same_warm_task(
    launcher: SandboxLauncher,
) -> None:
    stages: list[str] = []

    def tell(record: Record) -> None:
        assert isinstance(record, Progress)
        stages.append(record.stage)

    worker = JobRunner(launcher, tell)
    try:
        free, kept, stopped = (judged(worker, "good.py", limit) for limit in (0.0, ANYBODY, NOBODY))
        wrong = judged(worker, "nan.py", NOBODY)
    finally:
        worker.close()
    assert [verdict.status for verdict in (free, kept, stopped)] == [Status.PASSED] * 3
    assert NOTE not in free.notes and NOTE not in kept.notes and NOTE in stopped.notes
    rounds = [verdict.measurement.rounds for verdict in (free, kept, stopped)]
    assert rounds[0] == rounds[1] > rounds[2] == 10
    verified = [verdict.measurement.verified_calls for verdict in (free, stopped)]
    assert verified[0] - verified[1] >= rounds[0] - rounds[2], "there are also calls between the rounds"
    assert stopped.times["candidate"].value > 0 and stopped.speedup and stopped.faster
    assert wrong.status is Status.WRONG
    assert stages.count("loading the reference") == 1


def test_a_probe_without_baselines_times_nothing_and_leaves_nothing_half_ready(worker: JobRunner) -> None:
    task, none = Task.from_file(BAD / "task.py"), Options(effort="quick", baselines=())
    probed = worker.run(Job("probe", "probe", task, target="cpu", options=none))
    assert (
        isinstance(probed.data, ProbeData)
        and probed.data.scorable
        and not probed.data.baselines
        and "calibrate" not in probed.data.stage_seconds
    )
    judged = worker.run(Job("judge", "judge", task, Candidate.from_file(BAD / "good.py"), "cpu", none))
    assert (
        judged.verdict
        and judged.verdict.status is Status.PASSED
        and set(judged.verdict.speedup) == {"eager_fp32"}
    )
