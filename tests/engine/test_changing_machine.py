"""A machine that changes its speed during a run: steps are ranked by their speed-ups, not by their milliseconds.

The pool is fake, so that the change is exact: the machine takes a fifth of the time from the third judgement
on, and is slow again for the final judging of all but the slowest kernel.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from engine.known_lab import KnownLab
from engine.verdicts import about, verdict

from kernelpro.authors.author import Assignment, Author, Draft
from kernelpro.cli.commands.runs import RunsOptions
from kernelpro.cli.runs import list_runs
from kernelpro.engine.loop import Engine
from kernelpro.engine.shape_dispatch import choose_by_shape, specialists
from kernelpro.engine.store import RunStore
from kernelpro.records import (
    ComparableTimes,
    Interval,
    Job,
    Limits,
    RunConfig,
    ShapeTimes,
    Status,
    Step,
    Task,
    TaskFacts,
    Verdict,
)
from kernelpro.records.shapes import mean_times, total_speedup
from kernelpro.report.data import collect_report
from kernelpro.ui.feed import RunFeed
from kernelpro.ui.overview import _read

SPEEDUPS = {"first = 1": 2.0, "fastest = 2": 4.0, "slower = 3": 3.0, "slowest = 4": 1.5}
"""Sources in the order of their steps, each with its speed-up over the baseline."""


def scaled(original: Verdict, factor: float) -> Verdict:
    """The verdict of a machine that takes this many times as long."""
    times = {
        name: Interval(factor * time.value, factor * time.low, factor * time.high)
        for name, time in original.times.items()
    }
    return replace(original, times=times)


class ChangingLab(KnownLab):
    def verdict(self, job: Job, source: str) -> Verdict:
        number = list(SPEEDUPS).index(source) + 1
        fast = number == 4 if job.options.effort == "full" else number > 2
        return scaled(verdict(1 / SPEEDUPS[source]), 0.2 if fast else 1.0)


class Script(Author):
    """Every step improves the one before."""

    name = "script"

    async def write(self, assignment: Assignment) -> Draft:
        source = list(SPEEDUPS)[assignment.step - 1]
        return Draft(source, source.split(" ")[0], author="script")


def start(home: Path, candidates: int) -> RunStore:
    limits = Limits(candidates, stop_at_floor=0.0)
    config = RunConfig(
        Task("", "t"), "cuda", "script", policy="greedy", limits=limits, concurrency=1, finalists=4
    )
    return RunStore.create(home, config, "demo")


def work(store: RunStore) -> Engine:
    engine = Engine(store, ChangingLab(), Script())  # type: ignore[arg-type]
    asyncio.run(engine.run())
    return engine


def test_the_fastest_by_ratio_is_improved_and_wins(tmp_path: Path) -> None:
    store = start(tmp_path, 4)
    engine = work(store)
    steps = store.steps()
    assert steps[2].ms and steps[1].ms and steps[2].ms < steps[1].ms, "by milliseconds step 3 would be faster"
    assert [node.id for node in engine.tree.ranked()] == [2, 3, 1, 4]
    assert [node.ms for node in engine.tree.ranked()] == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1 / 1.5])
    assert [step.parent for step in steps] == [0, 1, 2, 2], "greedy goes on from the fastest"
    outcome = store.outcome()
    assert outcome and outcome.best == 2, "though step 4 was judged again in a fast hour"


def test_gains_charts_and_lists_follow_the_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = start(tmp_path, 4)
    engine = work(store)
    report = collect_report(store)
    assert [step.gain for step in report.steps] == [
        None,
        pytest.approx(2.0),
        pytest.approx(0.75),
        pytest.approx(0.375),
    ]
    assert [step.ms.value for step in report.steps if step.ms] == pytest.approx(
        [0.5, 0.25, 0.2 / 3, 0.2 / 1.5]
    )
    assert [point.ms for point in report.progress] == pytest.approx([1 / 2, 1 / 4, 1 / 3, 1 / 1.5])
    assert [point.best_ms for point in report.progress] == pytest.approx([1 / 2, 1 / 4, 1 / 4, 1 / 4])
    assert "0.75x as fast as" in engine._memory.digest(2, 500)
    feed = RunFeed(store)
    batch = feed.next()
    assert batch and batch["status"]["best"]["n"] == 2
    assert [step["c"] for step in batch["steps"]] == pytest.approx([1 / 2, 1 / 4, 1 / 3, 1 / 1.5])
    assert [step["ms"] for step in batch["steps"]] == pytest.approx([1 / 2, 1 / 4, 0.2 / 3, 0.2 / 1.5])


def test_an_unfinished_run_names_the_same_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished = start(tmp_path / "finished", 4)
    facts = work(finished).facts
    store = start(tmp_path / "open", 4)
    assert facts
    store.save_task_facts(facts)
    for step in finished.steps():
        store.save_source(finished.source(step.final_source))
        store.save_step(step)
    assert collect_report(store).verdict.step == 2 and _read(store)["speedup"] == pytest.approx(4.0)
    list_runs(RunsOptions(runs_dir=str(tmp_path / "open")))
    assert "4.00x" in capsys.readouterr().out


def test_a_resumed_run_ranks_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = work(start(tmp_path / "whole", 4))
    store = start(tmp_path / "parts", 2)
    work(store)
    store.save_config(replace(store.config(), limits=Limits(4, stop_at_floor=0.0)))
    resumed = work(store)
    ranking = [(node.id, node.parent, node.ms, node.reward) for node in whole.tree.ranked()]
    assert ranking == [(node.id, node.parent, node.ms, node.reward) for node in resumed.tree.ranked()]
    again = work(store)
    assert ranking == [(node.id, node.parent, node.ms, node.reward) for node in again.tree.ranked()]


# --- the definition ----------------------------------------------------------------------------------------

TIMES = ComparableTimes({"eager_fp32": 2.0, "compile": 1.0})


def judged(ms: float, speedup: dict[str, float]) -> Verdict:
    ratios = {name: about(value) for name, value in speedup.items()}
    return Verdict(
        "k", Status.PASSED, "correct", times={"candidate": about(ms)}, speedup=ratios, faster="yes"
    )


def test_the_time_is_that_of_the_fastest_baseline_by_the_speedup_over_it() -> None:
    time = TIMES.interval(judged(7.0, {"eager_fp32": 9.0, "compile": 4.0}))
    assert time and time.value == 0.25 and time.low == pytest.approx(0.25 / 1.01)
    other = TIMES.interval(judged(7.0, {"eager_fp32": 4.0}))
    assert other and other.value == 0.5, "a worker without that baseline uses the next one"


def test_without_a_ratio_the_measured_time_counts() -> None:
    alone = TIMES.interval(judged(7.0, {"max_autotune": 4.0}))
    assert alone == about(7.0) == ComparableTimes.of(None).interval(judged(7.0, {"compile": 4.0}))
    failed = Step(1, 0, "seed", verdict=Verdict("k", Status.WRONG, "no"))
    assert TIMES.ms(failed) is TIMES.ms(Step(2, 0, "seed")) is TIMES.ms(None) is None
    assert TIMES.gain(failed, None) is None


def shapes(*speedups: float, factor: tuple[float, ...] = (1.0, 1.0)) -> Verdict:
    """Two shapes whose baseline takes 1 ms and 3 ms, on a machine that is slower by a factor for each."""
    measured = tuple(
        ShapeTimes(
            f"{n}x8",
            0.5,
            {"candidate": about(slower * base / speedup), "compile": about(slower * base)},
            {"compile": about(speedup)},
        )
        for n, (base, speedup, slower) in enumerate(zip((1.0, 3.0), speedups, factor, strict=True))
    )
    return Verdict(
        "k",
        Status.PASSED,
        "correct",
        times=mean_times(measured),
        speedup=total_speedup(measured),
        faster="yes",
        shapes=measured,
    )


def test_each_shape_is_compared_with_its_own_baseline() -> None:
    facts = TaskFacts({"compile": 2.0}, 0.0, "fp32", shapes=shapes(1.0, 1.0).shapes)
    times = ComparableTimes.of(facts)
    steady, slowed = shapes(2.0, 4.0), shapes(2.0, 4.0, factor=(1.0, 3.0))
    first, second = times.interval(steady), times.interval(slowed)
    assert first and second and first.value == second.value == pytest.approx(0.5 * (1 / 2 + 3 / 4))
    left, right = shapes(8.0, 1.0, factor=(9.0, 1.0)), shapes(1.0, 8.0, factor=(1.0, 9.0))
    steps = [Step(n, 0, "seed", verdict=v) for n, v in enumerate((steady, left, right), 1)]
    assert [step.number for step in specialists(times, steps)] == [2, 3]
    chosen, together = choose_by_shape(times, {1: steady, 2: left, 3: right}, 1)
    assert chosen == (2, 3) and together.speedup["compile"].value == pytest.approx(8.0)
