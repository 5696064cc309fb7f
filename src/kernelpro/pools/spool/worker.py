"""The working side of a spool: take jobs that suit this machine, have them done by warm workers, put results back.

One taker a device. It takes jobs of the task that its worker has warm first, then of tasks that nobody is at, then the rest; a few
ahead of time, so that they are built while others are timed, but no more than its share. Results are written as they are
found. The time that it is given is used and never overrun: no job is begun that would not end in time, as far as one can
tell from those before, and what is unfinished at the end goes back to the others.
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
from dataclasses import dataclass
from pathlib import Path

from kernelpro.lab.machine import Device
from kernelpro.pools.local import Pool, devices
from kernelpro.pools.spool import transfer
from kernelpro.pools.spool.entries import Posted, answer
from kernelpro.pools.spool.folder import Folder, Holder, Lease
from kernelpro.records import BadInput, Progress, Result

Say = Callable[[str], None]
_POLL_SECONDS = 1.0
_MOST_AHEAD = 8
_FIRST_GUESS = 60.0
"""Seconds that a job takes, as long as none has been done."""
_FAREWELL = 15.0
"""Seconds that ending may take: a worker is asked to clean up, then told to."""


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


def serve(path: Path, terms: Terms, say: Say, stop: threading.Event) -> int:
    """Work until there is nothing more, time is up or `stop` is set. How many jobs were done.

    `path` is a spool's folder, or one file with jobs: then results go to one file beside it.
    """
    results = None
    if path.is_file():
        folder = Folder(path.with_suffix(".spool"), say)
        merged = transfer.merge(folder, path)
        for text in merged.strange:
            say(text)
        results = path.with_suffix(".results.jsonl")
    elif path.is_dir():
        folder = Folder(path, say)
    else:
        raise BadInput(f"{path} is neither a folder nor a file: make the folder first, or check the name")
    deadline = time.monotonic() + terms.seconds - min(_FAREWELL, 0.1 * terms.seconds) if terms.seconds else math.inf
    takers = [_Taker(folder, device, terms, say, stop, deadline, results) for device in devices(match=terms.match)]
    threads = [threading.Thread(target=taker.run) for taker in takers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.1)
        if time.monotonic() > deadline:
            stop.set()
    _say_what_is_left(folder, takers, say)
    return sum(taker.done for taker in takers)


def _say_what_is_left(folder: Folder, takers: list[_Taker], say: Say) -> None:
    done = sum(taker.done for taker in takers)
    left, held = folder.open_jobs(), folder.holders()
    others = sum(posted.key in held for posted in left)
    foreign = sum(not any(folder.suits(posted, taker.device) for taker in takers) for posted in left)
    notes = [f"{others} with other workers"] * bool(others) + [f"{foreign} for other hardware"] * bool(foreign)
    say(f"{done} jobs done, {len(left)} left" + (f" ({', '.join(notes)})" if notes else ""))


@dataclass
class _Held:
    lease: Lease
    taken: float


class _Taker:
    def __init__(
        self, folder: Folder, device: Device, terms: Terms, say: Say, stop: threading.Event, deadline: float, results: Path | None
    ):
        self.device, self.done = device, 0
        self._folder, self._terms, self._stop, self._deadline, self._results = folder, terms, stop, deadline, results
        self._name = f"{socket.gethostname()}-{os.getpid()}" + (f"-{device.gpu.uuid[:12]}" if device.gpu else "")
        self._say: Say = lambda text: say(f"{self._name}: {text}")
        self._held: dict[str, _Held] = {}
        self._changed, self._ended = threading.Event(), threading.Event()
        self._group = ""
        """Of the task that the worker has warm."""
        self._longest = 0.0
        self._finished = time.monotonic()
        """When the last job was, and so when the one at hand began."""

    def run(self) -> None:
        presence = self._folder.attend(self._name, self._holder(self.device.name_for(None) or ""))
        threading.Thread(target=self._live, args=(presence,), daemon=True).start()
        try:
            with Pool(self._terms.sandbox, [self.device], say=self._say) as pool:
                self._work(pool)
        finally:
            self._ended.set()
            for held in list(self._held.values()):
                self._folder.release(held.lease)
            presence.unlink(missing_ok=True)

    def _holder(self, hardware: str) -> Holder:
        return Holder(self._name, hardware, self._terms.lease)

    def _live(self, presence: Path) -> None:
        """Signs of life, however busy everything else is."""
        while not self._ended.wait(self._terms.lease / 6):
            with contextlib.suppress(OSError):
                os.utime(presence)
            for held in list(self._held.values()):
                self._folder.renew(held.lease)

    def _work(self, pool: Pool) -> None:
        while not self._stop.is_set() and not pool.failed:
            taken = self._take(pool)
            if not self._held and not taken and (self._terms.once or not self._enough_time()):
                return
            self._changed.wait(_POLL_SECONDS)
            self._changed.clear()

    def _enough_time(self) -> bool:
        return time.monotonic() + 1.5 * (self._longest or _FIRST_GUESS) < self._deadline

    def _take(self, pool: Pool) -> int:
        """Take what there is, up to our share; how many."""
        if len(self._held) >= _MOST_AHEAD or not self._enough_time():
            return 0
        held = self._folder.holders()
        suiting = [p for p in self._folder.open_jobs() if p.key not in held and self._folder.suits(p, self.device)]
        share = math.ceil((len(suiting) + len(self._held)) / max(1, len(self._folder.workers())))
        wanted, taken = min(share, _MOST_AHEAD) - len(self._held), 0
        busy = {posted.group for key in held if (posted := self._folder.job(key))}
        for posted in sorted(suiting, key=lambda p: (p.group != self._group, p.group in busy)):
            if taken >= wanted:
                break
            if lease := self._folder.take(posted, self._holder(self._folder.suits(posted, self.device) or "")):
                taken += 1
                self._begin(pool, posted, lease)
        return taken

    def _begin(self, pool: Pool, posted: Posted, lease: Lease) -> None:
        if not self._held:
            self._finished = time.monotonic()
        self._held[posted.key] = _Held(lease, time.monotonic())
        self._group = posted.group or self._group
        self._say(f"takes {posted.words}")
        told = ""

        def progress(step: Progress) -> None:
            nonlocal told
            if step.stage != told:
                told = step.stage
                self._folder.tell(lease, told)
                self._say(f"{posted.words}: {told}")

        pool.submit(posted.job, progress).add_done_callback(lambda future: self._finish(posted, future))

    def _finish(self, posted: Posted, future: Future[Result]) -> None:
        held = self._held.pop(posted.key)
        if future.cancelled() or future.exception():
            self._folder.release(held.lease)  # the device failed: others may have more luck
            self._say(f"gives {posted.words} back")
        else:
            now = time.monotonic()
            seconds = now - max(held.taken, self._finished)
            self._longest, self._finished = max(self._longest, seconds), now
            entry = answer(posted, future.result(), self._name, held.lease.holder.hardware, seconds)
            if self._folder.keep(entry):
                self.done += 1
                if self._results:
                    transfer.append(self._results, entry)
                self._say(f"{posted.words}: {_summary(entry.result)} ({seconds:.1f} s)")
            else:
                self._say(f"{posted.words}: somebody else had a result before us")
        self._changed.set()


def _summary(result: Result) -> str:
    if result.verdict:
        return f"{result.verdict.status.value}: {result.verdict.reason}"
    return f"error: {result.error}" if result.error is not None else "done"
