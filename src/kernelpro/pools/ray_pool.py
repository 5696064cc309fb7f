"""The pools `ray:` and `ray://HOST:PORT`: actors on a Ray cluster, each with one GPU or CPU.

1. The pool requests as many actors as the queue justifies: one for each task, and one more for every few jobs
   of a task. Requests that the cluster cannot fulfil stay pending, so that its autoscaler sees them. An actor
   that has not been needed for a minute is stopped.
2. An actor runs a local pool on its node, with the hardware that Ray assigned to it. The code travels with
   the job. So verdicts have the same guarantees as on this machine.
3. The scheduler (scheduler.py) assigns jobs to actors as to the workers of a local pool.
4. An actor is replaced if it dies, alone or with its node, if it sends no heartbeat, or if Ray lost its
   result; other actors run its jobs. An actor whose GPU fails its health check is kept without work, so that
   Ray does not assign that GPU again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from kernelpro.pools.local import DeviceFailed, LocalPool, local_devices
from kernelpro.pools.pool import Pool, ProgressCallback, ignore_progress, lost_result
from kernelpro.pools.ray_connect import connect, first_line, import_ray
from kernelpro.pools.scheduler import LONG_WAIT_SECONDS, PendingJob, PoolWorker, Scheduler
from kernelpro.records import BadInput, Job, Progress, Result, Target

MAX_ACTORS = 256
MAX_SENT = 4
FIRST_TURN = 128
"""Length of a task's first turn. It is longer than on one machine, because a cluster has too few workers for
its tasks only for a while."""
_WARM_COST = 7
"""An actor is requested for every so many jobs of a task: warming a task takes 15 s, judging a candidate 2 s
(H200)."""
_MAX_ATTEMPTS = 10
"""Number of actors that may die while they run a job. An actor survives whatever a job does, so a dead actor
means that its machine failed."""
_MAX_FAILED_STARTS = 32
"""After this many actors in a row that did not start or had other hardware than requested, jobs are rejected:
four nodes of eight GPUs."""
_IDLE_SECONDS = 60.0
"""An actor that has not been needed for this long is stopped. Starting one and warming a task take half of
it."""
_HEARTBEAT_SECONDS = 1.0
_QUEUE_REPORT_SECONDS = 5.0
_DEAD_SECONDS = 120.0
"""An actor without a heartbeat for this long is replaced. Jobs have limits of their own, and an actor answers
while it runs one."""


class RayWorker:
    """An actor on a node: a local pool with one worker."""

    def __init__(self, sandbox: str):
        with contextlib.suppress(
            PermissionError
        ):  # Ray lowers the priority of actors, which distorts timings
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        (self._device,) = local_devices(workers=1)
        self._pool = LocalPool(sandbox, [self._device])
        self._stages: dict[str, str] = {}

    def hardware(self) -> dict[Target | None, str | None]:
        """The name of the actor's hardware, by target."""
        targets: tuple[Target | None, ...] = ("cuda", "cpu", None)
        return {target: self._device.name_for(target) for target in targets}

    def run(self, line: str) -> str:
        """Run a job. `line` and the result are JSON."""
        job = Job.from_json(json.loads(line))
        try:
            return self._pool.run(job, self._record_stage).dumps()
        finally:
            self._stages.pop(job.id, None)

    def _record_stage(self, progress: Progress) -> None:
        self._stages[progress.job] = progress.stage

    def stages(self) -> dict[str, str]:
        """The stage of each running job. The pool uses this call as a heartbeat."""
        return dict(self._stages)


@dataclass(eq=False)
class ActorState(PoolWorker):
    """The pool's view of an actor. The keys of `sent` are Ray's references to calls."""

    actor: Any
    has_gpu: bool
    start_call: Any
    """The call that returns the actor's hardware; None after it has returned."""
    hardware: dict[Target | None, str | None] = field(default_factory=dict)
    """Name of its hardware by target; empty until it has started."""
    last_needed: float = 0.0
    """When the queue last justified this actor."""
    heartbeat: Any = None
    """The open call that serves as a heartbeat; None if there is none."""
    heartbeat_sent: float = 0.0
    """When that call was sent."""

    def hardware_name(self, target: Target | None) -> str | None:
        """The device of this actor."""
        return self.hardware.get(target)

    @property
    def started(self) -> bool:
        """Whether the actor has started and can be used."""
        return bool(self.hardware) and not self.failed

    def calls(self) -> list[Any]:
        """All calls that have not returned."""
        return [call for call in (self.start_call, self.heartbeat, *self.sent) if call is not None]


class RayPool(Pool):
    """The Ray pool; see the module's docstring."""

    def __init__(
        self,
        address: str = "",
        sandbox: str = "auto",
        gpu_name: str = "",
        warn: Callable[[str], None] = lambda line: None,
    ):
        self._ray = import_ray()
        self._sandbox, self._gpu_name, self._warn = sandbox, gpu_name, warn
        self._owns_connection = not self._ray.is_initialized()
        if self._owns_connection:
            self._connect(address)
        self._lock = threading.RLock()
        self._count = itertools.count()
        self._scheduler: Scheduler[ActorState] = Scheduler(
            max_sent=MAX_SENT,
            first_turn=FIRST_TURN,
            warm_cost=_WARM_COST,
            build_ahead=False,
            accepts=lambda worker, target: self._needs_gpu(target) == worker.has_gpu,
            clock=self._now,
        )
        self._actors: list[ActorState] = []
        self._failed_starts, self._start_error = 0, ""
        """The number of actors in a row that did not start or had other hardware, and the last reason."""
        self._last_failure = self._last_report = -math.inf
        self._resources_read, self._cluster_has_gpus = -math.inf, False
        self._closing, self._submitted = threading.Event(), threading.Event()
        self._error = ""
        """Why the pool has stopped."""
        self._thread = threading.Thread(target=self._run_loop, daemon=True)
        self._thread.start()

    def _connect(self, address: str) -> None:
        connect(self._ray, address, self._warn)

    def _now(self) -> float:
        return time.monotonic()

    def submit(self, job: Job, progress: ProgressCallback = ignore_progress) -> Future[Result]:
        """Queue a job. It can be cancelled until it is sent to an actor."""
        pending = PendingJob(str(next(self._count)), job, progress, self._now())
        with self._lock:
            if self._error:
                raise BadInput(self._error)
            self._scheduler.submit(pending)
        self._submitted.set()
        return pending.future

    @property
    def pending_jobs(self) -> int:
        """Jobs without a result."""
        with self._lock:
            return len(self._scheduler.queue) + sum(len(actor.sent) for actor in self._actors)

    def close(self) -> None:
        """Stop the actors, and leave the cluster if this pool joined it."""
        self._closing.set()
        self._submitted.set()
        self._thread.join()
        if not self._error:
            for actor in self._actors:
                self._ray.kill(actor.actor)
        if self._owns_connection:
            self._ray.shutdown()

    # --- the loop ----------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        """Run the loop. If it ends with an error, for example because the cluster is gone, fail all jobs."""
        try:
            self._loop()
        except Exception as error:
            with self._lock:
                reason = f"{type(error).__name__}: {first_line(error)}"
                self._error = f"--pool ray: the pool stopped ({reason}); run the same command to continue"
                unfinished = [*self._scheduler.queue, *(p for a in self._actors for p in a.sent.values())]
            for pending in unfinished:
                if not pending.future.done():
                    pending.fail(BadInput(self._error))

    def _loop(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                self._reject_unrunnable()
                self._scale()
                self._scheduler.assign([actor for actor in self._actors if actor.started], self._send)
                if self._scheduler.queue and self._now() - self._last_report > _QUEUE_REPORT_SECONDS:
                    self._last_report = self._now()
                    self._report_queue()
                calls = {call: actor for actor in self._actors for call in actor.calls()}
            if not calls:
                self._wait_for_jobs()
                continue
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0.1)
            for call in ready:
                if calls[call] in self._actors:
                    self._handle(calls[call], call)
            self._check_heartbeats()

    def _wait_for_jobs(self) -> None:
        self._submitted.wait(_HEARTBEAT_SECONDS)
        self._submitted.clear()

    def _send(self, actor: ActorState, pending: PendingJob) -> None:
        actor.sent[actor.actor.run.remote(replace(pending.job, id=pending.key).dumps())] = pending

    def _report_queue(self) -> None:
        failed = sum(actor.failed for actor in self._actors)
        started = sum(actor.started for actor in self._actors)
        note = f"; GPUs that failed: {failed}" if failed else ""
        others = len(self._scheduler.queue) - 1
        for pending in self._scheduler.queue:
            pending.report(f"queued with {others} others; {started} workers are running{note}")

    # --- how many actors ---------------------------------------------------------------------------------

    def _scale(self) -> None:
        """Request as many actors as the queue justifies, and stop those that are no longer needed."""
        jobs = Counter(self._scheduler.queue.lengths())
        jobs.update(pending.group for actor in self._actors for pending in actor.sent.values())
        needed: Counter[bool] = Counter()
        for (_, target), count in jobs.items():
            needed[self._needs_gpu(target)] += math.ceil(count / _WARM_COST)
        for gpu in (False, True):
            self._scale_to(gpu, min(MAX_ACTORS, needed[gpu]))

    def _scale_to(self, gpu: bool, needed: int) -> None:
        now, heads = self._now(), self._scheduler.queue.heads()
        actors = [actor for actor in self._actors if actor.has_gpu == gpu and not actor.failed]
        useful = [
            actor
            for actor in actors
            if not actor.started or actor.sent or any(self._scheduler.suits(actor, head) for head in heads)
        ]
        for actor in useful:
            if actor.sent or len(useful) <= needed:
                actor.last_needed = now
        for actor in sorted(actors, key=lambda a: a.started):  # those that have not started first
            if now - actor.last_needed > _IDLE_SECONDS and (actor not in useful or len(useful) > needed):
                if actor in useful:
                    useful.remove(actor)
                self._stop(actor)
        if self._failed_starts >= _MAX_FAILED_STARTS:
            if now - self._last_failure <= _IDLE_SECONDS:
                return
            self._failed_starts = 0
        for _ in range(needed - len(useful)):
            self._request_actor(gpu)

    def _request_actor(self, gpu: bool) -> None:
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(gpu), "max_concurrency": MAX_SENT + 2}
        if gpu and (accelerator := self._accelerator_type()):
            options["accelerator_type"] = accelerator
        actor = self._ray.remote(RayWorker).options(**options).remote(self._sandbox)
        self._actors.append(ActorState(actor, gpu, actor.hardware.remote(), last_needed=self._now()))

    def _stop(self, actor: ActorState) -> None:
        with self._lock:
            self._actors.remove(actor)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(actor.actor)

    def _reject_unrunnable(self) -> None:
        """Fail queued jobs for which no actor will start."""
        errors = {gpu: self._no_actor_reason(gpu) for gpu in (False, True)}
        for group in self._scheduler.queue.lengths() if any(errors.values()) else ():
            if error := errors[self._needs_gpu(group[1])]:
                for pending in self._scheduler.queue.remove_group(group):
                    pending.fail(BadInput(error))

    def _no_actor_reason(self, gpu: bool) -> str:
        """Why no actor will start; empty if one has started or may still start."""
        actors = [actor for actor in self._actors if actor.has_gpu == gpu]
        if any(actor.started for actor in actors):
            return ""
        if self._failed_starts >= _MAX_FAILED_STARTS:
            return self._start_error
        failed = sum(actor.failed for actor in actors)
        waited = self._now() - self._last_failure > LONG_WAIT_SECONDS
        if failed and waited and failed >= self._ray.cluster_resources().get("GPU", 0):
            return f"--pool ray: all GPUs of the cluster ({failed}) failed their health checks; restart them"
        return ""

    def _needs_gpu(self, target: str | None) -> bool:
        """Whether jobs for this target need a GPU. Without a target: whether the cluster has GPUs."""
        if not target and self._now() - self._resources_read > _HEARTBEAT_SECONDS:
            self._resources_read = self._now()
            self._cluster_has_gpus = bool(self._ray.cluster_resources().get("GPU"))
        return target == "cuda" or (not target and self._cluster_has_gpus)

    def _accelerator_type(self) -> str | None:
        """Ray's accelerator type for the requested GPU name; None if Ray has none."""
        prefix = "accelerator_type:"
        names = [n.removeprefix(prefix) for n in self._ray.cluster_resources() if n.startswith(prefix)]
        return next((n for n in names if self._gpu_name and self._gpu_name.lower() in n.lower()), None)

    # --- what actors return ------------------------------------------------------------------------------

    def _handle(self, actor: ActorState, call: Any) -> None:
        try:
            value = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self._handle_error(actor, call, error)
            return
        if call == actor.start_call:
            actor.start_call = None
            self._handle_start(actor, value)
        elif call == actor.heartbeat:
            actor.heartbeat = None
            by_key = {pending.key: pending for pending in actor.sent.values()}
            for key in value.keys() & by_key.keys():
                by_key[key].report(value[key])
        else:
            with self._lock:
                pending = self._scheduler.finished(actor, call)
            pending.finish(Result.from_json(json.loads(value)))

    def _handle_start(self, actor: ActorState, hardware: dict[Target | None, str | None]) -> None:
        name = hardware["cuda" if actor.has_gpu else "cpu"] or ""
        if self._gpu_name.lower() in name.lower():
            actor.hardware, actor.last_needed, self._failed_starts = hardware, self._now(), 0
            return
        self._warn(f"stopping a worker on {name}: --gpu-name {self._gpu_name} was requested")
        self._count_failed_start(f"--gpu-name {self._gpu_name}: the cluster has no such hardware")
        self._stop(actor)

    def _count_failed_start(self, reason: str) -> None:
        self._failed_starts, self._last_failure = self._failed_starts + 1, self._now()
        self._start_error = reason

    def _handle_error(self, actor: ActorState, call: Any, error: Exception) -> None:
        if call not in actor.sent or not isinstance(error, self._ray.exceptions.RayTaskError):
            if call == actor.start_call:
                reason = f"{_MAX_FAILED_STARTS} workers in a row did not start: {first_line(error)}"
                self._count_failed_start(f"--pool ray: {reason}")
            self._replace(actor, call)  # the actor died, or the result was lost with its node
            return
        with self._lock:
            pending = actor.sent.pop(call)
            if isinstance(getattr(error, "cause", None), DeviceFailed):
                if not actor.failed:
                    name = actor.hardware.get("cuda")
                    self._warn(f"a GPU ({name}) failed its health check and is not used any more")
                actor.failed, self._last_failure = True, self._now()
                self._scheduler.queue.add_first([pending])
                return
        pending.finish(lost_result(pending.job, f"the worker failed: {str(error).splitlines()[-1]}"))

    def _replace(self, actor: ActorState, lost_call: Any = None) -> None:
        """Stop an actor and queue its jobs again.

        This counts as an attempt of the job that was running, or whose result was lost.
        """
        with self._lock:
            unfinished = []
            for call, pending in sorted(actor.sent.items(), key=lambda item: item[0] != lost_call):
                if (value := self._late_result(call)) is not None:
                    pending.finish(Result.from_json(json.loads(value)))
                else:
                    unfinished.append(pending)
            if victim := self._scheduler.requeue(unfinished, _MAX_ATTEMPTS):
                reason = f"{_MAX_ATTEMPTS} workers died or vanished while they ran this job"
                victim.finish(lost_result(victim.job, reason))
            self._stop(actor)

    def _late_result(self, call: Any) -> str | None:
        """The result of a call if the actor returned it before it died, else None."""
        try:
            return str(self._ray.get(call, timeout=0))
        except (self._ray.exceptions.RayError, TimeoutError):
            return None

    def _check_heartbeats(self) -> None:
        now = self._now()
        for actor in list(self._actors):
            if actor.start_call is not None:
                continue
            if actor.heartbeat is None and actor.sent and now - actor.heartbeat_sent > _HEARTBEAT_SECONDS:
                actor.heartbeat, actor.heartbeat_sent = actor.actor.stages.remote(), now
            elif actor.heartbeat is not None and now - actor.heartbeat_sent > _DEAD_SECONDS:
                self._warn(f"a worker sent no heartbeat for {_DEAD_SECONDS:.0f} s and is replaced")
                self._replace(actor)
