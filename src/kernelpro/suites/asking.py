"""Probes and judgements of a suite: every question that is not answered yet goes to the pool, every answer to the ledger."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace

from kernelpro.pools.pool import Outstanding, Pool
from kernelpro.records import Candidate, Job, Options, Progress, Result, Target, digest
from kernelpro.suites.ledger import Entry, Ledger
from kernelpro.suites.problems import Problem

_AT_ONCE = 4096
"""Questions in the pool's hands: more than the largest holds (256 workers, four jobs each), so that many tasks are in its sight."""

Report = Callable[[str, str], None]
"""Told what is being done: (problem, stage)."""


@dataclass(frozen=True)
class Question:
    """A probe of a problem, or one kernel on it."""

    problem: Problem
    target: Target
    options: Options
    candidate: Candidate | None = None

    @property
    def key(self) -> str:
        what = self.candidate.id if self.candidate else "probe"
        return digest("question", self.problem.task.id, what, self.target, self.options.said())

    def job(self) -> Job:
        kind = "judge" if self.candidate else "probe"
        return Job(self.key, kind, self.problem.task, self.candidate, self.target, self.options)  # type: ignore[arg-type]


def ask(
    questions: Sequence[Question],
    pool: Pool,
    ledger: Ledger,
    report: Report,
    done: Callable[[Question], None],
) -> int:
    """All of them, in the pool's own order of finishing; how many results are outstanding."""
    outstanding = 0
    waiting, asked = deque(questions), dict[Future[Result], Question]()
    while waiting or asked:
        while waiting and len(asked) < _AT_ONCE:
            question = waiting.popleft()
            asked[pool.submit(question.job(), _follow(question, report))] = question
        for answer in wait(asked, return_when=FIRST_COMPLETED).done:
            question = asked.pop(answer)
            try:
                result = answer.result()
            except Outstanding:
                outstanding += 1
                continue
            ledger.add(Entry(question.key, replace(result, job=question.key), result.device_seconds))
            done(question)
    return outstanding


def _follow(question: Question, report: Report) -> Callable[[Progress], None]:
    return lambda progress: report(question.problem.label, progress.stage)
