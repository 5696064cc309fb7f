"""The tuner on landscapes with known answers, and on a real kernel under the real judge."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable

import pytest

from kernelpro.authors.tunables import Point, parse
from kernelpro.authors.tuner import Judge, Tuned, TuneOptions, tune
from kernelpro.pools.local import Pool
from kernelpro.records import BadInput, Candidate, Interval, Job, Options, Status, Task, Verdict

GRID = "A = 4  # tune: 1, 2, 4, 8, 16\nB = 2  # tune: 1, 2, 3\n"
LARGE = "".join(f"{name} = 3  # tune: 0, 1, 2, 3, 4, 5, 6, 7\n" for name in "ABCD")
Landscape = Callable[[Point], float]
"""Milliseconds at a point; infinite where it does not build."""


class Bench:
    """A judge over a landscape; it notes what it was asked, and finishes in an order of its own."""

    def __init__(self, landscape: Landscape, width: float = 0.01, seed: int = 0):
        self.landscape, self.width, self.dice = landscape, width, random.Random(seed)
        self.asked: list[tuple[dict[str, object], TuneOptions]] = []
        self.now, self.most = 0, 0

    async def __call__(self, source: str, options: TuneOptions) -> Verdict:
        point = parse(source).default
        self.asked.append((dict(point), options))
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(self.dice.randrange(5)):
            await asyncio.sleep(0)
        self.now -= 1
        ms = self.landscape(point)
        if ms == float("inf"):
            return Verdict("candidate", Status.BUILD_FAILED, "static assertion failed")
        interval = Interval(ms, ms * (1 - self.width), ms * (1 + self.width))
        speedup = Interval(10 / ms, 10 / interval.high, 10 / interval.low)
        return Verdict(
            "candidate", Status.PASSED, "correct", times={"candidate": interval}, speedup={"eager": speedup}, faster="yes"
        )

    def points(self, effort: str = "quick") -> list[dict[str, object]]:
        return [point for point, options in self.asked if options.effort == effort]


def tuned(source: str, judge: Judge, budget: int = 100, in_flight: int = 3, seed: int = 0) -> Tuned:
    return asyncio.run(asyncio.wait_for(tune(source, judge, budget, in_flight, random.Random(seed)), 60))


def bowl(point: Point) -> float:
    """Best at A = 5, B = 1, C = 6, D = 2."""
    aims = {"A": 5, "B": 1, "C": 6, "D": 2}
    return 1.0 + sum((float(point[name]) - aims[name]) ** 2 for name in aims) / 10


def test_a_small_grid_is_searched_whole_and_outwards_from_the_best() -> None:
    bench = Bench(lambda p: 1.0 + abs(float(p["A"]) - 16) + abs(float(p["B"]) - 3))
    found = tuned(GRID, bench, in_flight=1)
    assert found.point == {"A": 16, "B": 3} and found.ms == 1.0 and found.improved
    assert found.source == "A = 16  # tuned over 1, 2, 4, 8, 16\nB = 3  # tuned over 1, 2, 3\n"
    points = bench.points()
    assert points[0] == {"A": 4, "B": 2} and len(points) == 15 and len({tuple(p.items()) for p in points}) == 15
    assert points.index({"A": 16, "B": 3}) < points.index({"A": 1, "B": 1})
    assert points.index({"A": 16, "B": 3}) <= 8


def test_a_large_grid_is_climbed_within_the_budget() -> None:
    bench = Bench(bowl)
    found = tuned(LARGE, bench, budget=80)
    assert found.point == {"A": 5, "B": 1, "C": 6, "D": 2} and found.ms == 1.0
    assert len(bench.points()) <= 80 and len(bench.points("normal")) <= 4


def test_pairs_cross_what_single_steps_cannot() -> None:
    """A and B must change together: each alone is worse."""
    bench = Bench(lambda p: 2.0 + (p["A"] != p["B"]) - 0.1 * float(p["A"]) * (p["A"] == p["B"]) + float(p["C"]) + float(p["D"]))
    found = tuned(LARGE, bench, budget=400)
    assert found.point == {"A": 7, "B": 7, "C": 0, "D": 0}


def test_restarts_leave_a_local_optimum() -> None:
    bench = Bench(lambda p: 0.5 + float(p["A"]) if float(p["A"]) < 2 else 3.0 + abs(float(p["A"]) - 5) / 10)
    found = tuned("A = 5  # tune: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14\n", bench, budget=14)
    assert found.point["A"] in (0, 1)


def test_the_same_outcomes_give_the_same_search_whatever_finishes_first() -> None:
    logs = []
    for seed in range(4):
        bench = Bench(bowl, seed=seed)
        found = tuned(LARGE, bench, budget=60, in_flight=4, seed=7)
        assert bench.most <= 4
        logs.append((found, bench.asked))
    assert all(log == logs[0] for log in logs)
    assert tuned(LARGE, Bench(bowl), budget=60, in_flight=4, seed=8).log != logs[0][0].log


def test_hopeless_points_are_given_up_and_finalists_are_not() -> None:
    bench = Bench(bowl)
    tuned(LARGE, bench, in_flight=1)
    best = float("inf")
    for point, options in bench.asked:
        if options.effort == "normal":
            assert options.give_up_ms == 0
        else:
            assert options.give_up_ms == pytest.approx(1.3 * best if best < float("inf") else 0)
            best = min(best, bowl(point))  # type: ignore[arg-type]
    normal = bench.points("normal")
    assert normal[0] == parse(LARGE).default and 2 <= len(normal) <= 4


def test_what_fails_is_not_tried_again_and_a_value_that_always_fails_comes_last() -> None:
    bench = Bench(lambda p: float("inf") if float(p["A"]) >= 8 else 1.0 + float(p["B"]))
    found = tuned(GRID, bench, in_flight=1)
    points = bench.points()
    assert len({tuple(p.items()) for p in points}) == len(points) == 15
    assert {p["A"] for p in points[-2:]} <= {8, 16} and found.point["B"] == 1
    failed = [t for t in found.log if t.status is Status.BUILD_FAILED]
    assert len(failed) == 6 and all(t.ms is None and t.reason for t in failed)


def test_a_failing_value_is_avoided_in_a_large_grid() -> None:
    bench = Bench(lambda p: float("inf") if p["D"] == 2 else bowl(p))
    found = tuned(LARGE, bench, budget=120)
    assert found.point == {"A": 5, "B": 1, "C": 6, "D": 3} or found.point == {"A": 5, "B": 1, "C": 6, "D": 1}
    assert sum(p["D"] == 2 for p in bench.points()) <= 2 + 3


def test_a_default_that_fails_is_left_for_one_that_works() -> None:
    bench = Bench(lambda p: 1.0 if p["A"] == 8 else float("inf"))
    found = tuned(GRID, bench)
    assert found.point["A"] == 8 and found.improved and "the default does not pass" in found.why


def test_the_default_stays_unless_another_is_faster_by_more_than_the_interval() -> None:
    found = tuned(GRID, Bench(lambda p: 1.0 - 0.001 * float(p["A"]), width=0.02))
    assert found.point == {"A": 4, "B": 2} and not found.improved and "by more than the interval" in found.why
    assert found.source.startswith("A = 4  # tuned over")
    assert tuned(GRID, Bench(lambda p: 1.0 - 0.02 * float(p["A"]), width=0.02)).point["A"] == 16


def test_nothing_passes() -> None:
    found = tuned(GRID, Bench(lambda p: float("inf")))
    assert found.ms is None and found.point == {"A": 4, "B": 2} and len(found.log) == 15 and "static assertion" in found.why


def test_a_task_that_cannot_be_scored_ends_the_search() -> None:
    async def judge(source: str, options: TuneOptions) -> Verdict:
        return Verdict("candidate", Status.NOT_SCORABLE, "the output is constant")

    assert len(tuned(GRID, judge).log) == 1


def test_what_the_judge_raises_passes_through_and_nothing_is_left_running() -> None:
    cancelled = []

    async def judge(source: str, options: TuneOptions) -> Verdict:
        if parse(source).default == parse(GRID).default:
            return await Bench(lambda p: 1.0)(source, options)
        if len(cancelled) == 0 and "A = 2 " in source:
            await asyncio.sleep(0.05)
            raise BadInput("the pool is gone")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(source)
            raise
        raise AssertionError

    with pytest.raises(BadInput, match="the pool is gone"):
        tuned(GRID, judge, in_flight=3)
    assert len(cancelled) == 2


def test_without_declarations_there_is_nothing_to_tune() -> None:
    with pytest.raises(BadInput, match="no tunables are declared"):
        tuned("A = 1\n", Bench(lambda p: 1.0))


REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=0)


def get_inputs():
    return [torch.randn(512, 512)]


def get_init_inputs():
    return []
"""
KERNEL = '''"""Running sum down the columns, in strips."""

import torch

from kernelpro import runtime

STRIP = 8  # tune: 8, 64, 512
UNROLL = 1  # tune: 1, 4, 3
# tune-if: STRIP > 8 or UNROLL < 4

lib = runtime.cpp(r"""
static_assert(STRIP % UNROLL == 0, "strips are made of whole steps");

extern "C" void column_cumsum(const float* x, float* y, long long rows, long long cols) {
#pragma omp parallel for schedule(static)
    for (long long first = 0; first < cols; first += STRIP) {
        double sums[STRIP] = {};
        for (long long row = 0; row < rows; ++row) {
            const float* in = x + row * cols + first;
            float* out = y + row * cols + first;
            for (long long i = 0; i < STRIP; i += UNROLL)
                for (long long u = i; u < i + UNROLL; ++u) {
                    sums[u] += in[u];
                    out[u] = float(sums[u]);
                }
        }
    }
}
""", flags=[f"-DSTRIP={STRIP}", f"-DUNROLL={UNROLL}"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.column_cumsum(x, y, x.shape[0], x.shape[1])
        return y
'''


def test_a_real_kernel_is_tuned_under_the_real_judge() -> None:
    task = Task(REFERENCE, "column_cumsum")

    async def judge(source: str, options: TuneOptions) -> Verdict:
        settings = Options(effort=options.effort, baselines=("eager_fp32",), give_up_ms=options.give_up_ms)
        result = await asyncio.wrap_future(pool.submit(Job("tune", "judge", task, Candidate(source), "cpu", settings)))
        assert result.verdict, result.error
        return result.verdict

    with Pool() as pool:
        found = asyncio.run(tune(KERNEL, judge, budget=8, in_flight=2, rng=random.Random(0)))
    quick = [trial for trial in found.log if trial.effort == "quick"]
    assert len(quick) == 8
    for trial in quick:
        builds = int(trial.point["STRIP"]) % int(trial.point["UNROLL"]) == 0
        assert trial.status is (Status.PASSED if builds else Status.BUILD_FAILED), trial
        assert builds or "whole steps" in trial.reason
    normal = [trial for trial in found.log if trial.effort == "normal"]
    assert normal[0].point == {"STRIP": 8, "UNROLL": 1} and all(trial.status is Status.PASSED for trial in normal)
    assert found.ms and found.point in [trial.point for trial in normal]
    assert found.improved == (found.point != normal[0].point)
    assert re.search(rf"^STRIP = {found.point['STRIP']}  # tuned over 8, 64, 512$", found.source, re.MULTILINE)
    assert parse(found.source).names == ()
