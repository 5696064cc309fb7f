"""The submitting side of a spool: the pool writes jobs into the folder and polls for results.

A job that was submitted before, by this or another process, has the same key, so its result is found again.
Nothing is judged twice; use another folder for a second measurement. Failures are not kept (errors, and jobs
that no worker finished): the pool delivers a failure once, and the job runs again when it is submitted again.
Cancelling a job removes it from the folder, unless a worker holds it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from kernelpro.pools.pool import Pool, ProgressCallback, ResultPending, ignore_progress
from kernelpro.pools.spool.entries import JobEntry, failure_reason, job_entry, result_for
from kernelpro.pools.spool.folder import SpoolFolder
from kernelpro.records import BadInput, Job, Progress, Result

_POLL_SECONDS = 0.5
_REPAIR_EVERY = 10
"""The folder is checked and repaired in every so many polls."""
_UNREACHABLE_SECONDS = 600.0
"""How long the folder may be unreachable before waiting jobs fail."""


@dataclass
class _SpoolJob:
    """A submitted job without a result."""

    entry: JobEntry
    job: Job
    progress: ProgressCallback
    future: Future[Result]
    stage: str = ""


class SpoolPool(Pool):
    """The spool pool. With `wait`, futures complete when their results appear. Without, the future of a
    missing result raises `ResultPending`."""

    def __init__(
        self,
        path: Path,
        wait: bool = True,
        gpu_name: str = "",
        warn: Callable[[str], None] = lambda line: None,
    ):
        self._folder = SpoolFolder(path, warn)
        self._folder.adopt_stray_results()
        self._wait, self._gpu_name, self._warn = wait, gpu_name, warn
        self._lock = threading.Lock()
        self._waiting: list[_SpoolJob] = []
        self._missing: set[str] = set()
        """Keys of jobs that this process submitted and that have no result yet."""
        self._reported_devices: set[str] = set()
        """Names of workers whose failed devices were reported."""
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._poll, daemon=True)

    def submit(self, job: Job, progress: ProgressCallback = ignore_progress) -> Future[Result]:
        """Write the job to the spool, or deliver its result if that exists."""
        pending = _SpoolJob(job_entry(job, self._gpu_name), job, progress, Future())
        try:
            self._folder.add_job(pending.entry)
            if self._deliver(pending):
                return pending.future
        except OSError as error:
            raise self._access_error(error) from None
        self._missing.add(pending.entry.key)
        if not self._wait:
            pending.future.set_exception(
                ResultPending(f"{pending.entry.description} waits in {self._folder.path}")
            )
            return pending.future
        pending.future.add_done_callback(lambda future: self._cancel(pending) if future.cancelled() else None)
        with self._lock:
            self._waiting.append(pending)
            if self._watcher.ident is None:
                self._watcher.start()
        return pending.future

    @property
    def pending_jobs(self) -> int:
        """Submitted jobs without a result."""
        return len(self._missing)

    def close(self) -> None:
        """Stop polling; submitted jobs stay in the folder."""
        self._closing.set()
        if self._watcher.is_alive():  # an interrupted process may not have started it
            self._watcher.join()

    def _deliver(self, waiting: _SpoolJob) -> bool:
        """Deliver the result of a job; False if there is none."""
        entry = self._folder.result(waiting.entry.key)
        if entry is None:
            return False
        if failure_reason(entry.result):
            self._folder.reopen(waiting.entry, entry)
            self._folder.remove_job(waiting.entry)  # so that it runs again only if it is submitted again
        self._missing.discard(waiting.entry.key)
        if waiting.future.set_running_or_notify_cancel():
            waiting.future.set_result(result_for(entry.result, waiting.job))
        return True

    def _cancel(self, cancelled: _SpoolJob) -> None:
        """Remove a cancelled job, unless another caller waits for it."""
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
                self._waiting = [pending for pending in self._waiting if not pending.future.done()]
                waiting = list(self._waiting)
            try:
                if polls % _REPAIR_EVERY == 0:
                    self._repair(waiting)
                self._report_stages([pending for pending in waiting if not self._deliver(pending)])
                reached, reported = time.monotonic(), False
            except OSError as error:
                if not reported:
                    self._warn(f"{self._access_error(error)}; retrying")
                    reported = True
                if time.monotonic() - reached > _UNREACHABLE_SECONDS:
                    self._give_up(waiting, self._access_error(error))

    def _repair(self, waiting: list[_SpoolJob]) -> None:
        self._folder.adopt_stray_results()
        for pending in waiting:
            if not pending.future.done():
                self._folder.add_job(pending.entry)  # its file may be damaged, or another caller removed it
        for holder in self._folder.failed_devices():
            if holder.worker not in self._reported_devices:
                self._reported_devices.add(holder.worker)
                self._warn(f"{holder.worker} ({holder.hardware}) stopped: {holder.stage}")

    def _give_up(self, waiting: list[_SpoolJob], why: BadInput) -> None:
        for pending in waiting:
            if not pending.future.done() and pending.future.set_running_or_notify_cancel():
                pending.future.set_exception(why)

    def _access_error(self, error: OSError) -> BadInput:
        return (
            error
            if isinstance(error, BadInput)
            else BadInput(f"spool:{self._folder.path} cannot be used: {error.strerror}")
        )

    def _report_stages(self, waiting: list[_SpoolJob]) -> None:
        """Report changed stages to the callers."""
        holders = self._folder.lease_holders() if waiting else {}
        for pending in waiting:
            holder = holders.get(pending.entry.key)
            stage = f"{holder.stage or 'taken'} ({holder.worker})" if holder else "waiting for a worker"
            if stage != pending.stage:
                pending.stage = stage
                pending.progress(Progress(pending.job.id, stage))
