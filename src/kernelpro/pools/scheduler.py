"""Decides which queued job goes to which worker: one policy for all pools.

A worker has a task *warm* if it has prepared it: loaded, with its baselines timed.

1. A worker prefers jobs of the task that it has warm.
2. A worker warms another task if no worker has that task warm, or if those that have it are so far behind
   that warming it once more pays off. Tasks that no worker has warm come first.
3. A busy worker takes a job of another task only to build its candidate ahead of time.
4. If another task waits that no worker has warm, a task's turn on a worker ends after a number of jobs. Its
   next turn is twice as long, so that a large task is warmed a few times only.
5. A job that has been queued for five minutes goes first.
6. Before an idle worker leaves the task of a search run, it waits a moment for the run's next job, unless the
   run has ended.

All jobs of a task are timed on one kind of hardware: that of the first worker that got one.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from kernelpro.pools.pool import ProgressCallback
from kernelpro.records import Job, Progress, Result, Target, Task

JobGroup = tuple[str, str]
"""A task's id and the target; jobs without a task have an empty id."""
RUN_WAIT_SECONDS = 0.5
"""How long an idle worker waits for a run's next job. A run submits it within this time; warming another task
takes ten times as long."""
LONG_WAIT_SECONDS = 300.0
"""A job that has been queued for this long goes first."""


@dataclass(eq=False)
class PendingJob:
    """A submitted job without a result."""

    key: str
    """Unique in the pool. Jobs of several callers may have the same id."""
    job: Job
    progress: ProgressCallback
    submitted: float
    """When it was submitted, by the scheduler's clock."""
    future: Future[Result] = field(default_factory=Future)
    attempts: int = 0
    """Number of workers that died while they ran it."""
    stage: str = ""
    """The stage that was reported last."""
    preparing: bool = False
    """Whether the worker prepared the job's task when it reported last."""
    bug: str = ""
    """The bug of KernelPro that ended the last worker; empty if none did."""

    @functools.cached_property
    def task(self) -> str:
        """The id of the job's task; empty if it has none."""
        return self.job.task.id if self.job.task else ""

    @functools.cached_property
    def group(self) -> JobGroup:
        """The job's group: jobs of one group need the same warm task and the same hardware."""
        return self.task, self.job.target or ""

    def start(self) -> bool:
        """Mark the job as running; False if it was cancelled."""
        return self.future.running() or self.future.set_running_or_notify_cancel()

    def fail(self, error: Exception) -> None:
        """End the job with an error, unless it was cancelled."""
        if self.start():
            self.future.set_exception(error)

    def finish(self, result: Result) -> None:
        """Deliver the result under the caller's id of the job."""
        self.future.set_result(replace(result, job=self.job.id))

    def report(self, stage: str) -> None:
        """Report a new stage to the caller."""
        if stage != self.stage:
            self.stage = stage
            self.progress(Progress(self.job.id, stage))


class JobQueue:
    """Queued jobs by group, so that the cost of choosing one depends on the number of groups, not of jobs."""

    def __init__(self) -> None:
        self._queues: dict[JobGroup, deque[PendingJob]] = {}

    def add(self, pending: PendingJob) -> None:
        """Append a job to its group."""
        self._queues.setdefault(pending.group, deque()).append(pending)

    def add_first(self, jobs: Iterable[PendingJob]) -> None:
        """Put jobs that were sent before back to the front, in the same order."""
        for pending in reversed(list(jobs)):
            self._queues.setdefault(pending.group, deque()).appendleft(pending)

    def heads(self) -> list[PendingJob]:
        """The oldest job of each group."""
        return [queue[0] for queue in self._queues.values()]

    def heads_for(self, task: str) -> list[PendingJob]:
        """The oldest job of each group that needs this task or no task."""
        groups = itertools.product({task, ""}, ("", "cpu", "cuda"))
        return [self._queues[group][0] for group in groups if group in self._queues]

    def remove_head(self, pending: PendingJob) -> None:
        """Remove one of `heads()`."""
        queue = self._queues[pending.group]
        queue.popleft()
        if not queue:
            del self._queues[pending.group]

    def remove_group(self, group: JobGroup) -> deque[PendingJob]:
        """Remove and return all jobs of a group."""
        return self._queues.pop(group)

    def lengths(self) -> dict[JobGroup, int]:
        """The number of queued jobs of each group."""
        return {group: len(queue) for group, queue in self._queues.items()}

    def length(self, group: JobGroup) -> int:
        """The number of queued jobs of one group."""
        return len(self._queues.get(group, ()))

    def __len__(self) -> int:
        """The number of queued jobs without cancelled ones."""
        return sum(not pending.future.cancelled() for pending in self)

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[PendingJob]:
        return itertools.chain.from_iterable(list(self._queues.values()))


@dataclass(eq=False, kw_only=True)
class PoolWorker:
    """The scheduler's view of a worker."""

    task: str = ""
    """The task that the worker has warm, or will have warm after the jobs that it was sent."""
    turn_jobs: int = 0
    """Number of jobs sent to it since it got this task."""
    idle_since: float = 0.0
    """When its last result arrived."""
    sent: dict[Hashable, PendingJob] = field(default_factory=dict)
    """Jobs at the worker without a result, in the order of sending. The pool chooses the keys."""
    failed: bool = False
    """Whether its device failed its health check."""

    def hardware_name(self, target: Target | None) -> str | None:
        """The hardware on which the worker runs jobs for this target; None if it has none."""
        raise NotImplementedError


class RunTracker:
    """Finds out which tasks belong to search runs. A run submits another job as soon as it has a result;
    other callers submit all jobs at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run_tasks: set[str] = set()
        self._open: Counter[str] = Counter()
        """Number of jobs without a result, by task."""

    def submitted(self, pending: PendingJob) -> None:
        """Record a new job."""
        with self._lock:
            came_back = pending.task in self._open and not self._open[pending.task]
            if pending.task and (came_back or pending.job.kind == "study"):
                self._run_tasks.add(pending.task)
            self._open[pending.task] += 1
        pending.future.add_done_callback(lambda _: self._finished(pending.task))

    def _finished(self, task: str) -> None:
        with self._lock:
            self._open[task] -= 1

    def end(self, task: str) -> None:
        """Record that a task's run has ended."""
        with self._lock:
            self._run_tasks.discard(task)

    def holds(self, worker: PoolWorker, now: float) -> bool:
        """Whether the worker should stay with its task because a run will submit another job in a moment."""
        idle_long = not worker.sent and now - worker.idle_since >= RUN_WAIT_SECONDS
        return worker.task in self._run_tasks and not idle_long


W = TypeVar("W", bound=PoolWorker)


class Scheduler(Generic[W]):
    """Assigns queued jobs to workers; see the module's docstring. The pool's lock protects it."""

    def __init__(
        self,
        *,
        max_sent: int,
        first_turn: int,
        warm_cost: int,
        build_ahead: bool,
        accepts: Callable[[W, Target | None], bool] = lambda worker, target: True,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        max_sent: maximum number of unfinished jobs at a worker. first_turn: number of jobs in a task's first
        turn. warm_cost: warming a task takes as long as judging this many candidates. build_ahead: whether
        busy workers take jobs of other tasks to build their candidates; False if the pool can start more
        workers instead. accepts: whether a worker runs jobs for a target.
        """
        self.queue = JobQueue()
        self._runs = RunTracker()
        self._max_sent, self._first_turn = max_sent, first_turn
        self._warm_cost, self._build_ahead = warm_cost, build_ahead
        self._accepts, self._clock = accepts, clock
        self._turns: dict[str, int] = {}
        """Length of a task's next turn, if it is not `first_turn`."""
        self._hardware: dict[JobGroup, str] = {}
        """Name of the hardware on which each group is timed."""

    def submit(self, pending: PendingJob) -> None:
        """Queue a new job."""
        self._runs.submitted(pending)
        self.queue.add(pending)

    def end_run(self, task: Task) -> None:
        """Record that the search run of a task has ended: no worker waits for its next job."""
        self._runs.end(task.id)

    def finished(self, worker: W, handle: Hashable) -> PendingJob:
        """Record that a worker returned the result of a job; returns the job."""
        worker.idle_since = self._clock()
        return worker.sent.pop(handle)

    def requeue(self, unfinished: list[PendingJob], max_attempts: int) -> PendingJob | None:
        """Queue the jobs of a dead worker again. The first one was running, which counts as an attempt.

        If the first one has no attempts left, it is returned and not queued.
        """
        victim = None
        if unfinished:
            unfinished[0].attempts += 1
            if unfinished[0].attempts >= max_attempts:
                victim = unfinished.pop(0)
        self.queue.add_first(unfinished)
        return victim

    def suits(self, worker: W, pending: PendingJob) -> bool:
        """Whether a job may run on this worker's hardware.

        True also for a target that the worker lacks: the worker then reports the error.
        """
        if not self._accepts(worker, pending.job.target):
            return False
        name = worker.hardware_name(pending.job.target)
        return not pending.task or name is None or self._hardware.get(pending.group, name) == name

    def assign(self, workers: Iterable[W], send: Callable[[W, PendingJob], None]) -> None:
        """Send queued jobs to workers with room: round by round one job each, to those with the fewest jobs
        first.

        `send` must add the job to `worker.sent`.
        """
        available = [worker for worker in workers if not worker.failed]
        counts = _Counts(available)
        free = [worker for worker in available if len(worker.sent) < self._max_sent]
        while free and self.queue:
            served = []
            for worker in sorted(free, key=lambda w: len(w.sent)):
                if pending := self._best_for(worker, counts):
                    self.queue.remove_head(pending)
                    if pending.start():
                        self._begin_turn(worker, pending, counts)
                        send(worker, pending)
                    served.append(worker)
            free = [worker for worker in served if len(worker.sent) < self._max_sent]

    def _begin_turn(self, worker: W, pending: PendingJob, counts: _Counts) -> None:
        """Record that a job goes to a worker. If the worker leaves a task with queued jobs, the next turn of
        that task is longer."""
        counts.jobs[pending.task] += 1
        if pending.task and pending.task != worker.task:
            if any(head.task == worker.task for head in self.queue.heads()):
                self._turns[worker.task] = 2 * self._turn_length(worker.task)
            counts.holders[worker.task] -= 1
            counts.holders[pending.task] += 1
            worker.task, worker.turn_jobs = pending.task, 0
        worker.turn_jobs += 1
        if pending.task and (name := worker.hardware_name(pending.job.target)):
            self._hardware.setdefault(pending.group, name)

    def _turn_length(self, task: str) -> int:
        return self._turns.get(task, self._first_turn)

    def _best_for(self, worker: W, counts: _Counts) -> PendingJob | None:
        now = self._clock()
        long_ago = now - LONG_WAIT_SECONDS
        turn_over = worker.turn_jobs >= self._turn_length(worker.task)
        holds = self._runs.holds(worker, now)

        def allowed(pending: PendingJob) -> bool:
            if pending.task in ("", worker.task):
                return True
            if not turn_over and pending.submitted > long_ago:
                builds = self._build_ahead and pending.job.candidate is not None
                if holds or (worker.sent and not builds):
                    return False
            queued = self.queue.length(pending.group) + counts.jobs[pending.task]
            return queued > self._warm_cost * counts.holders[pending.task]

        def rank(pending: PendingJob) -> tuple[bool, int, int, float]:
            warm, holders = pending.task in ("", worker.task), counts.holders[pending.task]
            order = (1 if warm else 2 * bool(holders)) if turn_over else int(not warm)
            return pending.submitted > long_ago, order, holders, pending.submitted

        heads = self.queue.heads()
        only_warm = worker.sent and not turn_over and (holds or not self._build_ahead)
        if only_warm and all(head.submitted > long_ago for head in heads):
            heads = self.queue.heads_for(worker.task)
        suitable = (head for head in heads if allowed(head) and self.suits(worker, head))
        return min(suitable, key=rank, default=None)


class _Counts:
    """Counts by task: the unfinished jobs at workers, and the workers that have the task warm."""

    def __init__(self, workers: Iterable[PoolWorker]) -> None:
        self.jobs = Counter(pending.task for worker in workers for pending in worker.sent.values())
        self.holders = Counter(worker.task for worker in workers)
