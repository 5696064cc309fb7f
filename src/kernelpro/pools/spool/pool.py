"""The asking side of a spool: jobs are put into the folder, results are looked for there.

A job that was asked for before, by this process or by one that was killed, is found again by its key, and so is its
result. Nothing is judged twice; whoever wants a second measurement uses another folder. An error is no result to keep:
it is handed out once, and asked again, the job is done again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from kernelpro.pools.pool import Outstanding, Pool, Report, silent
from kernelpro.pools.spool.entries import Posted, addressed, post
from kernelpro.pools.spool.folder import Folder
from kernelpro.records import Job, Progress, Result

_POLL_SECONDS = 0.5
_TIDY_EVERY = 10
"""Polls."""


@dataclass
class _Asked:
    posted: Posted
    job: Job
    progress: Report
    answer: Future[Result]
    stage: str = ""


class Spool(Pool):
    """With `wait`, futures are fulfilled as results appear; without, what is not there is `Outstanding`."""

    def __init__(self, path: Path, wait: bool = True, match: str = "", say: Callable[[str], None] = lambda line: None):
        self._folder = Folder(path, say)
        self._folder.tidy()
        self._wait, self._match = wait, match
        self._lock = threading.Lock()
        self._asked: list[_Asked] = []
        self._missing: set[str] = set()
        """Keys of jobs that this process asked for and that have no result."""
        self._closing = threading.Event()
        self._watch: threading.Thread | None = None

    def submit(self, job: Job, progress: Report = silent) -> Future[Result]:
        asked = _Asked(post(job, self._match), job, progress, Future())
        self._folder.put(asked.posted)
        if self._find(asked):
            return asked.answer
        self._missing.add(asked.posted.key)
        if not self._wait:
            asked.answer.set_exception(Outstanding(f"{asked.posted.words} waits in {self._folder.path}"))
            return asked.answer
        with self._lock:
            self._asked.append(asked)
            if self._watch is None:
                self._watch = threading.Thread(target=self._look, daemon=True)
                self._watch.start()
        return asked.answer

    @property
    def outstanding(self) -> int:
        return len(self._missing)

    def close(self) -> None:
        """What was asked for stays asked for."""
        self._closing.set()
        if self._watch:
            self._watch.join()

    def _find(self, asked: _Asked) -> bool:
        """Hand over the result where there is one."""
        found = self._folder.answered(asked.posted.key)
        if found is None:
            return False
        if found.result.error is not None:
            path = self._folder.path / "results" / f"{found.key}.json"
            self._folder.set_aside(path, f"{asked.posted.words} could not be done: {found.result.error}")
        self._missing.discard(asked.posted.key)
        if asked.answer.set_running_or_notify_cancel():
            asked.answer.set_result(addressed(found.result, asked.job))
        return True

    def _look(self) -> None:
        polls = 0
        while not self._closing.wait(_POLL_SECONDS):
            polls += 1
            if polls % _TIDY_EVERY == 0:
                self._folder.tidy()
            with self._lock:
                waiting = list(self._asked)
            done = [asked for asked in waiting if self._find(asked)]
            with self._lock:
                self._asked = [asked for asked in self._asked if asked not in done]
            self._follow([asked for asked in waiting if asked not in done])

    def _follow(self, waiting: list[_Asked]) -> None:
        """Tell the askers how far their jobs are, where that has changed."""
        holders = self._folder.holders() if waiting else {}
        for asked in waiting:
            holder = holders.get(asked.posted.key)
            stage = f"{holder.stage or 'taken'} ({holder.worker})" if holder else "waiting for a worker"
            if stage != asked.stage:
                asked.stage = stage
                asked.progress(Progress(asked.job.id, stage))
