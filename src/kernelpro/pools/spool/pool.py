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

from kernelpro.pools.pool import ResultPending, Pool, ProgressCallback, ignore_progress
from kernelpro.pools.spool.entries import JobEntry, result_for, failure_reason, job_entry
from kernelpro.pools.spool.folder import SpoolFolder
from kernelpro.records import BadInput, Job, Progress, Result

_POLL_SECONDS = 0.5
_REPAIR_EVERY = 10
"""Polls."""
_UNREACHABLE_SECONDS = 600.0
"""How long a folder may be out of reach."""


@dataclass
class _SpoolJob:
    entry: JobEntry
    job: Job
    progress: ProgressCallback
    future: Future[Result]
    stage: str = ""


class SpoolPool(Pool):
    """With `wait`, futures are fulfilled as results appear; without, what is not there is `Outstanding`."""

    def __init__(
        self, path: Path, wait: bool = True, gpu_name: str = "", warn: Callable[[str], None] = lambda line: None
    ):
        self._folder = SpoolFolder(path, warn)
        self._folder.adopt_stray_results()
        self._wait, self._gpu_name, self._warn = wait, gpu_name, warn
        self._lock = threading.Lock()
        self._waiting: list[_SpoolJob] = []
        self._missing: set[str] = set()
        """Keys of jobs that this process asked for and that have no result."""
        self._reported_devices: set[str] = set()
        """Workers whose devices were reported."""
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._poll, daemon=True)

    def submit(self, job: Job, progress: ProgressCallback = ignore_progress) -> Future[Result]:
        asked = _SpoolJob(job_entry(job, self._gpu_name), job, progress, Future())
        try:
            self._folder.add_job(asked.entry)
            if self._deliver(asked):
                return asked.future
        except OSError as error:
            raise self._access_error(error) from None
        self._missing.add(asked.entry.key)
        if not self._wait:
            asked.future.set_exception(ResultPending(f"{asked.entry.description} waits in {self._folder.path}"))
            return asked.future
        asked.future.add_done_callback(lambda future: self._cancel(asked) if future.cancelled() else None)
        with self._lock:
            self._waiting.append(asked)
            if self._watcher.ident is None:
                self._watcher.start()
        return asked.future

    @property
    def pending_jobs(self) -> int:
        return len(self._missing)

    def close(self) -> None:
        """What was asked for stays asked for."""
        self._closing.set()
        if self._watcher.is_alive():  # whoever was interrupted may not have started it
            self._watcher.join()

    def _deliver(self, waiting: _SpoolJob) -> bool:
        """Hand over the result where there is one."""
        entry = self._folder.result(waiting.entry.key)
        if entry is None:
            return False
        if failure_reason(entry.result):
            self._folder.reopen(waiting.entry, entry)
            self._folder.remove_job(waiting.entry)  # nobody is to do it again unasked
        self._missing.discard(waiting.entry.key)
        if waiting.future.set_running_or_notify_cancel():
            waiting.future.set_result(result_for(entry.result, waiting.job))
        return True

    def _cancel(self, cancelled: _SpoolJob) -> None:
        """It was cancelled."""
        with self._lock:
            self._waiting = [other for other in self._waiting if other is not cancelled]
            wanted = any(other.entry.key == cancelled.entry.key for other in self._waiting)
        if not wanted:
            self._missing.discard(cancelled.entry.key)
            with contextlib.suppress(OSError):
                self._folder.remove_job(cancelled.entry)

    def _poll(self) -> None:
        polls, reached, reported = 0, time.monotonic(), False
        while not self._closing.wait(_POLL_SECONDS):
            polls += 1
            with self._lock:
                self._waiting = [asked for asked in self._waiting if not asked.future.done()]
                waiting = list(self._waiting)
            try:
                if polls % _REPAIR_EVERY == 0:
                    self._repair(waiting)
                self._report_stages([asked for asked in waiting if not self._deliver(asked)])
                reached, reported = time.monotonic(), False
            except OSError as error:
                if not reported:
                    self._warn(f"{self._access_error(error)}; trying again")
                    reported = True
                if time.monotonic() - reached > _UNREACHABLE_SECONDS:
                    self._give_up(waiting, self._access_error(error))

    def _repair(self, waiting: list[_SpoolJob]) -> None:
        self._folder.adopt_stray_results()
        for asked in waiting:
            if not asked.future.done():
                self._folder.add_job(
                    asked.entry
                )  # it may have been damaged, or withdrawn by another who asked for it
        for holder in self._folder.failed_devices():
            if holder.worker not in self._reported_devices:
                self._reported_devices.add(holder.worker)
                self._warn(f"{holder.worker} ({holder.hardware}) works no more: {holder.stage}")

    def _give_up(self, waiting: list[_SpoolJob], why: BadInput) -> None:
        for asked in waiting:
            if not asked.future.done() and asked.future.set_running_or_notify_cancel():
                asked.future.set_exception(why)

    def _access_error(self, error: OSError) -> BadInput:
        return (
            error
            if isinstance(error, BadInput)
            else BadInput(f"spool:{self._folder.path} cannot be used: {error.strerror}")
        )

    def _report_stages(self, waiting: list[_SpoolJob]) -> None:
        """Tell the askers how far their jobs are, where that has changed."""
        holders = self._folder.lease_holders() if waiting else {}
        for asked in waiting:
            holder = holders.get(asked.entry.key)
            stage = f"{holder.stage or 'taken'} ({holder.worker})" if holder else "waiting for a worker"
            if stage != asked.stage:
                asked.stage = stage
                asked.progress(Progress(asked.job.id, stage))
