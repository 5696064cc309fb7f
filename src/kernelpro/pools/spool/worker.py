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
from kernelpro.pools.local import LocalPool, local_devices
from kernelpro.pools.spool import torch_check, transfer
from kernelpro.pools.spool.entries import JobEntry, result_entry, failure_reason
from kernelpro.pools.spool.folder import SpoolFolder, LeaseHolder, Lease
from kernelpro.records import BadInput, Progress, Result

Log = Callable[[str], None]
_POLL_SECONDS = 1.0
_MAX_LEASES = 8
_FIRST_JOB_SECONDS = 60.0
"""Seconds that a job takes, as long as none has been done."""
_STARTED = "begun"
"""The stage of a job that has told none yet."""
_MARGIN = 1.5
"""A job may take so much longer than those before."""
_SHUTDOWN_SECONDS = 15.0
"""Seconds that ending may take: a worker is asked to clean up, then told to."""
_MAX_OUTAGE_LEASES = 3
"""Times the lease, for a file system that fails: long before that others have our jobs."""


@dataclass(frozen=True)
class WorkerOptions:
    """How somebody works."""

    once: bool = False
    """End when there is nothing more to do here."""
    time_limit: float = 0.0
    """End after so long; 0: never."""
    lease_timeout: float = 120.0
    """Seconds after which the others may take us for dead."""
    sandbox: str = "auto"
    gpu_name: str = ""
    """Only devices whose name contains this."""


def serve(path: Path, options: WorkerOptions, log: Log, stop: threading.Event) -> bool:
    """Work until there is nothing more, time is up or `stop` is set. Whether it ended as it should.

    `path` is a spool's folder, or one file with jobs: then results go to one file beside it.
    """
    deadline = time.monotonic() + _usable_seconds(options.time_limit) if options.time_limit else math.inf
    jobs = _jobs_in_file(path)
    on = local_devices(gpu_name=options.gpu_name)
    torch_check.check_torch(on)
    folder, results = SpoolFolder(path.with_suffix(".spool") if jobs else path, log), None
    if jobs:
        results = path.with_suffix(".results.jsonl")
        _unpack_jobs(folder, path, jobs, results, log)
    workers = [_DeviceWorker(folder, device, options, log, stop, deadline, results) for device in on]
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
    return all(taker.ended_normally for taker in workers)


def _usable_seconds(seconds: float) -> float:
    return seconds - min(_SHUTDOWN_SECONDS, 0.1 * seconds)


def _jobs_in_file(path: Path) -> list[JobEntry]:
    """Of a file; none for a spool, or a folder that can become one."""
    if path.is_file():
        return transfer.read_jobs(path)
    if not path.is_dir():
        raise BadInput(f"{path} is neither a folder nor a file: make the folder first, or check the name")
    if not (path / "jobs").is_dir() and os.listdir(path):
        raise BadInput(f"{path} is no spool: it has no folder `jobs`, and it is not empty")
    return []


def _unpack_jobs(folder: SpoolFolder, path: Path, jobs: list[JobEntry], results: Path, log: Log) -> None:
    """The spool of a file: its jobs alone, and what was found for them before, except failures, since those are asked again."""
    for text in transfer.merge(folder, path).errors:
        log(text)
    if results.exists():
        transfer.merge(folder, results)
    keys = {posted.key for posted in jobs}
    for posted in folder.open_jobs():
        if posted.key not in keys:
            folder.remove_job(posted)
    for posted in jobs:
        if (found := folder.result(posted.key)) and failure_reason(found.result):
            folder.reopen(posted, found)
    transfer.collect_results(folder, jobs, results)


def _report_remaining(folder: SpoolFolder, workers: list[_DeviceWorker], options: WorkerOptions, log: Log) -> None:
    done = sum(taker.finished_jobs for taker in workers)
    left, holders = folder.open_jobs(), folder.lease_holders()
    others = sum(posted.key in holders for posted in left)
    foreign = sum(not any(folder.hardware_for(posted, taker.device) for taker in workers) for posted in left)
    notes = [f"{others} with other workers"] * bool(others) + [f"{foreign} for other hardware"] * bool(
        foreign
    )
    log(f"{done} jobs done, {len(left)} left" + (f" ({', '.join(notes)})" if notes else ""))
    first = _MARGIN * _FIRST_JOB_SECONDS
    if options.time_limit and not done and len(left) > others + foreign and _usable_seconds(options.time_limit) <= first:
        enough = first + 2 * _SHUTDOWN_SECONDS
        log(
            f"--seconds {options.time_limit:g} is too short to begin: a first job may take {first:.0f} s; give {enough:.0f} or more"
        )


@dataclass
class _LeasedJob:
    lease: Lease
    acquired: float
    future: Future[Result] = field(default_factory=Future)
    ended: float = 0.0
    stage: str = ""


class _DeviceWorker:
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
        self._folder, self._options, self._stop, self._deadline, self._results = (
            folder,
            options,
            stop,
            deadline,
            results,
        )
        self._name = f"{socket.gethostname()}-{os.getpid()}" + (
            f"-{device.gpu.uuid[:12]}" if device.gpu else ""
        )
        self._device_name = f"{socket.gethostname()}-{device.label}"
        self._log: Log = lambda text: log(f"{self._name}: {text}")
        self._leased: dict[str, _LeasedJob] = {}
        self._changed, self._ended = threading.Event(), threading.Event()
        self._stage_lock = threading.Lock()
        self._registration: Path | None = None
        self._last_access = time.monotonic()
        """When the folder could be used last."""
        self._outage_reported = False
        self._warm_group = ""
        """Of the task that the worker has warm."""
        self._longest_job = 0.0
        self._last_finish = time.monotonic()
        """When the last job was, and so when the one at hand began."""

    def run(self) -> None:
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
        """What is done is kept, and the rest given back."""
        try:
            self._store_results()
            for held in self._leased.values():
                self._folder.release(held.lease)
            if self._registration:
                self._registration.unlink(missing_ok=True)
        except OSError as error:
            self.ended_normally = False
            self._log(f"cannot give its jobs back: {error}")

    def _holder(self, hardware: str, stage: str = "") -> LeaseHolder:
        return LeaseHolder(self._name, hardware, self._options.lease_timeout, stage)

    def _send_heartbeats(self) -> None:
        """Signs of life, however busy everything else is."""
        while not self._ended.wait(self._options.lease_timeout / 6):
            if self._registration:
                with contextlib.suppress(OSError):
                    os.utime(self._registration)
            for held in list(self._leased.values()):
                self._folder.renew(held.lease)

    def _loop(self, pool: LocalPool) -> bool:
        """Whether it ended as it should."""
        while not self._stop.is_set():
            try:
                self._store_results()
                self._mark_started()
                if pool.failed and not self._leased:
                    return self._report_failed_device()
                self._register()
                taken = 0 if pool.failed else self._acquire(pool)
                self._last_access, self._outage_reported = time.monotonic(), False
                if not (self._leased or taken or pool.failed) and (self._options.once or not self._has_time()):
                    return True
            except OSError as error:
                if self._outage_too_long(error):
                    return False
            self._changed.wait(_POLL_SECONDS)
            self._changed.clear()
        return True

    def _register(self) -> None:
        if self._registration is None:
            self._registration = self._folder.register_worker(self._name, self._holder(self.device.name_for(None) or ""))
            self._folder.clear_failed_device(self._device_name)

    def _report_failed_device(self) -> bool:
        told = self._holder(self.device.name_for(None) or "", "it failed its health check")
        self._folder.report_failed_device(self._device_name, told)
        return False

    def _outage_too_long(self, error: OSError) -> bool:
        """A network file system may fail for a moment; one that does not come back is told once more."""
        if not self._outage_reported:
            self._outage_reported = True
            self._log(f"the spool cannot be used: {error}; trying again")
        patience = _MAX_OUTAGE_LEASES * self._options.lease_timeout
        if time.monotonic() - self._last_access <= patience:
            return False
        self._log(f"gives up: the spool could not be used for {patience:.0f} s")
        return True

    def _has_time(self) -> bool:
        return time.monotonic() + _MARGIN * (self._longest_job or _FIRST_JOB_SECONDS) < self._deadline

    def _acquire(self, pool: LocalPool) -> int:
        """Take what there is, up to our share; how many."""
        if len(self._leased) >= _MAX_LEASES or not self._has_time():
            return 0
        held = self._folder.lease_holders()
        suiting = [
            p for p in self._folder.open_jobs() if p.key not in held and self._folder.hardware_for(p, self.device)
        ]
        share = math.ceil((len(suiting) + len(self._leased)) / max(1, len(self._folder.live_workers())))
        wanted, taken = min(share, _MAX_LEASES) - len(self._leased), 0
        busy = {posted.group for key in held if (posted := self._folder.job(key))}
        for posted in sorted(suiting, key=lambda p: (p.group != self._warm_group, p.group in busy)):
            if taken >= wanted:
                break
            if lease := self._folder.acquire(
                posted, self._holder(self._folder.hardware_for(posted, self.device) or "")
            ):
                taken += 1
                self._start(pool, posted, lease)
        return taken

    def _start(self, pool: LocalPool, posted: JobEntry, lease: Lease) -> None:
        if not self._leased:
            self._last_finish = time.monotonic()
        held = self._leased[posted.key] = _LeasedJob(lease, time.monotonic())
        self._warm_group = posted.group or self._warm_group
        self._log(f"takes {posted.description}")
        self._mark_started()

        def progress(step: Progress) -> None:
            if step.stage != held.stage:
                self._report_stage(held, step.stage)
                self._log(f"{posted.description}: {step.stage}")

        def end(_: Future[Result]) -> None:
            held.ended = time.monotonic()
            self._changed.set()

        held.future = pool.submit(posted.job, progress)
        held.future.add_done_callback(end)

    def _mark_started(self) -> None:
        """Jobs are done in the order of taking: the first that is not done has begun, whether it tells its stages or not."""
        first = next((held for held in self._leased.values() if not held.future.done()), None)
        if first and not first.stage:
            self._report_stage(first, _STARTED)

    def _report_stage(self, held: _LeasedJob, stage: str) -> None:
        with self._stage_lock:
            if stage != _STARTED or not held.stage:
                held.stage = stage
                self._folder.report_stage(held.lease, stage)

    def _store_results(self) -> None:
        """Write down what has been found. What cannot be written is still held, and tried again."""
        for held in [held for held in self._leased.values() if held.future.done()]:
            posted, hardware = held.lease.entry, held.lease.holder.hardware
            bound = self._folder.bound_hardware(posted)
            if held.future.cancelled() or held.future.exception():
                self._folder.release(held.lease)  # the device failed: others may have more luck
                self._log(f"gives {posted.description} back")
            elif bound not in ("", hardware):
                self._folder.release(held.lease)
                self._log(f"gives {posted.description} back: its task was begun on {bound}")
            else:
                self._store_result(held, posted, hardware)
            del self._leased[posted.key]

    def _store_result(self, held: _LeasedJob, posted: JobEntry, hardware: str) -> None:
        ended = held.ended or time.monotonic()
        seconds = ended - max(held.acquired, self._last_finish)
        entry = result_entry(posted, held.future.result(), self._name, hardware, seconds)
        if not self._folder.add_result(entry):
            self._log(f"{posted.description}: somebody else had a result before us")
        else:
            self.finished_jobs += 1
            if self._results:
                with contextlib.suppress(OSError):  # it is written again at the end
                    transfer.append_result(self._results, entry)
            self._log(f"{posted.description}: {_summary(entry.result)} ({seconds:.1f} s)")
        self._longest_job, self._last_finish = max(self._longest_job, seconds), ended


def _summary(result: Result) -> str:
    if result.verdict:
        return f"{result.verdict.status.value}: {result.verdict.reason}"
    return f"error: {result.error}" if result.error is not None else "done"
