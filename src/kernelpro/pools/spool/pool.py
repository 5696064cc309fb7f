"""The asking side of a spool: jobs are put into the folder, results are looked for there.

A job that was asked for before, by this process or by one that was killed, is found again by its key, and so is its
result. Nothing is judged twice; whoever wants a second measurement uses another folder. An error, or the death of all who
were at a job, is no result to keep: it is handed out once, and asked again, the job is done again. A job that is cancelled goes,
unless somebody is at it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from kernelpro.pools.pool import Outstanding, Pool, Report, silent
from kernelpro.pools.spool.entries import Posted, addressed, failure, post
from kernelpro.pools.spool.folder import Folder
from kernelpro.records import BadInput, Job, Progress, Result

_POLL_SECONDS = 0.5
_TIDY_EVERY = 10
"""Polls."""
_PATIENCE_SECONDS = 600.0
"""How long a folder may be out of reach."""


@dataclass
class _Asked:
    posted: Posted
    job: Job
    progress: Report
    answer: Future[Result]
    stage: str = ""


class Spool(Pool):
    """With `wait`, futures are fulfilled as results appear; without, what is not there is `Outstanding`."""

    def __init__(
        self, path: Path, wait: bool = True, match: str = "", say: Callable[[str], None] = lambda line: None
    ):
        self._folder = Folder(path, say)
        self._folder.tidy()
        self._wait, self._match, self._say = wait, match, say
        self._lock = threading.Lock()
        self._asked: list[_Asked] = []
        self._missing: set[str] = set()
        """Keys of jobs that this process asked for and that have no result."""
        self._sick: set[str] = set()
        """Workers whose devices were reported."""
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def submit(self, job: Job, progress: Report = silent) -> Future[Result]:
        asked = _Asked(post(job, self._match), job, progress, Future())
        try:
            self._folder.put(asked.posted)
            if self._find(asked):
                return asked.answer
        except OSError as error:
            raise self._out_of_reach(error) from None
        self._missing.add(asked.posted.key)
        if not self._wait:
            asked.answer.set_exception(Outstanding(f"{asked.posted.words} waits in {self._folder.path}"))
            return asked.answer
        asked.answer.add_done_callback(lambda future: self._forget(asked) if future.cancelled() else None)
        with self._lock:
            self._asked.append(asked)
            if self._watch.ident is None:
                self._watch.start()
        return asked.answer

    @property
    def outstanding(self) -> int:
        return len(self._missing)

    def close(self) -> None:
        """What was asked for stays asked for."""
        self._closing.set()
        if self._watch.is_alive():  # whoever was interrupted may not have started it
            self._watch.join()

    def _find(self, asked: _Asked) -> bool:
        """Hand over the result where there is one."""
        found = self._folder.answered(asked.posted.key)
        if found is None:
            return False
        if failure(found.result):
            self._folder.reopen(asked.posted, found)
            self._folder.withdraw(asked.posted)  # nobody is to do it again unasked
        self._missing.discard(asked.posted.key)
        if asked.answer.set_running_or_notify_cancel():
            asked.answer.set_result(addressed(found.result, asked.job))
        return True

    def _forget(self, asked: _Asked) -> None:
        """It was cancelled."""
        with self._lock:
            self._asked = [other for other in self._asked if other is not asked]
            wanted = any(other.posted.key == asked.posted.key for other in self._asked)
        if not wanted:
            self._missing.discard(asked.posted.key)
            with contextlib.suppress(OSError):
                self._folder.withdraw(asked.posted)

    def _look(self) -> None:
        polls, reached, told = 0, time.monotonic(), False
        while not self._closing.wait(_POLL_SECONDS):
            polls += 1
            with self._lock:
                self._asked = [asked for asked in self._asked if not asked.answer.done()]
                waiting = list(self._asked)
            try:
                if polls % _TIDY_EVERY == 0:
                    self._tidy(waiting)
                self._follow([asked for asked in waiting if not self._find(asked)])
                reached, told = time.monotonic(), False
            except OSError as error:
                if not told:
                    self._say(f"{self._out_of_reach(error)}; trying again")
                    told = True
                if time.monotonic() - reached > _PATIENCE_SECONDS:
                    self._give_up(waiting, self._out_of_reach(error))

    def _tidy(self, waiting: list[_Asked]) -> None:
        self._folder.tidy()
        for asked in waiting:
            if not asked.answer.done():
                self._folder.put(
                    asked.posted
                )  # it may have been damaged, or withdrawn by another who asked for it
        for holder in self._folder.sick():
            if holder.worker not in self._sick:
                self._sick.add(holder.worker)
                self._say(f"{holder.worker} ({holder.hardware}) works no more: {holder.stage}")

    def _give_up(self, waiting: list[_Asked], why: BadInput) -> None:
        for asked in waiting:
            if not asked.answer.done() and asked.answer.set_running_or_notify_cancel():
                asked.answer.set_exception(why)

    def _out_of_reach(self, error: OSError) -> BadInput:
        return (
            error
            if isinstance(error, BadInput)
            else BadInput(f"spool:{self._folder.path} cannot be used: {error.strerror}")
        )

    def _follow(self, waiting: list[_Asked]) -> None:
        """Tell the askers how far their jobs are, where that has changed."""
        holders = self._folder.holders() if waiting else {}
        for asked in waiting:
            holder = holders.get(asked.posted.key)
            stage = f"{holder.stage or 'taken'} ({holder.worker})" if holder else "waiting for a worker"
            if stage != asked.stage:
                asked.stage = stage
                asked.progress(Progress(asked.job.id, stage))
