"""The tuner on landscapes with a known optimum, and on a real kernel under the real judge."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from kernelpro.lab.jobs import JobRunner
from kernelpro.lab.tuning.race import RacedTime
from kernelpro.lab.tuning.tunables import TunableValues, parse
from kernelpro.lab.tuning.tuner import TuningResult, tune
from kernelpro.records import BadInput, Candidate, Interval, Job, JudgeData, Options, Status, Task, Verdict

GRID = "A = 4  # tune: 1, 2, 4, 8, 16\nB = 2  # tune: 1, 2, 3\n"
LARGE = "".join(f"{name} = 3  # tune: 0, 1, 2, 3, 4, 5, 6, 7\n" for name in "ABCD")
Landscape = Callable[[TunableValues], float]
"""Milliseconds at a point; infinite where it does not build."""


class LandscapeJudge:
    """A judge over a landscape; it records which variants were announced and judged."""

    def __init__(self, landscape: Landscape, width: float = 0.01, floor_ms: float | None = None):
        self.landscape, self.width, self.floor_ms = landscape, width, floor_ms
        self.raced: list[tuple[dict[str, object], float]] = []
        self.judged: list[dict[str, object]] = []
        self.announced: list[str] = []
        self.default_ms, self.max_races = 0.0, 10_000
        self.max_pending = 0
        """Largest number of variants announced but not raced yet."""

    def announce(self, source: str) -> None:
        self.announced.append(source)
        self.max_pending = max(self.max_pending, len(self.announced) - len(self.raced))

    def race(self, source: str, give_up_ratio: float) -> RacedTime:
        assert source == self.announced[len(self.raced)]
        point = parse(source).default
        self.raced.append((dict(point), give_up_ratio))
        ms = self.landscape(point)
        if ms == float("inf"):
            return RacedTime(Status.BUILD_FAILED, "static assertion failed")
        return RacedTime(Status.PASSED, ratio=ms / self.default_ms)

    def has_time(self) -> bool:
        return len(self.raced) < self.max_races

    def judge(self, source: str) -> Verdict:
        self.judged.append(dict(parse(source).default))
        return self.verdict(source)

    def verdict(self, source: str) -> Verdict:
        ms = self.landscape(parse(source).default)
        if ms == float("inf"):
            return Verdict("candidate", Status.BUILD_FAILED, "static assertion failed")
        interval = Interval(ms, ms * (1 - self.width), ms * (1 + self.width))
        speedup = Interval(10 / ms, 10 / interval.high, 10 / interval.low)
        times, speedups = {"candidate": interval}, {"eager": speedup}
        return Verdict(
            "candidate",
            Status.PASSED,
            "correct",
            times=times,
            speedup=speedups,
            faster="yes",
            floor_ms=self.floor_ms,
        )

    def points(self, effort: str = "quick") -> list[dict[str, object]]:
        return [point for point, _ in self.raced] if effort == "quick" else self.judged


def run_tuner(
    source: str, judge: LandscapeJudge, budget: int = 100, ahead: int = 3, seed: int = 0
) -> TuningResult:
    judge.default_ms = judge.landscape(parse(source).default)
    return tune(source, judge.verdict(source), judge, budget, random.Random(seed), ahead)


def bowl(point: TunableValues) -> float:
    """Best at A = 5, B = 1, C = 6, D = 2."""
    optimum = {"A": 5, "B": 1, "C": 6, "D": 2}
    return 1.0 + sum((float(point[name]) - optimum[name]) ** 2 for name in optimum) / 10


def test_a_small_grid_is_searched_whole_and_outwards_from_the_best() -> None:
    judge = LandscapeJudge(lambda p: 1.0 + abs(float(p["A"]) - 16) + abs(float(p["B"]) - 3))
    result = run_tuner(GRID, judge, ahead=1)
    assert result.winner.point == {"A": 16, "B": 3} and result.winner.ms == 1.0 and result.improved
    assert result.source == "A = 16  # tuned over 1, 2, 4, 8, 16\nB = 3  # tuned over 1, 2, 3\n"
    points = [{"A": 4, "B": 2}, *judge.points()]
    assert len(points) == 15 and len({tuple(p.items()) for p in points}) == 15, (
        "the default is not judged again"
    )
    assert points.index({"A": 16, "B": 3}) < points.index({"A": 1, "B": 1})
    assert points.index({"A": 16, "B": 3}) <= 8


def test_a_large_grid_is_climbed_within_the_budget() -> None:
    judge = LandscapeJudge(bowl)
    result = run_tuner(LARGE, judge, budget=80)
    assert result.winner.point == {"A": 5, "B": 1, "C": 6, "D": 2} and result.winner.ms == 1.0
    assert len(judge.points()) <= 80 and len(judge.points("normal")) <= 3


def test_pairs_cross_what_single_steps_cannot() -> None:
    """A and B must change together: each alone is worse."""
    judge = LandscapeJudge(
        lambda p: (
            2.0
            + (p["A"] != p["B"])
            - 0.1 * float(p["A"]) * (p["A"] == p["B"])
            + float(p["C"])
            + float(p["D"])
        )
    )
    result = run_tuner(LARGE, judge, budget=400)
    assert result.winner.point == {"A": 7, "B": 7, "C": 0, "D": 0}


def test_restarts_leave_a_local_optimum() -> None:
    judge = LandscapeJudge(
        lambda p: 0.5 + float(p["A"]) if float(p["A"]) < 2 else 3.0 + abs(float(p["A"]) - 5) / 10
    )
    result = run_tuner("A = 5  # tune: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14\n", judge, budget=14)
    assert result.winner.point["A"] in (0, 1)


def test_the_same_outcomes_give_the_same_search_and_a_few_are_announced_ahead() -> None:
    judges = [LandscapeJudge(bowl), LandscapeJudge(bowl)]
    first, second = (run_tuner(LARGE, judge, budget=60, ahead=4, seed=7) for judge in judges)
    assert first == second and judges[0].raced == judges[1].raced and judges[0].max_pending == 4
    assert run_tuner(LARGE, LandscapeJudge(bowl), budget=60, ahead=4, seed=8).history != first.history


def test_hopeless_points_are_given_up_and_only_the_best_is_judged() -> None:
    judge = LandscapeJudge(bowl)
    run_tuner(LARGE, judge, ahead=1)
    default = best = bowl(parse(LARGE).default)
    for point, give_up_ratio in judge.raced:
        assert give_up_ratio == pytest.approx(1.3 * best / default)
        best = min(best, bowl(point))  # type: ignore[arg-type]
    assert len(judge.judged) == 1 and bowl(judge.judged[0]) == best  # type: ignore[arg-type]


def test_the_search_ends_with_its_time() -> None:
    judge = LandscapeJudge(bowl)
    judge.max_races = 5
    result = run_tuner(LARGE, judge, ahead=1)
    assert len(judge.raced) == 5 and result.improved, "the best of the points that raced still wins"


def test_a_winner_of_the_race_that_fails_its_judgement_loses() -> None:
    class Strict(LandscapeJudge):
        def judge(self, source: str) -> Verdict:
            self.judged.append(dict(parse(source).default))
            return Verdict("candidate", Status.WRONG, "wrong")

    judge = Strict(bowl)
    result = run_tuner(LARGE, judge)
    assert not result.improved and result.winner.verdict and len(judge.judged) == 1


def test_what_fails_is_not_tried_again_and_a_value_that_always_fails_comes_last() -> None:
    judge = LandscapeJudge(lambda p: float("inf") if float(p["A"]) >= 8 else 1.0 + float(p["B"]))
    result = run_tuner(GRID, judge, ahead=1)
    points = judge.points()
    assert len({tuple(p.items()) for p in points}) == len(points) == 14
    assert {p["A"] for p in points[-2:]} <= {8, 16} and result.winner.point["B"] == 1
    failed = [t for t in result.history if t.status is Status.BUILD_FAILED]
    assert len(failed) == 6 and all(t.ms is None and t.reason for t in failed)


def test_a_failing_value_is_avoided_in_a_large_grid() -> None:
    judge = LandscapeJudge(lambda p: float("inf") if p["D"] == 2 else bowl(p))
    result = run_tuner(LARGE, judge, budget=120)
    assert result.winner.point == {"A": 5, "B": 1, "C": 6, "D": 3} or result.winner.point == {
        "A": 5,
        "B": 1,
        "C": 6,
        "D": 1,
    }
    assert sum(p["D"] == 2 for p in judge.points()) <= 2 + 3


def test_the_default_stays_unless_another_is_faster_by_more_than_the_interval() -> None:
    result = run_tuner(GRID, LandscapeJudge(lambda p: 1.0 - 0.001 * float(p["A"]), width=0.02))
    assert (
        result.winner.point == {"A": 4, "B": 2}
        and not result.improved
        and "by more than the interval" in result.reason
    )
    assert result.source.startswith("A = 4  # tuned over")
    assert (
        run_tuner(GRID, LandscapeJudge(lambda p: 1.0 - 0.02 * float(p["A"]), width=0.02)).winner.point["A"]
        == 16
    )


@pytest.mark.parametrize("gain", [-1.0, 0.0005], ids=["slower", "within the default's interval"])
def test_what_does_not_look_faster_is_not_judged_at_length(gain: float) -> None:
    judge = LandscapeJudge(lambda p: 1.0 - gain * abs(float(p["A"]) - 4))
    assert not run_tuner(GRID, judge).improved and judge.points() and not judge.points("normal")


@pytest.mark.parametrize(("floor_ms", "searched"), [(0.995, False), (1.02, False), (0.98, True)])
def test_nothing_is_searched_where_not_even_the_floor_is_clear_of_the_default(
    floor_ms: float, searched: bool
) -> None:
    judge = LandscapeJudge(lambda p: 1.0, floor_ms=floor_ms)
    result = run_tuner(GRID, judge)
    assert not result.improved and bool(judge.raced) == searched
    assert searched or result.reason == "the default is at the floor"


def test_where_no_other_point_passes_the_default_stays() -> None:
    result = run_tuner(GRID, LandscapeJudge(lambda p: 1.0 if p == {"A": 4, "B": 2} else float("inf")))
    assert result.winner.point == {"A": 4, "B": 2} and not result.improved and len(result.history) == 14


def test_what_the_judge_raises_passes_through() -> None:
    class Gone(LandscapeJudge):
        def race(self, source: str, give_up_ratio: float) -> RacedTime:
            raise BadInput("a baseline has failed")

    with pytest.raises(BadInput, match="a baseline has failed"):
        run_tuner(GRID, Gone(lambda p: 1.0))


def test_without_declarations_there_is_nothing_to_tune() -> None:
    with pytest.raises(BadInput, match="no tunables are declared"):
        tune(
            "A = 1\n",
            LandscapeJudge(lambda p: 1.0).verdict(GRID),
            LandscapeJudge(lambda p: 1.0),
            4,
            random.Random(0),
        )


REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=0)


def get_inputs():
    return [torch.randn(128, 512)]


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


def test_a_real_kernel_is_tuned_by_the_worker_that_judges_it(worker: JobRunner) -> None:
    settings = Options(effort="quick", baselines=("eager_fp32",))
    job = Job(
        "one", "judge", Task(REFERENCE, "column_cumsum"), Candidate(KERNEL), "cpu", settings, tune_points=8
    )
    result = worker.run(job)
    assert result.verdict and result.verdict.status is Status.PASSED, result.error
    assert isinstance(result.data, JudgeData) and result.data.tuning
    tuning, source = result.data.tuning, result.data.tuned_source
    quick = [trial for trial in tuning.points if trial.effort == "quick"]
    assert len(quick) == 7, "all but the default, of the eight that the condition allows"
    for trial in quick:
        builds = int(trial.point["STRIP"]) % int(trial.point["UNROLL"]) == 0
        assert trial.status == ("passed" if builds else "build_failed"), trial
    if not source:
        assert tuning.point == {"STRIP": 8, "UNROLL": 1} and "by more than the interval" in tuning.reason
    else:
        assert any(trial.point == tuning.point for trial in tuning.points if trial.effort == "normal")
        assert re.search(rf"^STRIP = {tuning.point['STRIP']}  # tuned over 8, 64, 512$", source, re.MULTILINE)
        assert parse(source).names == ()


def test_a_candidate_whose_tunables_cannot_be_read_is_judged_as_it_is(worker: JobRunner) -> None:
    settings = Options(effort="quick", baselines=("eager_fp32",))
    broken = KERNEL.replace("# tune-if: STRIP > 8 or UNROLL < 4", "# tune-if: STRIP >")
    result = worker.run(
        Job(
            "one",
            "judge",
            Task(REFERENCE, "column_cumsum"),
            Candidate(broken),
            "cpu",
            settings,
            tune_points=8,
        )
    )
    assert result.verdict and result.verdict.status is Status.PASSED and isinstance(result.data, JudgeData)
    assert "`STRIP >` is not a valid Python expression" in result.data.tuning_error
