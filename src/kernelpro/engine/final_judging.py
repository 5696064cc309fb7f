"""Final judging: the best few candidates are judged again, at full length and against all baselines.

Of the candidates that pass, the best by the run's objective (objective.py) wins. If it does not clearly beat
the fastest baseline, the compiler's own code is judged as well, so that a run never returns a kernel slower
than that. Code that lost a race against it is judged only if it seems slower than that baseline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kernelpro.engine import objective
from kernelpro.engine.shape_dispatch import choose_by_shape
from kernelpro.records import ComparableTimes, NoVerdict, Outcome, RunConfig, Status, Step, Verdict

_AS_FAST = 0.99
"""Of two kernels that differ by less, the one that won the race counts as the faster one."""


@dataclass
class FinalJudging:
    """Judges the finalists of a run and decides its outcome."""

    reason: str
    """Why the search ended."""
    judge: Callable[[Step], Awaitable[Verdict]]
    """Judges a step at full length."""
    config: RunConfig
    times: ComparableTimes
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    """Final verdicts by step."""

    async def decide(self, leaders: list[Step], seeds: list[Step]) -> Outcome:
        """The outcome of the run. `leaders`: candidates that passed and may win. `seeds`: working code of
        compilers."""
        if not leaders and not seeds:
            return Outcome(self.reason, notes=("no candidate passed",))
        await self._judge(leaders)
        best = self._best()
        unjudged = [step for step in seeds if step.number not in self.verdicts]
        if best is None or not self._needs_no_other(self.verdicts[best], unjudged):
            await self._judge(unjudged)
            best = self._best()
        notes = tuple(
            f"step {number} failed the final judging: {verdict.status}: {verdict.reason}"
            for number, verdict in self.verdicts.items()
            if verdict.status is not Status.PASSED
        )
        if best is None:
            return Outcome(self.reason, finalists=tuple(self.verdicts), notes=notes)
        authors = {step.number: step.author for step in seeds}
        if best in authors:
            better = "faster" if self.config.objective == "speed" else "better by this objective"
            own_code = f"{authors[best]}'s own code (step {best})"
            notes += (f"the winner is {own_code}: no other candidate is {better}",)
        if self.verdicts[best].faster == "no":
            notes += (f"the winner is {_describe(self.verdicts[best])}: keep that baseline",)
        if self.config.objective == "speed":
            notes += self._overtaken(leaders, best)
        notes += objective.notes(self.config, self.times, self._passed(), best)
        by_shape, verdict = choose_by_shape(self.times, self._passed(), best)
        return Outcome(self.reason, best, verdict, tuple(self.verdicts), notes, by_shape=by_shape)

    def _needs_no_other(self, verdict: Verdict, seeds: list[Step]) -> bool:
        """Whether no code of compilers (`seeds`) has to be judged beside the best candidate."""
        if verdict.faster != "unclear" or self.config.objective != "speed":
            return verdict.faster == "yes"
        lost_race = all(step.no_verdict is NoVerdict.LOST_RACE for step in seeds)
        return lost_race and min(ratio.value for ratio in verdict.speedup.values()) >= _AS_FAST

    def _overtaken(self, leaders: list[Step], best: int) -> tuple[str, ...]:
        """Notes on the leaders, best first, that were ahead of the winner in the search."""
        numbers = [step.number for step in leaders]
        ahead = leaders[: numbers.index(best)] if best in numbers else []
        return tuple(
            f"step {step.number} led step {best} in the search, where it was {_describe(step.verdict)}; "
            f"in the final judging it was {_describe(self.verdicts[step.number])}"
            for step in ahead
            if step.verdict and self.verdicts[step.number].status is Status.PASSED
        )

    async def _judge(self, steps: list[Step]) -> None:
        """Judge steps. All jobs are submitted at once, because a round trip to a remote pool may be slow."""
        verdicts = await asyncio.gather(*map(self.judge, steps))
        self.verdicts |= {step.number: verdict for step, verdict in zip(steps, verdicts, strict=True)}

    def _passed(self) -> dict[int, Verdict]:
        return {n: verdict for n, verdict in self.verdicts.items() if verdict.status is Status.PASSED}

    def _best(self) -> int | None:
        return objective.best(self.config, self.times, self._passed())


def _describe(verdict: Verdict) -> str:
    """What a passed verdict says about the speed, as in `faster than compile (1.8x)`."""
    return verdict.reason.removeprefix("correct; ")
