"""Compiles the next problems of a suite while one is measured: references, and designs that will race."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kernelpro.pools.pool import Pool
from kernelpro.records import Candidate, Options, StudyData, Target, Task

_NEXT_PROBLEMS = 4
"""Problems to compile ahead. A reference compiles in seconds, a network in a minute:
as long as it takes to measure a few problems."""

DesignsOf = Callable[[Task, StudyData], tuple[Candidate, ...]]
"""The first designs for a task."""


class CompileNext:
    """Knows the order of the problems, and asks the pool to compile those that come next."""

    def __init__(
        self,
        pool: Pool,
        problems: Iterable[tuple[Task, Target, Options]],
        designs_of: DesignsOf | None = None,
    ):
        """`designs_of` writes the designs that will race; None without a race."""
        self._pool, self._designs_of = pool, designs_of
        compiled = [problem for problem in problems if "compile" in problem[2].baselines]
        self._order = list({problem[0].id: problem for problem in compiled}.values())
        self._positions = {task.id: number for number, (task, _, _) in enumerate(self._order)}
        self._requested: set[str] = set()
        self._writer = ThreadPoolExecutor(1)

    def after(self, task: Task) -> None:
        """Compile the problems that come after a task, which is being measured."""
        first = self._positions.get(task.id, len(self._order)) + 1
        for following, target, options in self._order[first : first + _NEXT_PROBLEMS]:
            if following.id not in self._requested:
                self._requested.add(following.id)
                self._pool.compile_ahead(following, target, self._builder(following, target, options))

    def _builder(self, task: Task, target: Target, options: Options) -> Callable[[StudyData], None]:
        """A callback that writes the designs of a task as soon as its study arrives, and has them built."""

        def build(study: StudyData) -> None:
            if self._designs_of:
                self._pool.build_ahead(task, target, options, self._designs_of(task, study))

        def begin(study: StudyData) -> None:
            with suppress(RuntimeError):  # the bench has ended
                self._writer.submit(build, study)

        return begin

    def close(self) -> None:
        """Stop writing designs."""
        self._writer.shutdown(wait=False, cancel_futures=True)
