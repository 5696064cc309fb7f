"""The tuner: searches the tunables of a candidate without an LLM.

 1. The declared default is judged first.
 2. Where the whole grid has no more points than the budget, all of it is judged: always the point that is the fewest
    steps from the best one so far.
 3. Else local search from the default. Neighbours of the centre, one step in one tunable, are judged, and the centre
    moves to the best of them that beats it. Where none does, pairs of steps in two tunables are judged in random order
    until one beats it. Where none does either, the search begins again at a random point, while budget is left.
 4. The default and the best three are judged again with normal effort. The fastest of those whose interval lies clear
    of the default's wins; where there is none the default stays.

Speeds are compared by their ratio to one baseline, timed in the same rounds, so that a machine that slows down meanwhile
does not mislead. A point beyond `_HOPELESS` times the best time is given up by the judge after a few rounds. No point is
judged twice with the same effort, whether it worked or failed. A value of a tunable that has failed twice and never
worked is avoided: points that have it come when no other is left.

Results are taken in the order of asking, whichever comes first, so that the search depends on the outcomes, on
`rng` and on how many are in flight, never on timing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from kernelpro.authors import tunables
from kernelpro.authors.constraints import Value
from kernelpro.authors.tunables import Declared, Point
from kernelpro.records import BadInput, Interval, Status, Verdict

_HOPELESS = 1.3
"""Times the best: more than noise and a lucky neighbour can make up, and few points of a grid are within it."""
_FINALISTS = 3
_MOST_LISTED = 20_000
"""Larger grids are drawn from, never listed: walking this many points takes a tenth of a second."""
_DRAWS = 2_000
"""Tries to draw an allowed, untried point before the space counts as exhausted."""
_STUBBORN = 2
"""Failures after which a value that never worked is avoided."""


@dataclass(frozen=True)
class TuneOptions:
    """What the tuner wants of one judgement; everything else is the caller's."""

    effort: Literal["quick", "normal"]
    give_up_ms: float
    """See Options.give_up_ms."""


Judge = Callable[[str, TuneOptions], Awaitable[Verdict]]


@dataclass(frozen=True)
class Trial:
    """One judged point."""

    point: dict[str, Value]
    effort: Literal["quick", "normal"]
    status: Status
    reason: str
    ms: float | None = None
    speedup: Interval | None = None
    """Against the one baseline that all trials are held against."""

    @property
    def speed(self) -> float:
        return self.speedup.value if self.speedup else 0.0


@dataclass(frozen=True)
class Tuned:
    source: str
    """The winner with plain constants."""
    point: dict[str, Value]
    ms: float | None
    """Of the winner; None where no point passed, and the default is given back."""
    improved: bool
    """Whether the winner is a point other than the default."""
    why: str
    log: tuple[Trial, ...]
    """In the order of asking."""


async def tune(source: str, judge: Judge, budget: int, in_flight: int, rng: random.Random) -> Tuned:
    """The best point of the tunables that `source` declares.

    At most `budget` points are judged quickly, then at most four normally; `in_flight` at once. Raises BadInput where
    nothing usable is declared; what `judge` raises passes through, and no judgement is left running.
    """
    declared = tunables.parse(source)
    if not declared.names:
        raise BadInput("no tunables are declared: write `# tune: 64, 128` behind a module-level constant")
    search = _Search(source, declared, judge, max(1, budget), max(1, in_flight), rng)
    await search.explore()
    return await search.conclude()


class _Search:
    """What is known so far, and the moves that follow from it."""

    def __init__(self, source: str, declared: Declared, judge: Judge, budget: int, in_flight: int, rng: random.Random):
        self._source, self._declared, self._judge, self._rng = source, declared, judge, rng
        self._left, self._in_flight = budget, in_flight
        self._log: list[Trial] = []
        self._asked: set[tuple[Value, ...]] = set()
        self._quick: dict[tuple[Value, ...], Trial] = {}
        self._failed: Counter[tuple[str, Value]] = Counter()
        self._worked: set[tuple[str, Value]] = set()
        self._against = ""
        self._grid = list(declared.points()) if declared.size <= _MOST_LISTED else None

    # --- exploring -----------------------------------------------------------------------------------

    async def explore(self) -> None:
        fits = self._grid is not None and len(self._grid) <= self._left
        await self._try([self._declared.default])
        if self._quick[self._key(self._declared.default)].status is Status.NOT_SCORABLE:
            return
        if fits:
            await self._try(self._nearest_first())
            return
        centre: dict[str, Value] | None = self._declared.default
        while centre is not None and self._left > 0:
            await self._climb(centre)
            centre = self._anywhere()
            if centre is not None:
                await self._try([centre])

    def _nearest_first(self) -> Iterator[dict[str, Value]]:
        """All untried points of the grid; `best` is looked up anew for each."""
        while remaining := self._untried():
            best = self._best()
            yield min(remaining, key=lambda point: self._declared.distance(point, best))

    def _untried(self) -> list[dict[str, Value]]:
        """Of a listed grid; those with an avoided value only when there are no others."""
        fresh = [point for point in self._grid or () if self._key(point) not in self._asked]
        return [point for point in fresh if not self._avoided(point)] or fresh

    async def _climb(self, centre: dict[str, Value]) -> None:
        """Best-improvement moves from `centre` until nothing one or two steps away is better."""
        while self._left > 0:
            near = list(self._declared.neighbours(centre))
            await self._try(point for point in near if not self._avoided(point))
            better = self._better(near, centre)
            if not better:
                near = list(self._declared.neighbours(centre, tunables=2))
                self._rng.shuffle(near)
                await self._try(self._until_better(near, centre))
                better = self._better(near, centre)
            if not better:
                return
            centre = max(better, key=self._speed)

    def _until_better(self, points: list[dict[str, Value]], centre: Point) -> Iterator[dict[str, Value]]:
        for point in points:
            if self._better(points, centre):
                return
            if not self._avoided(point):
                yield point

    def _better(self, points: list[dict[str, Value]], centre: Point) -> list[dict[str, Value]]:
        return [point for point in points if self._speed(point) > self._speed(centre)]

    def _anywhere(self) -> dict[str, Value] | None:
        """A random point that has not been tried."""
        if self._grid is not None:
            fresh = self._untried()
            return self._rng.choice(fresh) if fresh else None
        last = None
        for _ in range(_DRAWS):
            point = self._declared.sample(self._rng)
            if self._key(point) in self._asked or not self._declared.allows(point):
                continue
            if not self._avoided(point):
                return point
            last = point
        return last

    # --- judging -------------------------------------------------------------------------------------

    async def _try(self, points: Iterable[dict[str, Value]]) -> None:
        """Judge quickly those that are new, while budget is left. `points` is drawn from as late as can be."""

        def fresh() -> Iterator[dict[str, Value]]:
            for point in points:
                if self._left <= 0:
                    return
                if self._key(point) not in self._asked:
                    self._asked.add(self._key(point))
                    self._left -= 1
                    yield point

        await self._judge_all(fresh(), "quick", self._learn)

    def _learn(self, trial: Trial) -> None:
        self._quick[self._key(trial.point)] = trial
        if trial.status is Status.PASSED:
            self._worked.update(trial.point.items())
        else:
            self._failed.update(trial.point.items())

    async def _judge_all(
        self, points: Iterator[dict[str, Value]], effort: Literal["quick", "normal"], commit: Callable[[Trial], None]
    ) -> None:
        """So many at once; committed in the order of asking."""
        pending: deque[tuple[dict[str, Value], asyncio.Future[Verdict]]] = deque()
        try:
            while True:
                while len(pending) < self._in_flight and (point := next(points, None)) is not None:
                    options = TuneOptions(effort, self._limit() if effort == "quick" else 0.0)
                    asked = self._judge(tunables.with_point(self._source, point), options)
                    pending.append((point, asyncio.ensure_future(asked)))
                if not pending:
                    return
                point, answer = pending[0]
                trial = self._trial(point, effort, await answer)
                pending.popleft()
                self._log.append(trial)
                commit(trial)
        finally:
            for _, answer in pending:
                answer.cancel()
            await asyncio.gather(*(answer for _, answer in pending), return_exceptions=True)

    def _trial(self, point: dict[str, Value], effort: Literal["quick", "normal"], verdict: Verdict) -> Trial:
        if verdict.status is not Status.PASSED:
            return Trial(point, effort, verdict.status, verdict.reason)
        if self._against not in verdict.speedup:  # the first to pass says which; workers may differ in what they prefer
            against = verdict.measurement.get("against")
            self._against = against if against in verdict.speedup else min(verdict.speedup)
        return Trial(
            point, effort, verdict.status, verdict.reason, verdict.times["candidate"].value, verdict.speedup[self._against]
        )

    def _limit(self) -> float:
        return _HOPELESS * min((trial.ms for trial in self._quick.values() if trial.ms), default=0.0)

    # --- knowing -------------------------------------------------------------------------------------

    def _key(self, point: Point) -> tuple[Value, ...]:
        return tuple(point[name] for name in self._declared.names)

    def _speed(self, point: Point) -> float:
        """0 where it failed or is not known."""
        trial = self._quick.get(self._key(point))
        return trial.speed if trial else 0.0

    def _best(self) -> dict[str, Value]:
        """The default where nothing has worked yet."""
        first = self._quick[self._key(self._declared.default)]
        return max([first, *self._quick.values()], key=lambda trial: trial.speed).point

    def _avoided(self, point: Point) -> bool:
        return any(self._failed[item] >= _STUBBORN and item not in self._worked for item in point.items())

    # --- concluding ----------------------------------------------------------------------------------

    async def conclude(self) -> Tuned:
        """Judge the finalists with normal effort and name the winner."""
        default = self._quick[self._key(self._declared.default)]
        ranked = sorted((t for t in self._quick.values() if t.status is Status.PASSED), key=lambda t: -t.speed)
        if not ranked:
            return self._tuned(default, f"no point passed; the default: {default.reason}")
        if ranked == [default]:
            return self._tuned(default, "no other point passed")
        finalists = ([default] if default in ranked else []) + [t for t in ranked[:_FINALISTS] if t is not default]
        confirmed: list[Trial] = []
        await self._judge_all(iter([t.point for t in finalists]), "normal", confirmed.append)
        passed = [trial for trial in confirmed if trial.status is Status.PASSED]
        default = next((trial for trial in confirmed if trial.point == default.point), default)
        others = [trial for trial in passed if trial is not default]
        if default.status is Status.PASSED:
            others = [trial for trial in others if _clearly_faster(trial, default)]
        if not others:
            return self._tuned(default, "no point is faster than the default by more than the interval")
        winner = max(others, key=lambda trial: trial.speed)
        gain = f"{winner.speed / default.speed:.2f}x as fast as the default" if default.speed else "the default does not pass"
        return self._tuned(winner, gain)

    def _tuned(self, trial: Trial, why: str) -> Tuned:
        improved = trial.point != self._declared.default
        return Tuned(tunables.frozen(self._source, trial.point), trial.point, trial.ms, improved, why, tuple(self._log))


def _clearly_faster(trial: Trial, than: Trial) -> bool:
    return bool(trial.speedup and than.speedup and trial.speedup.low > than.speedup.high)
