"""The local pool: one warm worker process for each device of this machine.

A job goes to a worker that has its task warm, unless others have much less to do; all jobs of a task go to one kind of
hardware. Each worker has a few jobs and does them in the order of sending; those that wait have their builds started. The rest
waits here and can be cancelled.

What is at hand goes first, then what has waited longest. After 32 jobs of one task a worker turns to another that waits and that
nobody is at; when it comes back it stays twice as long. It does not leave a task of which a run will ask more in a moment (see
waiting.py).

A worker that dies, or hangs beyond the time limits of its job, is replaced: the job it was at gets a second chance, those behind
it are sent again. A device that fails its health check gets no worker any more, and the job that it failed after no second
device.
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
from kernelpro.pools.waiting import Asked, Queues, Runs, Turns, Worker
from kernelpro.records import BadInput, Job, Progress, Result

_CHANCES = 2
"""Workers that may die over a job: the first may have been killed for reasons of its own."""
_MOST_SENT = 8
"""Jobs sent to one worker: enough to build ahead, few enough to share and to cancel."""
_TURN = 32
"""Jobs of a task in a row while others wait."""
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
class _Slot(Worker):
    """A device and its worker, which starts with the first job."""

    device: Device
    process: Process | None = None
    sent: dict[str, Asked] = field(default_factory=dict)
    """In the order of sending."""
    heard: float = 0.0
    """When its worker last gave a sign of life, or was given something to do."""
    hung: str = ""
    failed: bool = False


class Pool(pool.Pool):
    """See the module. `say` hears of devices that fail."""

    def __init__(
        self,
        sandbox: str = "auto",
        on: Sequence[Device] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ):
        self._sandbox, self._say = sandbox, say
        self._lock = threading.RLock()
        self._slots = [_Slot(device) for device in on or devices()]
        self._waiting, self._turns, self._runs = Queues(), Turns(_TURN), Runs()
        self._hardware: dict[tuple[str, str], str] = {}
        """By task and target: what it is timed on."""
        self._count = 0
        self._closing = threading.Event()
        self._watch: threading.Thread | None = None

    def submit(self, job: Job, progress: Report = silent) -> Future[Result]:
        """Its result comes as it is done. A job that has not been sent to a worker can be cancelled."""
        with self._lock:
            self._count += 1
            asked = Asked(str(self._count), job, progress, time.monotonic())
            self._runs.asked(asked)
            self._waiting.put(asked)
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
        if any(slot.failed for slot in self._slots):
            self._refuse_what_nobody_can_do()
        while not self._closing.is_set():
            free = [slot for slot in self._slots if not slot.failed and len(slot.sent) < _MOST_SENT]
            offers = (
                [(asked, slot) for asked in self._waiting.first() if (slot := self._best_for(asked, free))]
                if free
                else []
            )
            if not offers:
                return
            warm = {slot.task for slot in self._slots}
            asked, slot = min(offers, key=lambda offer: self._rank(offer[0], offer[1], warm))
            self._waiting.take(asked)
            if asked.begin():
                self._send(slot, asked)

    def _best_for(self, asked: Asked, free: list[_Slot]) -> _Slot | None:
        able = (slot for slot in free if self._suits(slot, asked.job) and not self._stays_away(slot, asked))
        return min(able, key=lambda slot: len(slot.sent) + _COLD * (slot.task != asked.task), default=None)

    def _stays_away(self, slot: _Slot, asked: Asked) -> bool:
        """Where it would have to leave what it has warm too soon, or is busy and has nothing to build for the job."""
        if asked.task in ("", slot.task) or self._turns.over(slot):
            return False
        early = bool(slot.sent) and asked.job.candidate is None
        return early or self._runs.hold(slot, bool(slot.sent), time.monotonic())

    def _rank(self, asked: Asked, slot: _Slot, warm: set[str]) -> tuple[int, float]:
        at_hand = asked.task in ("", slot.task)
        if self._turns.over(slot):
            return (1 if at_hand else 2 * (asked.task in warm)), asked.since
        return (0 if at_hand else 1), asked.since

    def _refuse_what_nobody_can_do(self) -> None:
        for first in self._waiting.first():
            able = [slot for slot in self._slots if self._suits(slot, first.job)]
            if all(slot.failed for slot in able):
                names = ", ".join(f"{slot.device.name_for(None)} {slot.device.label}" for slot in able)
                why = f"every device for this job failed its health check ({names}): see above; restart the machine"
                for asked in self._waiting.drop(first.kind):
                    asked.refuse(DeviceFailed(why))

    def _suits(self, slot: _Slot, job: Job) -> bool:
        """A job for hardware that is not here suits anybody: it gets its error from a worker."""
        name = slot.device.name_for(job.target)
        if not job.task or name is None:
            return True
        return self._hardware.get((job.task.id, job.target or ""), name) == name

    def _send(self, slot: _Slot, asked: Asked) -> None:
        if not slot.sent:
            slot.heard = time.monotonic()
        slot.sent[asked.key] = asked
        self._turns.sent(slot, asked, self._waiting)
        if asked.task and (name := slot.device.name_for(asked.job.target)):
            self._hardware.setdefault(asked.kind, name)
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
                    slot.rests_since = slot.heard
                    self._dispatch()
                asked.answer.set_result(replace(record, job=asked.job.id))
        self._bury(slot, process)

    def _bury(self, slot: _Slot, process: Process) -> None:
        how = slot.hung or process.how_it_died()
        with self._lock:
            process.close()
            slot.process, slot.task, slot.run = None, "", 0
            if self._closing.is_set():
                return
            if process.blames_the_device:
                slot.failed = True
                self._say(f"{slot.device.label} failed its health check and is not used any more")
                how = f"{slot.device.label} failed its health check"
            unanswered = list(slot.sent.values())
            slot.sent.clear()
            victim = unanswered[0] if unanswered else None
            if victim:
                victim.deaths += 1
                if victim.deaths < _CHANCES and not slot.failed:
                    victim = None
            self._waiting.put_back(asked for asked in unanswered if asked is not victim)
            self._dispatch()
        if victim:
            victim.answer.set_result(lost(victim.job, f"the worker died while it was at this job ({how})"))

    def _watch_workers(self) -> None:
        """Kill those that have been silent for longer than their job allows; find work for those that have waited for a moment."""
        while not self._closing.wait(1.0):
            with self._lock:
                self._dispatch()
                busy = [
                    (slot, slot.process, next(iter(slot.sent.values())).job)
                    for slot in self._slots
                    if slot.sent
                ]
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
