"""The working side of a spool: take jobs that suit this machine, have them done by warm workers, put results back.

One taker a device. It takes jobs of the task that its worker has warm first, then of tasks that nobody is at, then the rest; a few
ahead of time, so that they are built while others are timed, but no more than its share. Results are written as they are
found. The time that it is given is used and never overrun: no job is begun that would not end in time, as far as one can
tell from those before, and what is unfinished at the end goes back to the others. A file system that fails for a while is waited
for: what is done meanwhile is written afterwards.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from kernelpro.lab.machine import Device
from kernelpro.pools.local import Pool, devices
from kernelpro.pools.spool import able, transfer
from kernelpro.pools.spool.entries import Posted, answer, failure
from kernelpro.pools.spool.folder import Folder, Holder, Lease
from kernelpro.records import BadInput, Progress, Result

Say = Callable[[str], None]
_POLL_SECONDS = 1.0
_MOST_AHEAD = 8
_FIRST_GUESS = 60.0
"""Seconds that a job takes, as long as none has been done."""
_BEGUN = "begun"
"""The stage of a job that has told none yet."""
_MARGIN = 1.5
"""A job may take so much longer than those before."""
_FAREWELL = 15.0
"""Seconds that ending may take: a worker is asked to clean up, then told to."""
_PATIENCE = 3
"""Times the lease, for a file system that fails: long before that others have our jobs."""


@dataclass(frozen=True)
class Terms:
    """How somebody works."""

    once: bool = False
    """End when there is nothing more to do here."""
    seconds: float = 0.0
    """End after so long; 0: never."""
    lease: float = 120.0
    """Seconds after which the others may take us for dead."""
    sandbox: str = "auto"
    match: str = ""
    """Only devices whose name contains this."""


def serve(path: Path, terms: Terms, say: Say, stop: threading.Event) -> bool:
    """Work until there is nothing more, time is up or `stop` is set. Whether it ended as it should.

    `path` is a spool's folder, or one file with jobs: then results go to one file beside it.
    """
    deadline = time.monotonic() + _usable(terms.seconds) if terms.seconds else math.inf
    jobs = _jobs_of(path)
    on = devices(match=terms.match)
    able.check(on)
    folder, results = Folder(path.with_suffix(".spool") if jobs else path, say), None
    if jobs:
        results = path.with_suffix(".results.jsonl")
        _lay_out(folder, path, jobs, results, say)
    takers = [_Taker(folder, device, terms, say, stop, deadline, results) for device in on]
    threads = [threading.Thread(target=taker.run) for taker in takers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.1)
        if time.monotonic() > deadline:
            stop.set()
    try:
        _say_what_is_left(folder, takers, terms, say)
        if results:
            say(f"{transfer.collect(folder, jobs, results)} results in {results}")
    except OSError as error:
        say(f"{folder.path} cannot be read: {error}")
        return False
    return all(taker.well for taker in takers)


def _usable(seconds: float) -> float:
    return seconds - min(_FAREWELL, 0.1 * seconds)


def _jobs_of(path: Path) -> list[Posted]:
    """Of a file; none for a spool, or a folder that can become one."""
    if path.is_file():
        return transfer.asked(path)
    if not path.is_dir():
        raise BadInput(f"{path} is neither a folder nor a file: make the folder first, or check the name")
    if not (path / "jobs").is_dir() and os.listdir(path):
        raise BadInput(f"{path} is no spool: it has no folder `jobs`, and it is not empty")
    return []


def _lay_out(folder: Folder, path: Path, jobs: list[Posted], results: Path, say: Say) -> None:
    """The spool of a file: its jobs alone, and what was found for them before, except failures, since those are asked again."""
    for text in transfer.merge(folder, path).strange:
        say(text)
    if results.exists():
        transfer.merge(folder, results)
    keys = {posted.key for posted in jobs}
    for posted in folder.open_jobs():
        if posted.key not in keys:
            folder.withdraw(posted)
    for posted in jobs:
        if (found := folder.answered(posted.key)) and failure(found.result):
            folder.reopen(posted, found)
    transfer.collect(folder, jobs, results)


def _say_what_is_left(folder: Folder, takers: list[_Taker], terms: Terms, say: Say) -> None:
    done = sum(taker.done for taker in takers)
    left, held = folder.open_jobs(), folder.holders()
    others = sum(posted.key in held for posted in left)
    foreign = sum(not any(folder.suits(posted, taker.device) for taker in takers) for posted in left)
    notes = [f"{others} with other workers"] * bool(others) + [f"{foreign} for other hardware"] * bool(
        foreign
    )
    say(f"{done} jobs done, {len(left)} left" + (f" ({', '.join(notes)})" if notes else ""))
    first = _MARGIN * _FIRST_GUESS
    if terms.seconds and not done and len(left) > others + foreign and _usable(terms.seconds) <= first:
        enough = first + 2 * _FAREWELL
        say(
            f"--seconds {terms.seconds:g} is too short to begin: a first job may take {first:.0f} s; give {enough:.0f} or more"
        )


@dataclass
class _Held:
    lease: Lease
    taken: float
    answer: Future[Result] = field(default_factory=Future)
    ended: float = 0.0
    stage: str = ""


class _Taker:
    def __init__(
        self,
        folder: Folder,
        device: Device,
        terms: Terms,
        say: Say,
        stop: threading.Event,
        deadline: float,
        results: Path | None,
    ):
        self.device, self.done, self.well = device, 0, False
        self._folder, self._terms, self._stop, self._deadline, self._results = (
            folder,
            terms,
            stop,
            deadline,
            results,
        )
        self._name = f"{socket.gethostname()}-{os.getpid()}" + (
            f"-{device.gpu.uuid[:12]}" if device.gpu else ""
        )
        self._place = f"{socket.gethostname()}-{device.label}"
        self._say: Say = lambda text: say(f"{self._name}: {text}")
        self._held: dict[str, _Held] = {}
        self._changed, self._ended = threading.Event(), threading.Event()
        self._telling = threading.Lock()
        self._presence: Path | None = None
        self._reached = time.monotonic()
        """When the folder could be used last."""
        self._troubled = False
        self._group = ""
        """Of the task that the worker has warm."""
        self._longest = 0.0
        self._finished = time.monotonic()
        """When the last job was, and so when the one at hand began."""

    def run(self) -> None:
        threading.Thread(target=self._live, daemon=True).start()
        try:
            with Pool(self._terms.sandbox, [self.device], say=self._say) as pool:
                self.well = self._work(pool)
        except BadInput as error:
            self._say(str(error))
        finally:
            self._leave()
            self._ended.set()

    def _leave(self) -> None:
        """What is done is kept, and the rest given back."""
        try:
            self._settle()
            for held in self._held.values():
                self._folder.release(held.lease)
            if self._presence:
                self._presence.unlink(missing_ok=True)
        except OSError as error:
            self.well = False
            self._say(f"cannot give its jobs back: {error}")

    def _holder(self, hardware: str, stage: str = "") -> Holder:
        return Holder(self._name, hardware, self._terms.lease, stage)

    def _live(self) -> None:
        """Signs of life, however busy everything else is."""
        while not self._ended.wait(self._terms.lease / 6):
            if self._presence:
                with contextlib.suppress(OSError):
                    os.utime(self._presence)
            for held in list(self._held.values()):
                self._folder.renew(held.lease)

    def _work(self, pool: Pool) -> bool:
        """Whether it ended as it should."""
        while not self._stop.is_set():
            try:
                self._settle()
                self._mark()
                if pool.failed and not self._held:
                    return self._report_sick()
                self._attend()
                taken = 0 if pool.failed else self._take(pool)
                self._reached, self._troubled = time.monotonic(), False
                if not (self._held or taken or pool.failed) and (self._terms.once or not self._enough_time()):
                    return True
            except OSError as error:
                if self._lost_patience(error):
                    return False
            self._changed.wait(_POLL_SECONDS)
            self._changed.clear()
        return True

    def _attend(self) -> None:
        if self._presence is None:
            self._presence = self._folder.attend(self._name, self._holder(self.device.name_for(None) or ""))
            self._folder.forget_sick(self._place)

    def _report_sick(self) -> bool:
        told = self._holder(self.device.name_for(None) or "", "it failed its health check")
        self._folder.report_sick(self._place, told)
        return False

    def _lost_patience(self, error: OSError) -> bool:
        """A network file system may fail for a moment; one that does not come back is told once more."""
        if not self._troubled:
            self._troubled = True
            self._say(f"the spool cannot be used: {error}; trying again")
        patience = _PATIENCE * self._terms.lease
        if time.monotonic() - self._reached <= patience:
            return False
        self._say(f"gives up: the spool could not be used for {patience:.0f} s")
        return True

    def _enough_time(self) -> bool:
        return time.monotonic() + _MARGIN * (self._longest or _FIRST_GUESS) < self._deadline

    def _take(self, pool: Pool) -> int:
        """Take what there is, up to our share; how many."""
        if len(self._held) >= _MOST_AHEAD or not self._enough_time():
            return 0
        held = self._folder.holders()
        suiting = [
            p for p in self._folder.open_jobs() if p.key not in held and self._folder.suits(p, self.device)
        ]
        share = math.ceil((len(suiting) + len(self._held)) / max(1, len(self._folder.workers())))
        wanted, taken = min(share, _MOST_AHEAD) - len(self._held), 0
        busy = {posted.group for key in held if (posted := self._folder.job(key))}
        for posted in sorted(suiting, key=lambda p: (p.group != self._group, p.group in busy)):
            if taken >= wanted:
                break
            if lease := self._folder.take(
                posted, self._holder(self._folder.suits(posted, self.device) or "")
            ):
                taken += 1
                self._begin(pool, posted, lease)
        return taken

    def _begin(self, pool: Pool, posted: Posted, lease: Lease) -> None:
        if not self._held:
            self._finished = time.monotonic()
        held = self._held[posted.key] = _Held(lease, time.monotonic())
        self._group = posted.group or self._group
        self._say(f"takes {posted.words}")
        self._mark()

        def progress(step: Progress) -> None:
            if step.stage != held.stage:
                self._tell(held, step.stage)
                self._say(f"{posted.words}: {step.stage}")

        def end(_: Future[Result]) -> None:
            held.ended = time.monotonic()
            self._changed.set()

        held.answer = pool.submit(posted.job, progress)
        held.answer.add_done_callback(end)

    def _mark(self) -> None:
        """Jobs are done in the order of taking: the first that is not done has begun, whether it tells its stages or not."""
        first = next((held for held in self._held.values() if not held.answer.done()), None)
        if first and not first.stage:
            self._tell(first, _BEGUN)

    def _tell(self, held: _Held, stage: str) -> None:
        with self._telling:
            if stage != _BEGUN or not held.stage:
                held.stage = stage
                self._folder.tell(held.lease, stage)

    def _settle(self) -> None:
        """Write down what has been found. What cannot be written is still held, and tried again."""
        for held in [held for held in self._held.values() if held.answer.done()]:
            posted, hardware = held.lease.posted, held.lease.holder.hardware
            bound = self._folder.hardware(posted)
            if held.answer.cancelled() or held.answer.exception():
                self._folder.release(held.lease)  # the device failed: others may have more luck
                self._say(f"gives {posted.words} back")
            elif bound not in ("", hardware):
                self._folder.release(held.lease)
                self._say(f"gives {posted.words} back: its task was begun on {bound}")
            else:
                self._keep(held, posted, hardware)
            del self._held[posted.key]

    def _keep(self, held: _Held, posted: Posted, hardware: str) -> None:
        ended = held.ended or time.monotonic()
        seconds = ended - max(held.taken, self._finished)
        entry = answer(posted, held.answer.result(), self._name, hardware, seconds)
        if not self._folder.keep(entry):
            self._say(f"{posted.words}: somebody else had a result before us")
        else:
            self.done += 1
            if self._results:
                with contextlib.suppress(OSError):  # it is written again at the end
                    transfer.append(self._results, entry)
            self._say(f"{posted.words}: {_summary(entry.result)} ({seconds:.1f} s)")
        self._longest, self._finished = max(self._longest, seconds), ended


def _summary(result: Result) -> str:
    if result.verdict:
        return f"{result.verdict.status.value}: {result.verdict.reason}"
    return f"error: {result.error}" if result.error is not None else "done"
