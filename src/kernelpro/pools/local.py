"""The local pool: one warm worker process for each device of this machine.

A job goes to a worker that has its task warm, unless others have much less to do; all jobs of a task go to one kind of
hardware. Each worker does its jobs in the order of sending; those that wait have their builds started. A worker that dies, or
hangs beyond the time limits of its job, is replaced: the job it was at gets a second chance, those behind it are sent again. A
device that fails its health check gets no worker any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from kernelpro.lab import machine
from kernelpro.lab.machine import Device
from kernelpro.pools import pool
from kernelpro.pools.pool import Report, lost, silent
from kernelpro.pools.process import Process
from kernelpro.records import BadInput, Job, Progress, Result

_CHANCES = 2
"""Workers that may die over a job: the first may have been killed for reasons of its own."""
_MOST_SENT = 8
"""Jobs sent to one worker where there are several: enough to build ahead, few enough to share."""
_COLD = 2
"""A task that is not warm costs about as much as judging so many candidates."""
_SLACK_SECONDS = 120.0
"""For what has no limit of its own: starting, measuring the device, the oracle."""


class DeviceFailed(BadInput):
    """No device is left that a job could be done on."""


def devices(match: str = "", workers: int = 0) -> list[Device]:
    """One for each GPU, or the processor; only those whose name contains `match`. `workers`: so many, 0: as found."""
    found = [Device(gpu) for gpu in machine.gpus()]
    found = found[: workers or None] or [Device()] * max(1, workers)
    chosen = [device for device in found if match.lower() in (device.name_for(None) or "").lower()]
    if not chosen:
        there = ", ".join(sorted({device.name_for(None) or "" for device in found}))
        raise BadInput(f"--match {match}: no such device on this machine; there are {there}")
    return chosen


def run(jobs: Iterable[Job], progress: Report = silent, sandbox: str = "auto") -> Iterator[Result]:
    """Results in the order of the jobs."""
    with Pool(sandbox) as here:
        yield from pool.run(here, jobs, progress)


@dataclass
class _Asked:
    key: str
    """A number of our own: jobs of several callers may share an id."""
    job: Job
    progress: Report
    answer: Future[Result]
    deaths: int = 0
    begun: bool = False


@dataclass
class _Slot:
    """A device and its worker, which starts with the first job."""

    device: Device
    process: Process | None = None
    sent: dict[str, _Asked] = field(default_factory=dict)
    """In the order of sending."""
    task: str = ""
    """What it has warm, or will have."""
    heard: float = 0.0
    """When its worker last gave a sign of life, or was given something to do."""
    hung: str = ""
    failed: bool = False


class Pool(pool.Pool):
    """See the module. `say` hears of devices that fail."""

    def __init__(self, sandbox: str = "auto", on: Sequence[Device] | None = None, say: Callable[[str], None] = lambda line: None):
        self._sandbox, self._say = sandbox, say
        self._lock = threading.RLock()
        self._slots = [_Slot(device) for device in on or devices()]
        self._waiting: list[_Asked] = []
        self._hardware: dict[tuple[str, str], str] = {}
        """By task and target: what it is timed on."""
        self._count = 0
        self._closing = threading.Event()
        self._watch: threading.Thread | None = None

    def submit(self, job: Job, progress: Report = silent) -> Future[Result]:
        """Its result comes as it is done. A job that has not been sent to a worker can be cancelled."""
        with self._lock:
            self._count += 1
            asked = _Asked(str(self._count), job, progress, Future())
            self._waiting.append(asked)
            self._dispatch()
            if self._watch is None:
                self._watch = threading.Thread(target=self._watch_workers, daemon=True)
                self._watch.start()
        return asked.answer

    @property
    def outstanding(self) -> int:
        with self._lock:
            return len(self._waiting) + sum(len(slot.sent) for slot in self._slots)

    @property
    def failed(self) -> bool:
        """Whether no device is left."""
        return all(slot.failed for slot in self._slots)

    # --- who does what ---------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Send what can be sent; the lock is held."""
        for asked in list(self._waiting):
            if self._closing.is_set():
                return
            able = [slot for slot in self._slots if not slot.failed and self._suits(slot, asked.job)]
            if not able:
                self._waiting.remove(asked)
                asked.answer.set_exception(DeviceFailed("every device failed its health check: see above; restart the machine"))
                continue
            free = [slot for slot in able if len(self._slots) == 1 or len(slot.sent) < _MOST_SENT]
            if free:
                task = asked.job.task.id if asked.job.task else ""
                chosen = min(free, key=lambda slot: len(slot.sent) + _COLD * (slot.task != task))
                self._waiting.remove(asked)
                if asked.begun or asked.answer.set_running_or_notify_cancel():
                    asked.begun = True
                    self._send(chosen, asked, task)

    def _suits(self, slot: _Slot, job: Job) -> bool:
        """A job for hardware that is not here suits anybody: it gets its error from a worker."""
        name = slot.device.name_for(job.target)
        if not job.task or name is None:
            return True
        return self._hardware.get((job.task.id, job.target or ""), name) == name

    def _send(self, slot: _Slot, asked: _Asked, task: str) -> None:
        if not slot.sent:
            slot.heard = time.monotonic()
        slot.sent[asked.key] = asked
        slot.task = task or slot.task
        if task and (name := slot.device.name_for(asked.job.target)):
            self._hardware.setdefault((task, asked.job.target or ""), name)
        if slot.process is None:
            slot.process, slot.hung = Process(slot.device, self._sandbox), ""
            threading.Thread(target=self._listen, args=(slot, slot.process), daemon=True).start()
        slot.process.send(replace(asked.job, id=asked.key))

    # --- what they say ---------------------------------------------------------------------------------

    def _listen(self, slot: _Slot, process: Process) -> None:
        for record in process.records():
            slot.heard = time.monotonic()
            asked = slot.sent.get(record.job)
            if asked is None:
                continue
            if isinstance(record, Progress):
                asked.progress(Progress(asked.job.id, record.stage))
            else:
                with self._lock:
                    del slot.sent[record.job]
                    self._dispatch()
                asked.answer.set_result(replace(record, job=asked.job.id))
        self._bury(slot, process)

    def _bury(self, slot: _Slot, process: Process) -> None:
        how = slot.hung or process.how_it_died()
        with self._lock:
            process.close()
            slot.process, slot.task = None, ""
            if self._closing.is_set():
                return
            if process.blames_the_device:
                slot.failed = True
                self._say(f"{slot.device.label} failed its health check and is not used any more")
            unanswered = list(slot.sent.values())
            slot.sent.clear()
            victim = unanswered[0] if unanswered else None
            if victim:
                victim.deaths += 1
                alone = not any(other for other in self._slots if not other.failed and self._suits(other, victim.job))
                if victim.deaths < _CHANCES and not alone:
                    victim = None
            self._waiting[:0] = [asked for asked in unanswered if asked is not victim]
            self._dispatch()
        if victim:
            victim.answer.set_result(lost(victim.job, f"the worker died while it was at this job ({how})"))

    def _watch_workers(self) -> None:
        """Kill those that have been silent for longer than their job allows."""
        while not self._closing.wait(1.0):
            with self._lock:
                busy = [(slot, slot.process, next(iter(slot.sent.values())).job) for slot in self._slots if slot.sent]
            for slot, process, job in busy:
                silence = time.monotonic() - slot.heard
                if process and silence > patience(job):
                    slot.hung = f"it gave no sign of life for {silence:.0f} s and was killed"
                    process.kill()

    def close(self) -> None:
        """Let the workers clean up and go, at once where they are at a job."""
        self._closing.set()
        with self._lock:
            ending = [(slot.process, bool(slot.sent)) for slot in self._slots if slot.process]
        threads = [threading.Thread(target=process.end, args=(busy,)) for process, busy in ending]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def patience(job: Job) -> float:
    """Seconds that a worker may be silent at this job: its baselines compile one after another, and its calls have limits."""
    options = job.options
    return _SLACK_SECONDS + (1 + len(options.baselines)) * options.build_timeout + 10 * options.call_timeout
