"""The final word of a run: the best few, if they may be the fastest, judged again at full length and against all baselines.

The fastest that holds up wins, or whoever the run's objective says (objective.py). Where it does not clearly beat the best
baseline, the compiler's own code is judged beside it, so that what a run hands over is never slower than what was there
before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kernelpro.engine import objective
from kernelpro.records import Outcome, RunConfig, Status, Step, Verdict


@dataclass
class FinalJudging:
    reason: str
    """Why the search ended."""
    judge: Callable[[Step], Awaitable[Verdict]]
    """At full length."""
    config: RunConfig
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    async def decide(self, leaders: list[Step], given: list[Step]) -> Outcome:
        """`leaders`: working candidates; `given`: those that compilers wrote."""
        if not leaders:
            return Outcome(self.reason, notes=("no candidate passed",))
        await self._judge(leaders)
        best = self._best()
        if best is None or self.verdicts[best].faster != "yes":
            await self._judge([step for step in given if step.number not in self.verdicts])
            best = self._best()
        notes = tuple(
            f"step {number} did not hold up: {verdict.status}: {verdict.reason}"
            for number, verdict in self.verdicts.items()
            if verdict.status is not Status.PASSED
        )
        if best is None:
            return Outcome(self.reason, finalists=tuple(self.verdicts), notes=notes)
        authors = {step.number: step.author for step in given}
        if best in authors:
            better = "faster" if self.config.objective == "speed" else "better by this objective"
            notes += (f"{authors[best]}'s own code won: nothing else was {better} (step {best})",)
        if self.verdicts[best].faster == "no":
            notes += (
                f"the winner is {self.verdicts[best].reason.removeprefix('correct; ')}: keep that baseline",
            )
        notes += objective.notes(self.config, self._held(), best)
        return Outcome(self.reason, best, self.verdicts[best], tuple(self.verdicts), notes)

    async def _judge(self, steps: list[Step]) -> None:
        """All at once: where the pool is far away, each round trip counts."""
        found = await asyncio.gather(*map(self.judge, steps))
        self.verdicts |= {step.number: verdict for step, verdict in zip(steps, found, strict=True)}

    def _held(self) -> dict[int, Verdict]:
        return {
            number: verdict for number, verdict in self.verdicts.items() if verdict.status is Status.PASSED
        }

    def _best(self) -> int | None:
        return objective.best(self.config, self._held())
