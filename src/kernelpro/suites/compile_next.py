"""The next references of a suite are compiled while one problem is measured."""

from __future__ import annotations

from collections.abc import Iterable

from kernelpro.pools.pool import Pool
from kernelpro.records import Options, Target, Task

_NEXT_PROBLEMS = 4
"""A reference compiles in seconds, a network in a minute: about as long as some problems are measured."""


class CompileNext:
    """Knows the order of the problems, and asks the pool to compile those that come next."""

    def __init__(self, pool: Pool, problems: Iterable[tuple[Task, Target, Options]]):
        self._pool = pool
        compiled = [(task, target) for task, target, options in problems if "compile" in options.baselines]
        self._order = list({task.id: (task, target) for task, target in compiled}.values())
        self._positions = {task.id: number for number, (task, _) in enumerate(self._order)}

    def after(self, task: Task) -> None:
        """Compile those that come after a task, which is measured now."""
        first = self._positions.get(task.id, len(self._order)) + 1
        for following, target in self._order[first : first + _NEXT_PROBLEMS]:
            self._pool.compile_ahead(following, target)
