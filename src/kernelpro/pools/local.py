"""The local pool: one warm worker process for each device of this machine.

Each worker gets a few jobs. It runs them in the order of sending and meanwhile builds the candidates of the
next ones. Jobs that were not sent yet can be cancelled. scheduler.py decides which worker gets which job.

A worker that dies, or sends nothing for longer than the time limits of its job allow, is replaced. The job it
was running gets a second attempt; the jobs behind it are sent again. A device that fails its health check
gets no new worker, and the job that was running on it is not tried on another device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from kernelpro.lab import machine
from kernelpro.lab.machine import Device
from kernelpro.pools.pool import (
    CompiledCallback,
    Pool,
    ProgressCallback,
    ignore_built,
    ignore_compiled,
    ignore_progress,
    lost_result,
    run_jobs,
)
from kernelpro.pools.process import WorkerProcess
from kernelpro.pools.scheduler import PendingJob, PoolWorker, Scheduler
from kernelpro.records import BadInput, Candidate, Job, Options, Progress, Result, StudyData, Target, Task

_MAX_ATTEMPTS = 2
"""Number of workers that may die while they run a job. One attempt is not enough: the worker may have been
killed for another reason."""
MAX_SENT = 8
"""Maximum number of unfinished jobs at one worker: enough to build ahead, few enough to share and to
cancel."""
FIRST_TURN = 32
_WARM_COST = 2
_SLACK_SECONDS = 120.0
"""Added to a job's own limits, for work without a limit: starting, measuring the device, the oracle."""


class DeviceFailed(BadInput):
    """All devices that could run a job failed their health checks."""


def local_devices(gpu_name: str = "", workers: int = 0) -> list[Device]:
    """The devices of this machine whose name contains `gpu_name`: its GPUs, or its CPU if it has none.
    `workers`: how many (0: all); a CPU may be used more than once."""
    all_devices = [Device(gpu) for gpu in machine.gpus()]
    all_devices = all_devices[: workers or None] or [Device()] * max(1, workers)
    chosen = [device for device in all_devices if gpu_name.lower() in (device.name_for(None) or "").lower()]
    if not chosen:
        available = ", ".join(sorted({device.name_for(None) or "" for device in all_devices}))
        raise BadInput(f"--gpu-name {gpu_name}: no such device on this machine; it has {available}")
    return chosen


def run_locally(
    jobs: Iterable[Job], progress: ProgressCallback = ignore_progress, sandbox: str = "auto"
) -> Iterator[Result]:
    """Run jobs on this machine; results come in the order of the jobs."""
    with LocalPool(sandbox) as pool:
        yield from run_jobs(pool, jobs, progress)


@dataclass(eq=False)
class _DeviceState(PoolWorker):
    """A device and its worker process, which starts with the first job."""

    device: Device
    process: WorkerProcess | None = None
    last_sign: float = 0.0
    """When the worker last sent something, or when an idle worker was sent a job."""
    hang_reason: str = ""
    """Why the worker was killed, if it hung."""
    abandoned: str = ""
    """The id of the task for which the worker was killed, if nobody needs the task's results."""

    def hardware_name(self, target: Target | None) -> str | None:
        return self.device.name_for(target)


@dataclass(eq=False)
class _AheadJob:
    """A job that compiles a reference or builds candidates ahead of time."""

    job: Job
    on_end: CompiledCallback
    process: WorkerProcess | None = None
    """The worker process that it was sent to last."""
    attempts: int = 0
    """How often it was sent."""


class LocalPool(Pool):
    """The local pool; see the module's docstring. `warn` is called with a line when a device fails."""

    def __init__(
        self,
        sandbox: str = "auto",
        devices: Sequence[Device] | None = None,
        warn: Callable[[str], None] = lambda line: None,
    ):
        self._sandbox, self._warn = sandbox, warn
        self._lock = threading.RLock()
        self._workers = [_DeviceState(device) for device in devices or local_devices()]
        self._scheduler: Scheduler[_DeviceState] = Scheduler(
            max_sent=MAX_SENT, first_turn=FIRST_TURN, warm_cost=_WARM_COST, build_ahead=True
        )
        self._count = 0
        self._ahead: dict[str, _AheadJob] = {}
        """Jobs that compile or build ahead of time and have not ended, by key."""
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None

    def submit(self, job: Job, progress: ProgressCallback = ignore_progress) -> Future[Result]:
        """Queue a job. It can be cancelled until it is sent to a worker."""
        with self._lock:
            self._count += 1
            pending = PendingJob(str(self._count), job, progress, time.monotonic())
            self._scheduler.submit(pending)
            self._dispatch()
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch_workers, daemon=True)
                self._watcher.start()
        return pending.future

    @property
    def pending_jobs(self) -> int:
        """Jobs without a result."""
        with self._lock:
            return len(self._scheduler.queue) + sum(len(worker.sent) for worker in self._workers)

    @property
    def failed(self) -> bool:
        """Whether all devices failed their health checks."""
        return all(worker.failed for worker in self._workers)

    def _dispatch(self) -> None:
        """Send jobs to workers with room; the caller holds the lock."""
        if any(worker.failed for worker in self._workers):
            self._reject_unrunnable()
        if not self._closing.is_set():
            self._scheduler.assign(self._workers, self._send)
            self._dispatch_ahead()

    def _reject_unrunnable(self) -> None:
        """Fail queued jobs for which no device is left."""
        for head in self._scheduler.queue.heads():
            suitable = [worker for worker in self._workers if self._scheduler.suits(worker, head)]
            if all(worker.failed for worker in suitable):
                names = ", ".join(f"{w.device.name_for(None)} {w.device.label}" for w in suitable)
                reason = f"every device for this job failed its health check ({names}): restart the machine"
                for pending in self._scheduler.queue.remove_group(head.group):
                    pending.fail(DeviceFailed(reason))

    def _send(self, worker: _DeviceState, pending: PendingJob) -> None:
        if not worker.sent:
            worker.last_sign = time.monotonic()
        worker.sent[pending.key] = pending
        pending.bug = ""
        self._process_of(worker).send(replace(pending.job, id=pending.key))

    def _process_of(self, worker: _DeviceState) -> WorkerProcess:
        """The worker process of a device; started if it does not run."""
        if worker.process is None:
            worker.process, worker.hang_reason = WorkerProcess(worker.device, self._sandbox), ""
            threading.Thread(target=self._listen, args=(worker, worker.process), daemon=True).start()
        return worker.process

    def compile_ahead(
        self, task: Task, target: Target, on_compiled: CompiledCallback = ignore_compiled
    ) -> None:
        """Compile a reference for a GPU ahead of time. One worker does this for all GPUs of the machine."""
        if target == "cuda":
            self._send_ahead(Job(f"reference {task.id}", "compile", task, target=target), on_compiled)

    def build_ahead(
        self,
        task: Task,
        target: Target,
        options: Options,
        candidates: tuple[Candidate, ...],
        on_built: Callable[[], None] = ignore_built,
    ) -> None:
        """Build candidates for a GPU ahead of time. Not for the CPU, where compilers would disturb
        measurements."""
        if target == "cuda" and candidates:
            key = f"candidates {task.id}"
            job = Job(key, "compile", task, target=target, options=options, candidates=candidates)
            self._send_ahead(job, lambda _: on_built())
        else:
            on_built()

    def end_run(self, task: Task) -> None:
        """Let the worker of a run that has ended begin with another task at once."""
        with self._lock:
            self._scheduler.end_run(task)
            self._dispatch()

    def abandon_task(self, task: Task) -> None:
        """Replace each worker that was sent a job of a task. Its other jobs are sent again."""
        with self._lock:
            for worker in self._workers:
                if worker.process and any(pending.task == task.id for pending in worker.sent.values()):
                    worker.abandoned = task.id
                    worker.process.kill()

    def _send_ahead(self, job: Job, on_end: CompiledCallback) -> None:
        with self._lock:
            self._ahead[job.id] = _AheadJob(job, on_end)
            if (worker := self._ahead_worker()) and not self._closing.is_set():
                self._process_of(worker)
                self._dispatch_ahead()

    def _ahead_worker(self) -> _DeviceState | None:
        """The worker that compiles and builds ahead of time: that of the first GPU."""
        return next((worker for worker in self._workers if worker.device.gpu and not worker.failed), None)

    def _dispatch_ahead(self) -> None:
        """Send jobs that run ahead of time to their worker, again if its process was replaced; the caller
        holds the lock."""
        worker = self._ahead_worker()
        if worker and worker.process:
            for ahead in self._ahead.values():
                if ahead.process is not worker.process:
                    ahead.process, ahead.attempts = worker.process, ahead.attempts + 1
                    worker.process.send(ahead.job)

    def _take_hopeless(self, process: WorkerProcess) -> list[_AheadJob]:
        """Remove the ahead jobs of a process that died which had enough attempts: one of them may have caused
        it, by its need for memory for example. The caller holds the lock."""
        sent = {key: ahead for key, ahead in self._ahead.items() if ahead.process is process}
        hopeless = {key: ahead for key, ahead in sent.items() if ahead.attempts >= _MAX_ATTEMPTS}
        self._ahead = {key: ahead for key, ahead in self._ahead.items() if key not in hopeless}
        return list(hopeless.values())

    def _listen(self, worker: _DeviceState, process: WorkerProcess) -> None:
        """Read a worker's output until it ends."""
        for record in process.records():
            worker.last_sign = time.monotonic()
            pending = worker.sent.get(record.job)
            if pending is None:
                self._deliver_ahead(record)
                continue
            if isinstance(record, Progress):
                pending.preparing = record.preparing
                pending.progress(Progress(pending.job.id, record.stage))
            elif record.internal_error:  # the worker exits after this, and the job is tried again
                pending.bug = record.error or ""
            else:
                with self._lock:
                    self._scheduler.finished(worker, record.job)
                    self._dispatch()
                pending.finish(record)
        self._handle_exit(worker, process)

    def _deliver_ahead(self, record: Progress | Result) -> None:
        """Report that a job ahead of time has ended; that of a reference has a study."""
        if isinstance(record, Result):
            with self._lock:
                ahead = self._ahead.pop(record.job, None)
            if ahead:
                ahead.on_end(record.data if isinstance(record.data, StudyData) else None)

    def _handle_exit(self, worker: _DeviceState, process: WorkerProcess) -> None:
        hung, reason = bool(worker.hang_reason), worker.hang_reason or process.exit_reason()
        with self._lock:
            process.close()
            worker.process, worker.task, worker.turn_jobs = None, "", 0
            if self._closing.is_set():
                return
            if process.device_failed:
                worker.failed = True
                reason = f"{worker.device.label} failed its health check"
                self._warn(f"{reason} and is not used any more")
            abandoned = [p for p in worker.sent.values() if p.task == worker.abandoned]
            unfinished = [p for p in worker.sent.values() if p not in abandoned]
            worker.sent.clear()
            worker.abandoned = ""
            victim, hopeless = None, self._take_hopeless(process)
            if abandoned:
                self._scheduler.queue.add_first(unfinished)  # killing the worker was no attempt of these
            else:
                victim = self._scheduler.requeue(unfinished, 1 if worker.failed else _MAX_ATTEMPTS)
            self._dispatch()
        for ahead in hopeless:
            ahead.on_end(None)
        for pending in abandoned:
            pending.finish(lost_result(pending.job, "its task was abandoned"))
        if victim and victim.bug:
            victim.finish(lost_result(victim.job, victim.bug, internal_error=True))
        elif victim and victim.preparing:
            victim.finish(_unprepared_result(victim.job, reason, hung))
        elif victim:
            victim.finish(lost_result(victim.job, f"the worker died while it ran this job ({reason})"))

    def _watch_workers(self) -> None:
        """Kill workers that hang, and send other jobs to workers that waited for a run's next job."""
        while not self._closing.wait(1.0):
            with self._lock:
                self._dispatch()
                busy = [(w, w.process, next(iter(w.sent.values())).job) for w in self._workers if w.sent]
            for worker, process, job in busy:
                silence = time.monotonic() - worker.last_sign
                if process and silence > silence_limit(job):
                    worker.hang_reason = f"it sent nothing for {silence:.0f} s and was killed"
                    process.kill()

    def close(self) -> None:
        """Stop the workers: idle ones may clean up, busy ones are terminated at once."""
        self._closing.set()
        with self._lock:
            ending = [(worker.process, bool(worker.sent)) for worker in self._workers if worker.process]
        threads = [threading.Thread(target=process.stop, args=(busy,)) for process, busy in ending]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _unprepared_result(job: Job, reason: str, hung: bool) -> Result:
    """The result of a job whose worker died before it loaded a candidate."""
    name = job.task.name if job.task else "of the job"
    causes = (
        "the reference or get_inputs may never end"
        if hung
        else "either the reference ends its process, or this machine has too little memory for it"
    )
    return Result(job.id, error=f"the worker died while it prepared task {name} ({reason}): {causes}")


def silence_limit(job: Job) -> float:
    """Seconds for which a worker may send nothing while it runs this job.

    The sum covers the build and the baselines, which compile one after another, and ten calls.
    """
    options = job.options
    return _SLACK_SECONDS + (1 + len(options.baselines)) * options.build_timeout + 10 * options.call_timeout
