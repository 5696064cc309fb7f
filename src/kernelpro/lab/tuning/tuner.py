"""The tuner: searches the tunables of a candidate without an LLM.

 1. The declared default has been judged, and passed. If it is so close to the floor that even a kernel at the
    floor would lie within its confidence interval, the default stays.
 2. If the grid has no more points than the budget, all points race against the default, in one process
    (race.py). The next point is always the one with the fewest steps from the best point so far.
 3. Otherwise the tuner runs a local search from the default. It races all neighbours (one step in one
    tunable) and moves to the best one that beats the centre. If none does, it races pairs of steps in two
    tunables, in random order, until one beats the centre. If none does either, the search restarts at a
    random point while budget is left.
 4. The fastest point whose speed-up lies above the default's interval is judged, as the default was. It wins
    if its own interval lies above the default's. Otherwise the default stays.

Races need neither verification nor baselines, and their time is limited. So tuning costs the races, plus one
judgement if a point wins its race.

Speeds are compared by their ratio to the default, which is timed in the same process at the same time, so
that a machine that slows down does not distort them. A point gets no further rung if it takes more than
`_GIVE_UP_RATIO` times the best time. No point races twice, whether it ran or failed. If a value of a tunable
failed twice and never worked, points with that value come last.

The next few points are announced before they race, so that their builds overlap with measurements.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from kernelpro.lab.tuning import tunables
from kernelpro.lab.tuning.constraints import Value
from kernelpro.lab.tuning.race import RacedTime
from kernelpro.lab.tuning.tunables import SearchSpace, TunableValues
from kernelpro.records import BadInput, Interval, Status, Verdict

_GIVE_UP_RATIO = 1.3
"""A point that takes more than this multiple of the best time gets no further rung. Neither noise nor one
more step makes up for 1.3x, and few points of a grid are closer to the best."""
_MAX_LISTED_POINTS = 20_000
"""Larger grids are sampled, not listed. Listing this many points takes 0.1 s."""
_MAX_DRAWS = 2_000
"""Attempts to sample an allowed, untried point before the space counts as exhausted."""
_MAX_FAILURES = 2
"""Number of failures after which the tuner avoids a value that never worked."""


class PointJudge(Protocol):
    """Builds, races and judges variants of one candidate."""

    def announce(self, source: str) -> None:
        """Start building a variant that will be needed soon."""

    def race(self, source: str, give_up_ratio: float) -> RacedTime:
        """Time a variant against the default, see `Race.time`."""

    def has_time(self) -> bool:
        """Whether there is time for another race."""

    def judge(self, source: str) -> Verdict:
        """Return the verdict on a variant."""


@dataclass(frozen=True)
class JudgedPoint:
    """A point that was judged or raced."""

    point: TunableValues
    effort: Literal["quick", "normal"]
    """quick: timed in a race; normal: judged."""
    status: Status
    reason: str
    ms: float | None = None
    """Time of a call; None if the point failed."""
    speedup: Interval | None = None
    """Against the one baseline that all points are compared with; None if the point failed."""
    verdict: Verdict | None = None
    """The verdict, if the point was judged."""

    @property
    def speed(self) -> float:
        """Speedup over the baseline; 0 if the point failed."""
        return self.speedup.value if self.speedup else 0.0


@dataclass(frozen=True)
class TuningResult:
    """The outcome of a search."""

    source: str
    """The winner's source, with plain constants."""
    winner: JudgedPoint
    improved: bool
    """Whether the winner is a point other than the default."""
    reason: str
    """Why this point won."""
    history: tuple[JudgedPoint, ...]
    """All raced and judged points, in order."""


def tune(
    source: str,
    default_verdict: Verdict,
    judge: PointJudge,
    budget: int,
    rng: random.Random,
    lookahead: int = 1,
) -> TuningResult:
    """Return the best point of the tunables that `source` declares.

    `default_verdict` is the verdict on `source` itself. At most `budget` points race, then the best one is
    judged. `lookahead` points are announced before the first of them races. Raises BadInput if `source`
    declares no usable tunables; exceptions of `judge` propagate."""
    space = tunables.parse(source)
    if not space.names:
        raise BadInput("no tunables are declared: write `# tune: 64, 128` after a module-level constant")
    search = _Search(source, space, default_verdict, judge, budget, rng, lookahead)
    if search.default_is_at_floor():
        return search.conclude("the default is at the floor")
    search.explore()
    return search.conclude("no point is faster than the default by more than the interval")


class _Search:
    """The state of one search: raced points, remaining budget, and values that failed."""

    def __init__(
        self,
        source: str,
        space: SearchSpace,
        default_verdict: Verdict,
        judge: PointJudge,
        budget: int,
        rng: random.Random,
        lookahead: int,
    ):
        self._source, self._space, self._judge, self._rng = source, space, judge, rng
        self._budget_left, self._lookahead = budget, max(1, lookahead)
        self._history: list[JudgedPoint] = []
        self._failure_counts: Counter[tuple[str, Value]] = Counter()
        self._working_values: set[tuple[str, Value]] = set()
        baseline = default_verdict.measurement.against
        self._baseline = baseline if baseline in default_verdict.speedup else min(default_verdict.speedup)
        speedup, ms = default_verdict.speedup[self._baseline], default_verdict.times["candidate"].value
        self._default = JudgedPoint(
            space.default, "normal", Status.PASSED, default_verdict.reason, ms, speedup, default_verdict
        )
        self._speedup_to_beat = speedup.high
        """A winner's interval must lie above this."""
        self._results = {self._values(space.default): self._default}
        self._scheduled = set(self._results)
        self._grid = list(space.points()) if space.size <= _MAX_LISTED_POINTS else None

    def default_is_at_floor(self) -> bool:
        """Whether even a kernel at the floor would not be measurably faster than the default."""
        default, verdict = self._default, self._default.verdict
        floor = verdict.floor_ms if verdict else None
        return bool(floor and default.ms and default.speed * default.ms / floor <= self._speedup_to_beat)

    # --- exploring -----------------------------------------------------------------------------------

    def explore(self) -> None:
        """Race the whole grid if the budget allows it, else search locally from the default and random
        points."""
        if self._grid is not None and len(self._grid) <= self._budget_left + 1:
            self._race_points(self._nearest_first())
            return
        centre: TunableValues | None = self._space.default
        while centre is not None and self._budget_left > 0:
            self._local_search(centre)
            centre = self._random_untried_point()
            if centre is not None:
                self._race_points([centre])

    def _nearest_first(self) -> Iterator[TunableValues]:
        """Yield all untried points, each time the one closest to the best point so far."""
        while remaining := self._untried():
            best = self._best()
            yield min(remaining, key=lambda point: self._space.distance(point, best))

    def _untried(self) -> list[TunableValues]:
        """Return the untried points of a listed grid; those with avoided values only if no others are
        left."""
        untried = [point for point in self._grid or () if self._values(point) not in self._scheduled]
        return [point for point in untried if not self._is_avoided(point)] or untried

    def _local_search(self, centre: TunableValues) -> None:
        """Make best-improvement moves from `centre` until no point one or two steps away is better."""
        while self._budget_left > 0:
            neighbours = list(self._space.neighbours(centre))
            self._race_points(point for point in neighbours if not self._is_avoided(point))
            better = self._better(neighbours, centre)
            if not better:
                neighbours = list(self._space.neighbours(centre, tunables=2))
                self._rng.shuffle(neighbours)
                self._race_points(self._until_better(neighbours, centre))
                better = self._better(neighbours, centre)
            if not better:
                return
            centre = max(better, key=self._speed)

    def _until_better(self, points: list[TunableValues], centre: TunableValues) -> Iterator[TunableValues]:
        for point in points:
            if self._better(points, centre):
                return
            if not self._is_avoided(point):
                yield point

    def _better(self, points: list[TunableValues], centre: TunableValues) -> list[TunableValues]:
        return [point for point in points if self._speed(point) > self._speed(centre)]

    def _random_untried_point(self) -> TunableValues | None:
        """Return a random untried point, preferably without avoided values; None if there is none."""
        if self._grid is not None:
            untried = self._untried()
            return self._rng.choice(untried) if untried else None
        fallback = None
        for _ in range(_MAX_DRAWS):
            point = self._space.sample(self._rng)
            if self._values(point) in self._scheduled or not self._space.allows(point):
                continue
            if not self._is_avoided(point):
                return point
            fallback = point
        return fallback

    # --- judging -------------------------------------------------------------------------------------

    def _race_points(self, points: Iterable[TunableValues]) -> None:
        """Race new points while budget and time are left. Points are drawn lazily, so that results of earlier
        points can affect which ones follow."""

        def unscheduled() -> Iterator[TunableValues]:
            for point in points:
                if self._budget_left <= 0 or not self._judge.has_time():
                    self._budget_left = 0
                    return
                if self._values(point) not in self._scheduled:
                    self._scheduled.add(self._values(point))
                    self._budget_left -= 1
                    yield point

        for result in self._raced(unscheduled()):
            self._results[self._values(result.point)] = result
            if result.speedup:
                self._working_values.update(result.point.items())
            else:
                self._failure_counts.update(result.point.items())

    def _raced(self, points: Iterator[TunableValues]) -> Iterator[JudgedPoint]:
        """Race points one at a time, with up to `lookahead` points announced in advance."""
        announced: deque[tuple[TunableValues, str]] = deque()
        while True:
            while len(announced) < self._lookahead and (point := next(points, None)) is not None:
                announced.append((point, tunables.apply_point(self._source, point)))
                self._judge.announce(announced[-1][1])
            if not announced:
                return
            point, variant = announced.popleft()
            raced = self._judge.race(variant, self._give_up_ratio())
            result = JudgedPoint(point, "quick", raced.status, raced.reason)
            if raced.status is Status.PASSED:
                assert self._default.ms
                speed = self._default.speed / raced.ratio
                ms = self._default.ms * raced.ratio
                result = replace(result, ms=ms, speedup=Interval(speed, speed, speed))
            self._history.append(result)
            yield result

    def _judged(self, point: TunableValues) -> JudgedPoint:
        """Judge a point."""
        verdict = self._judge.judge(tunables.apply_point(self._source, point))
        result = JudgedPoint(point, "normal", verdict.status, verdict.reason, verdict=verdict)
        if verdict.status is Status.PASSED:
            ms, speedup = verdict.times["candidate"].value, verdict.speedup.get(self._baseline)
            result = replace(result, ms=ms, speedup=speedup)
        self._history.append(result)
        return result

    def _give_up_ratio(self) -> float:
        assert self._default.ms
        return _GIVE_UP_RATIO * min(r.ms for r in self._results.values() if r.ms) / self._default.ms

    # --- results -------------------------------------------------------------------------------------

    def _values(self, point: TunableValues) -> tuple[Value, ...]:
        return tuple(point[name] for name in self._space.names)

    def _speed(self, point: TunableValues) -> float:
        """Return the speed of a point; 0 if it failed or was not tried."""
        result = self._results.get(self._values(point))
        return result.speed if result else 0.0

    def _best(self) -> TunableValues:
        return max(self._results.values(), key=lambda result: result.speed).point

    def _is_avoided(self, point: TunableValues) -> bool:
        return any(
            self._failure_counts[item] >= _MAX_FAILURES and item not in self._working_values
            for item in point.items()
        )

    # --- concluding ----------------------------------------------------------------------------------

    def conclude(self, default_reason: str) -> TuningResult:
        """Judge the best point and return it, or the default for `default_reason`."""
        contenders = [result for result in self._results.values() if result.speed > self._speedup_to_beat]
        if contenders:
            winner = self._judged(max(contenders, key=lambda result: result.speed).point)
            if winner.speedup and winner.speedup.low > self._speedup_to_beat:
                gain = winner.speed / self._default.speed
                return self._result(winner, f"{gain:.2f}x as fast as the default")
        return self._result(self._default, default_reason)

    def _result(self, result: JudgedPoint, reason: str) -> TuningResult:
        return TuningResult(
            tunables.freeze(self._source, result.point),
            result,
            result is not self._default,
            reason,
            tuple(self._history),
        )
