"""The tuner: searches the tunables of a candidate without an LLM.

 1. The declared default has been judged, and passed. Where it is so near the floor that not even a kernel at the floor would be
    clear of it, it stays.
 2. Where the whole grid has no more points than the budget, all of it is judged quickly: always the point that is the fewest
    steps from the best one so far.
 3. Else local search from the default. Neighbours of the centre, one step in one tunable, are judged, and the centre
    moves to the best of them that beats it. Where none does, pairs of steps in two tunables are judged in random order
    until one beats it. Where none does either, the search begins again at a random point, while budget is left.
 4. The best three that look faster than the default's interval allows are judged again with normal effort. The fastest of those
    whose own interval lies clear of it wins; where there is none the default stays.

Speeds are compared by their ratio to one baseline, timed in the same rounds, so that a machine that slows down meanwhile
does not mislead. A point beyond `_HOPELESS` times the best time is given up by the judge after a few rounds. No point is
judged twice with the same effort, whether it worked or failed. A value of a tunable that has failed twice and never
worked is avoided: points that have it come when no other is left.

The next few points are announced before they are judged, so that they are built meanwhile.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from kernelpro.lab.tuning import tunables
from kernelpro.lab.tuning.constraints import Value
from kernelpro.lab.tuning.tunables import Declared, Point
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


class Judge(Protocol):
    def announce(self, source: str) -> None:
        """It will be judged soon."""

    def judge(self, source: str, options: TuneOptions) -> Verdict: ...


@dataclass(frozen=True)
class Trial:
    """One judged point."""

    point: dict[str, Value]
    effort: Literal["quick", "normal"]
    verdict: Verdict
    speedup: Interval | None = None
    """Against the one baseline that all trials are held against; None where it failed."""

    @property
    def ms(self) -> float | None:
        return self.verdict.times["candidate"].value if self.speedup else None

    @property
    def speed(self) -> float:
        return self.speedup.value if self.speedup else 0.0


@dataclass(frozen=True)
class Tuned:
    source: str
    """The winner with plain constants."""
    winner: Trial
    improved: bool
    """Whether the winner is a point other than the default."""
    why: str
    log: tuple[Trial, ...]
    """In the order of judging."""


def tune(
    source: str, passed: Verdict, judge: Judge, budget: int, rng: random.Random, ahead: int = 1
) -> Tuned:
    """The best point of the tunables that `source` declares; `passed` is the verdict on it as it is.

    At most `budget` points are judged quickly, then at most three normally; `ahead` are announced before the first of them is
    judged. Raises BadInput where nothing usable is declared; what `judge` raises passes through.
    """
    declared = tunables.parse(source)
    if not declared.names:
        raise BadInput("no tunables are declared: write `# tune: 64, 128` behind a module-level constant")
    search = _Search(source, declared, passed, judge, budget, rng, ahead)
    if search.is_done():
        return search.conclude("the default is at the floor")
    search.explore()
    return search.conclude("no point is faster than the default by more than the interval")


class _Search:
    """What is known so far, and the moves that follow from it."""

    def __init__(
        self,
        source: str,
        declared: Declared,
        passed: Verdict,
        judge: Judge,
        budget: int,
        rng: random.Random,
        ahead: int,
    ):
        self._source, self._declared, self._judge, self._rng = source, declared, judge, rng
        self._left, self._ahead = budget, max(1, ahead)
        self._log: list[Trial] = []
        self._failed: Counter[tuple[str, Value]] = Counter()
        self._worked: set[tuple[str, Value]] = set()
        against = passed.measurement.get("against")
        self._against = against if against in passed.speedup else min(passed.speedup)
        self._default = Trial(declared.default, "normal", passed, passed.speedup[self._against])
        self._bar = passed.speedup[self._against].high
        """Whoever is to win must be clear of this."""
        self._known = {self._key(declared.default): self._default}
        self._asked = set(self._known)
        self._grid = list(declared.points()) if declared.size <= _MOST_LISTED else None

    def is_done(self) -> bool:
        floor = self._default.verdict.floor_ms
        return bool(
            floor and self._default.ms and self._default.speed * self._default.ms / floor <= self._bar
        )

    # --- exploring -----------------------------------------------------------------------------------

    def explore(self) -> None:
        if self._grid is not None and len(self._grid) <= self._left + 1:
            self._try(self._nearest_first())
            return
        centre: dict[str, Value] | None = self._declared.default
        while centre is not None and self._left > 0:
            self._climb(centre)
            centre = self._anywhere()
            if centre is not None:
                self._try([centre])

    def _nearest_first(self) -> Iterator[dict[str, Value]]:
        """All untried points of the grid; `best` is looked up anew for each."""
        while remaining := self._untried():
            best = self._best()
            yield min(remaining, key=lambda point: self._declared.distance(point, best))

    def _untried(self) -> list[dict[str, Value]]:
        """Of a listed grid; those with an avoided value only when there are no others."""
        fresh = [point for point in self._grid or () if self._key(point) not in self._asked]
        return [point for point in fresh if not self._avoided(point)] or fresh

    def _climb(self, centre: dict[str, Value]) -> None:
        """Best-improvement moves from `centre` until nothing one or two steps away is better."""
        while self._left > 0:
            near = list(self._declared.neighbours(centre))
            self._try(point for point in near if not self._avoided(point))
            better = self._better(near, centre)
            if not better:
                near = list(self._declared.neighbours(centre, tunables=2))
                self._rng.shuffle(near)
                self._try(self._until_better(near, centre))
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

    def _try(self, points: Iterable[dict[str, Value]]) -> None:
        """Judge quickly those that are new, while budget is left. `points` is drawn from as late as can be."""

        def fresh() -> Iterator[dict[str, Value]]:
            for point in points:
                if self._left <= 0:
                    return
                if self._key(point) not in self._asked:
                    self._asked.add(self._key(point))
                    self._left -= 1
                    yield point

        for trial in self._judged(fresh(), "quick"):
            self._known[self._key(trial.point)] = trial
            if trial.speedup:
                self._worked.update(trial.point.items())
            else:
                self._failed.update(trial.point.items())

    def _judged(
        self, points: Iterator[dict[str, Value]], effort: Literal["quick", "normal"]
    ) -> Iterator[Trial]:
        """One after the other, the next few announced."""
        waiting: deque[tuple[dict[str, Value], str]] = deque()
        while True:
            while len(waiting) < self._ahead and (point := next(points, None)) is not None:
                waiting.append((point, tunables.with_point(self._source, point)))
                self._judge.announce(waiting[-1][1])
            if not waiting:
                return
            point, text = waiting.popleft()
            limit = self._limit() if effort == "quick" else 0.0
            verdict = self._judge.judge(text, TuneOptions(effort, limit))
            trial = Trial(
                point,
                effort,
                verdict,
                verdict.speedup.get(self._against) if verdict.status is Status.PASSED else None,
            )
            self._log.append(trial)
            yield trial

    def _limit(self) -> float:
        return _HOPELESS * min(trial.ms for trial in self._known.values() if trial.ms)

    # --- knowing -------------------------------------------------------------------------------------

    def _key(self, point: Point) -> tuple[Value, ...]:
        return tuple(point[name] for name in self._declared.names)

    def _speed(self, point: Point) -> float:
        """0 where it failed or is not known."""
        trial = self._known.get(self._key(point))
        return trial.speed if trial else 0.0

    def _best(self) -> dict[str, Value]:
        return max(self._known.values(), key=lambda trial: trial.speed).point

    def _avoided(self, point: Point) -> bool:
        return any(self._failed[item] >= _STUBBORN and item not in self._worked for item in point.items())

    # --- concluding ----------------------------------------------------------------------------------

    def conclude(self, why_not: str) -> Tuned:
        """Judge the finalists with normal effort and name the winner; `why_not`: why the default, where it stays."""
        looked = [trial for trial in self._known.values() if trial.speed > self._bar]
        best = sorted(looked, key=lambda trial: -trial.speed)[:_FINALISTS]
        again = self._judged(iter([trial.point for trial in best]), "normal")
        held = [trial for trial in again if trial.speedup and trial.speedup.low > self._bar]
        if not held:
            return self._tuned(self._default, why_not)
        winner = max(held, key=lambda trial: trial.speed)
        return self._tuned(winner, f"{winner.speed / self._default.speed:.2f}x as fast as the default")

    def _tuned(self, trial: Trial, why: str) -> Tuned:
        return Tuned(
            tunables.frozen(self._source, trial.point),
            trial,
            trial is not self._default,
            why,
            tuple(self._log),
        )
