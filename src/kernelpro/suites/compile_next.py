"""Compiles the next problems of a suite while one is measured: references, and designs that will race."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue

from kernelpro.pools.pool import CompiledCallback, Pool
from kernelpro.records import Candidate, Options, StudyData, Target, Task

_NEXT_PROBLEMS = 12
"""Problems to compile ahead. A reference compiles in seconds, a network in a minute or two: as long as it
takes to measure ten problems."""

_WRITERS = 2
"""Threads that have designs written. Those of a network take up to a minute; others, which take less than a
second, need not wait for them."""

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
        self._compiled: set[str] = set()
        """Tasks whose reference is compiled and whose designs are being built."""
        self._built: set[str] = set()
        """Tasks for which nothing is left to compile or to build."""
        self._failed: set[str] = set()
        """Tasks whose reference could not be compiled ahead: the device will wait for its compilers."""
        self._queue: SimpleQueue[tuple[Task, Target, Options, StudyData | None]] = SimpleQueue()
        for _ in range(_WRITERS):  # daemons: nothing waits for them at the end
            threading.Thread(target=self._prepare_compiled, daemon=True).start()

    def after(self, task: Task) -> None:
        """Compile the problems that come after a task, which is being measured."""
        first = self._positions.get(task.id, len(self._order)) + 1
        for following, target, options in self._order[first : first + _NEXT_PROBLEMS]:
            if following.id not in self._requested:
                self._requested.add(following.id)
                self._pool.compile_ahead(following, target, self._on_compiled(following, target, options))

    def first_ready(self, tasks: Sequence[Task]) -> int:
        """The position of the first task that is compiled and whose designs are built; if there is none, of
        the first that is compiled; else of the first that may still be; else 0."""
        for ready in (self._built, self._compiled):
            for number, task in enumerate(tasks):
                if task.id in ready:
                    return number
        return next((number for number, task in enumerate(tasks) if task.id not in self._failed), 0)

    def _on_compiled(self, task: Task, target: Target, options: Options) -> CompiledCallback:
        return lambda study: self._queue.put((task, target, options, study))

    def _prepare_compiled(self) -> None:
        """Write the designs of each task as soon as its reference is compiled, and have them built."""
        while True:
            task, target, options, study = self._queue.get()
            if study is None:
                self._failed.add(task.id)
                continue
            designs: tuple[Candidate, ...] = ()
            try:
                designs = self._designs_of(task, study) if self._designs_of else ()
            except Exception:  # a bug: the search will report it
                traceback.print_exc()
            self._compiled.add(task.id)
            if designs:
                self._pool.build_ahead(task, target, options, designs, partial(self._built.add, task.id))
            else:
                self._built.add(task.id)
