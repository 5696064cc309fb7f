"""Jobs that wait, and whose turn it is.

A worker stays with the task that it has warm, for a moment also where nothing of it waits, if a run works on it. While tasks wait
that nobody is at, its turn has an end: after so many jobs another task comes first. A task's next turn is twice as long, so that a
large one is made warm a few times, not again and again.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from kernelpro.pools.pool import Report
from kernelpro.records import Job, Progress, Result

Kind = tuple[str, str]
"""Task and target."""
_MOMENT_SECONDS = 0.5
"""A run asks again within so many; making another task warm takes ten times as long."""


@dataclass(eq=False)
class Asked:
    key: str
    """A number of the pool's own: jobs of several callers may share an id."""
    job: Job
    progress: Report
    since: float
    answer: Future[Result] = field(default_factory=Future)
    deaths: int = 0
    stage: str = ""

    @functools.cached_property
    def task(self) -> str:
        return self.job.task.id if self.job.task else ""

    @functools.cached_property
    def kind(self) -> Kind:
        return self.task, self.job.target or ""

    def begin(self) -> bool:
        """Whether it is still wanted; from now on it cannot be cancelled."""
        return self.answer.running() or self.answer.set_running_or_notify_cancel()

    def refuse(self, error: Exception) -> None:
        if self.begin():
            self.answer.set_exception(error)

    def tell(self, stage: str) -> None:
        if stage != self.stage:
            self.stage = stage
            self.progress(Progress(self.job.id, stage))


class Queues:
    """By task and target, so that choosing costs what there are tasks, not what there are jobs."""

    def __init__(self) -> None:
        self._queues: dict[Kind, deque[Asked]] = {}

    def put(self, asked: Asked) -> None:
        self._queues.setdefault(asked.kind, deque()).append(asked)

    def put_back(self, unanswered: Iterable[Asked]) -> None:
        for asked in reversed(list(unanswered)):
            self._queues.setdefault(asked.kind, deque()).appendleft(asked)

    def first(self) -> list[Asked]:
        """The oldest of each kind."""
        return [queue[0] for queue in self._queues.values()]

    def at_hand(self, task: str) -> list[Asked]:
        """The oldest of each kind that needs this task, or none."""
        kinds = itertools.product({task, ""}, ("", "cpu", "cuda"))
        return [self._queues[kind][0] for kind in kinds if kind in self._queues]

    def take(self, asked: Asked) -> None:
        """One of the first."""
        queue = self._queues[asked.kind]
        queue.popleft()
        if not queue:
            del self._queues[asked.kind]

    def drop(self, kind: Kind) -> deque[Asked]:
        """All of a kind."""
        return self._queues.pop(kind)

    def lengths(self) -> dict[Kind, int]:
        return {kind: len(queue) for kind, queue in self._queues.items()}

    def length(self, kind: Kind) -> int:
        return len(self._queues.get(kind, ()))

    def __len__(self) -> int:
        """Those that were cancelled aside."""
        return sum(not asked.answer.cancelled() for asked in self)

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Asked]:
        return itertools.chain.from_iterable(list(self._queues.values()))


@dataclass(eq=False, kw_only=True)
class Worker:
    """Whoever jobs are sent to, as far as turns are concerned."""

    task: str = ""
    """What it has warm, or will have."""
    run: int = 0
    """Jobs sent since it has been at this task."""
    rests_since: float = 0.0
    """When it was last left without a job."""


class Turns:
    """How many jobs of a task a worker does in a row while others wait."""

    def __init__(self, first: int):
        self._first = first
        self._lengths: dict[str, int] = {}

    def over(self, worker: Worker) -> bool:
        return worker.run >= self._length(worker.task)

    def sent(self, worker: Worker, asked: Asked, waiting: Queues) -> None:
        """The worker has this job now. Where that takes it away from a task of which more waits, the task's next turn is longer."""
        if asked.task and asked.task != worker.task:
            if any(other.task == worker.task for other in waiting.first()):
                self._lengths[worker.task] = 2 * self._length(worker.task)
            worker.task, worker.run = asked.task, 0
        worker.run += 1

    def _length(self, task: str) -> int:
        return self._lengths.get(task, self._first)


class Runs:
    """Tasks that a run works on: it asks again as soon as it has an answer. Whoever asks for all at once never comes back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: set[str] = set()
        self._open: Counter[str] = Counter()
        """By task: jobs without an answer."""

    def asked(self, asked: Asked) -> None:
        with self._lock:
            came_back = asked.task in self._open and not self._open[asked.task]
            if asked.task and (came_back or asked.job.kind == "study"):
                self._tasks.add(asked.task)
            self._open[asked.task] += 1
        asked.answer.add_done_callback(lambda _: self._answered(asked.task))

    def _answered(self, task: str) -> None:
        with self._lock:
            self._open[task] -= 1

    def hold(self, worker: Worker, is_busy: bool, now: float) -> bool:
        """Whether the worker stays with what it has warm."""
        return worker.task in self._tasks and (is_busy or now - worker.rests_since < _MOMENT_SECONDS)
