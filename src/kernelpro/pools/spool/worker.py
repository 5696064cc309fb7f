"""The running side of a spool: it leases jobs that suit this machine, runs them, and writes the results.

There is one loop for each device. It first leases jobs of the task that its worker has warm, then jobs of
tasks that no worker has leased, then others. It leases a few jobs ahead of time, so that they are built while
others are timed, but no more than its share. It writes each result at once. It respects the time limit: it
starts no job that would exceed it, judging from the longest job so far, and returns unfinished jobs. If the
file system fails for a while, it waits and writes the results afterwards.
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
from kernelpro.pools.local import LocalPool, local_devices
from kernelpro.pools.spool import torch_check, transfer
from kernelpro.pools.spool.entries import JobEntry, failure_reason, result_entry
from kernelpro.pools.spool.folder import Lease, LeaseHolder, SpoolFolder
from kernelpro.records import BadInput, Progress, Result

Log = Callable[[str], None]
_POLL_SECONDS = 1.0
_MAX_LEASES = 8
_FIRST_JOB_SECONDS = 60.0
"""Assumed duration of a job before the first one has finished."""
_STARTED = "started"
"""The stage of a running job that has not reported one."""
_MARGIN = 1.5
"""A job is assumed to take at most this many times as long as the longest one so far."""
_SHUTDOWN_SECONDS = 15.0
"""Time reserved for stopping the workers, which may need a second signal."""
_MAX_OUTAGE_LEASES = 3
"""A file system may fail for this many lease timeouts. By then other workers have taken the jobs over."""


@dataclass(frozen=True)
class WorkerOptions:
    """The options of `kernelpro worker`."""

    once: bool = False
    """Whether to exit when no job is left for this machine."""
    time_limit: float = 0.0
    """Exit within this many seconds; 0: no limit."""
    lease_timeout: float = 120.0
    """Seconds without a heartbeat after which other workers may take this worker's jobs."""
    sandbox: str = "auto"
    """How to isolate candidates; auto selects the strongest level that works."""
    gpu_name: str = ""
    """Use only devices whose name contains this text."""


def serve(path: Path, options: WorkerOptions, log: Log, stop: threading.Event) -> bool:
    """Run jobs until none is left, the time is up or `stop` is set; False if a device or the spool failed.

    `path`: a spool folder, or a file of jobs, whose results are written to a file beside it.
    """
    deadline = time.monotonic() + _usable_seconds(options.time_limit) if options.time_limit else math.inf
    jobs = _jobs_in_file(path)
    devices = local_devices(gpu_name=options.gpu_name)
    torch_check.check_torch(devices)
    folder, results = SpoolFolder(path.with_suffix(".spool") if jobs else path, log), None
    if jobs:
        results = path.with_suffix(".results.jsonl")
        _unpack_jobs(folder, path, jobs, results, log)
    workers = [_DeviceWorker(folder, device, options, log, stop, deadline, results) for device in devices]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.1)
        if time.monotonic() > deadline:
            stop.set()
    try:
        _report_remaining(folder, workers, options, log)
        if results:
            log(f"{transfer.collect_results(folder, jobs, results)} results in {results}")
    except OSError as error:
        log(f"{folder.path} cannot be read: {error}")
        return False
    return all(worker.ended_normally for worker in workers)


def _usable_seconds(seconds: float) -> float:
    return seconds - min(_SHUTDOWN_SECONDS, 0.1 * seconds)


def _jobs_in_file(path: Path) -> list[JobEntry]:
    """The jobs in a file; none if `path` is a spool, or an empty folder that can become one."""
    if path.is_file():
        return transfer.read_jobs(path)
    if not path.is_dir():
        raise BadInput(f"{path} is neither a folder nor a file: create the folder, or check the name")
    if not (path / "jobs").is_dir() and os.listdir(path):
        raise BadInput(f"{path} is not a spool: it has no folder `jobs` and is not empty")
    return []


def _unpack_jobs(folder: SpoolFolder, path: Path, jobs: list[JobEntry], results: Path, log: Log) -> None:
    """Fill a spool with the jobs of a file and their earlier results. Jobs that failed run again."""
    for text in transfer.merge(folder, path).errors:
        log(text)
    if results.exists():
        transfer.merge(folder, results)
    keys = {entry.key for entry in jobs}
    for entry in folder.open_jobs():
        if entry.key not in keys:
            folder.remove_job(entry)
    for entry in jobs:
        if (found := folder.result(entry.key)) and failure_reason(found.result):
            folder.reopen(entry, found)
    transfer.collect_results(folder, jobs, results)


def _report_remaining(
    folder: SpoolFolder, workers: list[_DeviceWorker], options: WorkerOptions, log: Log
) -> None:
    done = sum(worker.finished_jobs for worker in workers)
    open_jobs, holders = folder.open_jobs(), folder.lease_holders()
    leased_elsewhere = sum(entry.key in holders for entry in open_jobs)
    devices = [worker.device for worker in workers]
    unsuitable = sum(not any(folder.hardware_for(entry, d) for d in devices) for entry in open_jobs)
    notes = [f"{leased_elsewhere} with other workers"] if leased_elsewhere else []
    notes += [f"{unsuitable} for other hardware"] if unsuitable else []
    log(f"{done} jobs done, {len(open_jobs)} left" + (f" ({', '.join(notes)})" if notes else ""))
    first = _MARGIN * _FIRST_JOB_SECONDS
    if (
        options.time_limit
        and not done
        and len(open_jobs) > leased_elsewhere + unsuitable
        and _usable_seconds(options.time_limit) <= first
    ):
        enough = first + 2 * _SHUTDOWN_SECONDS
        log(
            f"--time-limit {options.time_limit:g} is too short: the first job may take {first:.0f} s; "
            f"use {enough:.0f} or more"
        )


@dataclass
class _LeasedJob:
    """A job that this worker holds."""

    lease: Lease
    acquired: float
    future: Future[Result] = field(default_factory=Future)
    ended: float = 0.0
    stage: str = ""


class _DeviceWorker:
    """Leases jobs for one device and runs them."""

    def __init__(
        self,
        folder: SpoolFolder,
        device: Device,
        options: WorkerOptions,
        log: Log,
        stop: threading.Event,
        deadline: float,
        results: Path | None,
    ):
        self.device, self.finished_jobs, self.ended_normally = device, 0, False
        self._folder, self._options, self._results = folder, options, results
        self._stop, self._deadline = stop, deadline
        suffix = f"-{device.gpu.uuid[:12]}" if device.gpu else ""
        self._name = f"{socket.gethostname()}-{os.getpid()}{suffix}"
        self._device_name = f"{socket.gethostname()}-{device.label}"
        self._log: Log = lambda text: log(f"{self._name}: {text}")
        self._leased: dict[str, _LeasedJob] = {}
        self._changed, self._ended = threading.Event(), threading.Event()
        self._stage_lock = threading.Lock()
        self._registration: Path | None = None
        self._last_access = time.monotonic()
        """When the folder was last usable."""
        self._outage_reported = False
        self._warm_group = ""
        """The group of the task that the worker has warm."""
        self._longest_job = 0.0
        """Duration of the longest job so far, in seconds."""
        self._last_finish = time.monotonic()
        """When the last job finished, which is when the current one started."""

    def run(self) -> None:
        """Run jobs until none is left, the time is up or a stop is requested."""
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        try:
            with LocalPool(self._options.sandbox, [self.device], warn=self._log) as pool:
                self.ended_normally = self._loop(pool)
        except BadInput as error:
            self._log(str(error))
        finally:
            self._shut_down()
            self._ended.set()

    def _shut_down(self) -> None:
        """Write finished results and return all other jobs."""
        try:
            self._store_results()
            for leased in self._leased.values():
                self._folder.release(leased.lease)
            if self._registration:
                self._registration.unlink(missing_ok=True)
        except OSError as error:
            self.ended_normally = False
            self._log(f"cannot return its jobs: {error}")

    def _holder(self, hardware: str, stage: str = "") -> LeaseHolder:
        return LeaseHolder(self._name, hardware, self._options.lease_timeout, stage)

    def _send_heartbeats(self) -> None:
        """Renew the registration and all leases, in a thread of its own."""
        while not self._ended.wait(self._options.lease_timeout / 6):
            if self._registration:
                with contextlib.suppress(OSError):
                    os.utime(self._registration)
            for leased in list(self._leased.values()):
                self._folder.renew(leased.lease)

    def _loop(self, pool: LocalPool) -> bool:
        """Lease and run jobs. Returns False if the device or the spool failed."""
        while not self._stop.is_set():
            try:
                self._store_results()
                self._mark_started()
                if pool.failed and not self._leased:
                    return self._report_failed_device()
                self._register()
                acquired = 0 if pool.failed else self._acquire(pool)
                self._last_access, self._outage_reported = time.monotonic(), False
                idle = not (self._leased or acquired or pool.failed)
                if idle and (self._options.once or not self._has_time()):
                    return True
            except OSError as error:
                if self._outage_too_long(error):
                    return False
            self._changed.wait(_POLL_SECONDS)
            self._changed.clear()
        return True

    def _register(self) -> None:
        if self._registration is None:
            holder = self._holder(self.device.name_for(None) or "")
            self._registration = self._folder.register_worker(self._name, holder)
            self._folder.clear_failed_device(self._device_name)

    def _report_failed_device(self) -> bool:
        holder = self._holder(self.device.name_for(None) or "", "it failed its health check")
        self._folder.report_failed_device(self._device_name, holder)
        return False

    def _outage_too_long(self, error: OSError) -> bool:
        """Report the first error of an outage; True once the outage has lasted too long."""
        if not self._outage_reported:
            self._outage_reported = True
            self._log(f"the spool cannot be used: {error}; retrying")
        limit = _MAX_OUTAGE_LEASES * self._options.lease_timeout
        if time.monotonic() - self._last_access <= limit:
            return False
        self._log(f"stops: the spool was unusable for {limit:.0f} s")
        return True

    def _has_time(self) -> bool:
        return time.monotonic() + _MARGIN * (self._longest_job or _FIRST_JOB_SECONDS) < self._deadline

    def _acquire(self, pool: LocalPool) -> int:
        """Lease and start jobs, up to this worker's share; returns their number."""
        if len(self._leased) >= _MAX_LEASES or not self._has_time():
            return 0
        holders = self._folder.lease_holders()
        free = [entry for entry in self._folder.open_jobs() if entry.key not in holders]
        suitable = [entry for entry in free if self._folder.hardware_for(entry, self.device)]
        share = math.ceil((len(suitable) + len(self._leased)) / max(1, len(self._folder.live_workers())))
        room, acquired = min(share, _MAX_LEASES) - len(self._leased), 0
        leased_groups = {entry.group for key in holders if (entry := self._folder.job(key))}
        for entry in sorted(suitable, key=lambda e: (e.group != self._warm_group, e.group in leased_groups)):
            if acquired >= room:
                break
            holder = self._holder(self._folder.hardware_for(entry, self.device) or "")
            if lease := self._folder.acquire(entry, holder):
                acquired += 1
                self._start(pool, entry, lease)
        return acquired

    def _start(self, pool: LocalPool, entry: JobEntry, lease: Lease) -> None:
        if not self._leased:
            self._last_finish = time.monotonic()
        leased = self._leased[entry.key] = _LeasedJob(lease, time.monotonic())
        self._warm_group = entry.group or self._warm_group
        self._log(f"takes {entry.description}")
        self._mark_started()

        def progress(step: Progress) -> None:
            if step.stage != leased.stage:
                self._report_stage(leased, step.stage)
                self._log(f"{entry.description}: {step.stage}")

        def end(_: Future[Result]) -> None:
            leased.ended = time.monotonic()
            self._changed.set()

        leased.future = pool.submit(entry.job, progress)
        leased.future.add_done_callback(end)

    def _mark_started(self) -> None:
        """Mark the first unfinished job as started, even if it has reported no stage: jobs run in the order
        of leasing."""
        first = next((leased for leased in self._leased.values() if not leased.future.done()), None)
        if first and not first.stage:
            self._report_stage(first, _STARTED)

    def _report_stage(self, leased: _LeasedJob, stage: str) -> None:
        with self._stage_lock:
            if stage != _STARTED or not leased.stage:
                leased.stage = stage
                self._folder.report_stage(leased.lease, stage)

    def _store_results(self) -> None:
        """Write finished results. If a result cannot be written, its job stays leased and writing is
        retried."""
        for leased in [leased for leased in self._leased.values() if leased.future.done()]:
            entry, hardware = leased.lease.entry, leased.lease.holder.hardware
            bound = self._folder.bound_hardware(entry)
            if leased.future.cancelled() or leased.future.exception():
                self._folder.release(leased.lease)  # the device failed; another worker can run it
                self._log(f"returns {entry.description}")
            elif bound not in ("", hardware):
                self._folder.release(leased.lease)
                self._log(f"returns {entry.description}: its task is bound to {bound}")
            else:
                self._store_result(leased, entry, hardware)
            del self._leased[entry.key]

    def _store_result(self, leased: _LeasedJob, entry: JobEntry, hardware: str) -> None:
        ended = leased.ended or time.monotonic()
        seconds = ended - max(leased.acquired, self._last_finish)
        result = result_entry(entry, leased.future.result(), self._name, hardware, seconds)
        if not self._folder.add_result(result):
            self._log(f"{entry.description}: another worker's result came first")
        else:
            self.finished_jobs += 1
            if self._results:
                with contextlib.suppress(OSError):  # it is written again at the end
                    transfer.append_result(self._results, result)
            self._log(f"{entry.description}: {_summary(result.result)} ({seconds:.1f} s)")
        self._longest_job, self._last_finish = max(self._longest_job, seconds), ended


def _summary(result: Result) -> str:
    if result.verdict:
        return f"{result.verdict.status.value}: {result.verdict.reason}"
    return f"error: {result.error}" if result.error is not None else "done"
