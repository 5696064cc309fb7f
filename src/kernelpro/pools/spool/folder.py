"""The folder of a spool. Files are created atomically, so no locks are needed.

    DIR/jobs/KEY.json          a job
    DIR/results/KEY.json       its result; the first one counts
    DIR/leases/KEY.N           the Nth lease of the job; the modification time is its last heartbeat
    DIR/hardware/GROUP         the hardware on which the jobs of a task are timed: where the first one started
    DIR/workers/NAME.json      a live worker
    DIR/workers/DEVICE.failed  a device that failed its health check, until a worker uses it again
    DIR/quarantine/            unusable files, kept for inspection

A worker takes a job by creating the job's next lease; only one worker can create this file. A lease expires
when it has not been renewed for its timeout. Then another worker may take the job. Workers lease jobs ahead
of time, so only started jobs count as attempts. A worker that continues after its lease has expired does no
harm: the second result is dropped. Ages are measured with the file system's clock, because the clocks of
machines differ.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kernelpro.lab.machine import Device
from kernelpro.pools.pool import lost_result
from kernelpro.pools.spool.entries import (
    DamagedEntry,
    JobEntry,
    ResultEntry,
    failure_reason,
    parse_entry,
    result_entry,
    to_line,
)
from kernelpro.records import BadInput, Record

_Entry = TypeVar("_Entry", JobEntry, ResultEntry)
MAX_ATTEMPTS = 5
"""How often a job may be started. A worker survives whatever a job does, so a lost worker means that its
machine failed, or that the job brings machines down."""
_SUBFOLDERS = ("jobs", "results", "leases", "hardware", "workers", "quarantine")
_SETTLE_SECONDS = 2.0
"""A damaged file is quarantined when it has not changed for this long, so that no process is still copying
it."""


class SpoolWriteError(BadInput, OSError):
    """A file cannot be written. Callers get a one-line message; workers retry, as for any OSError."""


@dataclass(frozen=True)
class LeaseHolder(Record):
    """The content of a lease, and of a worker's registration."""

    worker: str
    hardware: str
    timeout: float
    """Seconds from the last heartbeat until the lease expires."""
    stage: str = ""
    """The stage of the job; empty until it starts."""


@dataclass(frozen=True)
class Lease:
    """The right to run a job."""

    entry: JobEntry
    path: Path
    holder: LeaseHolder


class SpoolFolder:
    """The files of a spool, for callers and workers."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda line: None):
        self.path, self._warn = path, warn
        self._count = itertools.count()
        self._jobs: dict[str, JobEntry] = {}
        self._valid_results: set[str] = set()
        """Keys of jobs whose results have been read and are complete."""
        try:
            for name in _SUBFOLDERS:
                (path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"spool:{path} cannot be used: {error.strerror}") from None

    # --- jobs and results ------------------------------------------------------------------------------

    def add_job(self, entry: JobEntry) -> bool:
        """Write a job; False if the spool has it already. A damaged file is replaced."""
        self._jobs.setdefault(entry.key, entry)
        path, text = self._job_file(entry.key), to_line(entry)
        if self._create(path, text):
            return True
        try:
            existing = _read_entry(path)
            if isinstance(existing, JobEntry) and existing.key == entry.key:
                return False
            reason = "it held another entry"
        except (FileNotFoundError, DamagedEntry) as error:
            reason = str(error)
        self._replace(path, text)
        self._warn(f"{path} was replaced: {reason}")
        return True

    def remove_job(self, entry: JobEntry) -> None:
        """Remove a job, unless a worker holds it or it has a result."""
        if entry.key not in self.lease_holders() and not self._result_file(entry.key).exists():
            self._job_file(entry.key).unlink(missing_ok=True)
            self._jobs.pop(entry.key, None)

    def job(self, key: str) -> JobEntry | None:
        """The job with this key; None if it is missing or damaged. A damaged file is quarantined."""
        if key not in self._jobs and (found := self._read_valid(self._job_file(key), JobEntry, key)):
            self._jobs[key] = found
        return self._jobs.get(key)

    def result(self, key: str) -> ResultEntry | None:
        """The result of a job; None if it is missing or damaged. A damaged file is quarantined, which makes
        the job open again."""
        if found := self._read_valid(self._result_file(key), ResultEntry, key):
            self._valid_results.add(key)
        return found

    def _read_valid(self, path: Path, entry_type: type[_Entry], key: str) -> _Entry | None:
        """The entry in a file; None if the file is missing or damaged. A damaged file is quarantined when it
        has settled."""
        try:
            entry = _read_entry(path)
            if not isinstance(entry, entry_type) or entry.key != key:
                raise DamagedEntry("its content does not match its name")
            return entry
        except FileNotFoundError:
            return None
        except DamagedEntry as error:
            if self._is_settled(path):
                self.quarantine(path, str(error))
            return None

    def reopen(self, entry: JobEntry, result: ResultEntry) -> None:
        """Quarantine the failed result of a job, so that the job runs again."""
        self.quarantine(
            self._result_file(entry.key), f"{entry.description} failed: {failure_reason(result.result)}"
        )

    def add_result(self, result: ResultEntry) -> bool:
        """Write a result and remove the job's leases; False if the job has one already, which counts."""
        added = self._create(self._result_file(result.key), to_line(result))
        if added and not failure_reason(result.result) and (entry := self.job(result.key)):
            self._bind_hardware(entry, result.hardware)
        for path in self._leases().get(result.key, {}).values():
            path.unlink(missing_ok=True)
        return added

    def open_jobs(self) -> list[JobEntry]:
        """Jobs without a result, oldest first."""
        results = {path.stem for path in (self.path / "results").glob("*.json")}
        self._valid_results &= results
        entries = []
        for key in self._keys():
            done = key in self._valid_results or (key in results and self.result(key))
            if not done and (entry := self.job(key)):
                entries.append(entry)
        return entries

    def _keys(self) -> list[str]:
        """The keys of all jobs, oldest first."""
        entries = []
        for entry in os.scandir(self.path / "jobs"):
            with contextlib.suppress(FileNotFoundError):  # its caller has cancelled it meanwhile
                if entry.name[0] != ".":
                    entries.append((entry.stat().st_mtime, entry.name))
        return [name.removesuffix(".json") for _, name in sorted(entries) if name.endswith(".json")]

    def adopt_stray_results(self) -> None:
        """Rename results with wrong file names, which copying by hand produces; quarantine duplicates."""
        for path in (self.path / "results").iterdir():
            if path.name.startswith(".") or (path.suffix == ".json" and self.job(path.stem)):
                continue
            try:
                entry = _read_entry(path)
            except FileNotFoundError:
                continue
            except DamagedEntry as error:
                if self._is_settled(path):
                    self.quarantine(path, str(error))
                continue
            if isinstance(entry, ResultEntry) and self.job(entry.key) and self.add_result(entry):
                path.unlink(missing_ok=True)
            else:
                self.quarantine(
                    path,
                    "its job has a result already" if self.job(entry.key) else "this spool has no such job",
                )

    def _job_file(self, key: str) -> Path:
        return self.path / "jobs" / f"{key}.json"

    def _result_file(self, key: str) -> Path:
        return self.path / "results" / f"{key}.json"

    def quarantine(self, path: Path, reason: str) -> None:
        """Move an unusable file to the quarantine, and warn."""
        target = self.path / "quarantine" / f"{path.name}.{time.time_ns()}"
        with contextlib.suppress(FileNotFoundError):  # another process moved it
            path.rename(target)
            self._warn(f"{path} was moved to quarantine/{target.name}: {reason}")

    # --- leases ----------------------------------------------------------------------------------------

    def acquire(self, entry: JobEntry, holder: LeaseHolder) -> Lease | None:
        """Lease a job; None if it is leased or finished, or if its task is bound to other hardware."""
        if self.bound_hardware(entry) not in ("", holder.hardware):
            return None
        attempts = self._leases().get(entry.key, {})
        latest = max(attempts, default=0)
        if latest and self.live_holder(attempts[latest]):
            return None
        if (started := self._count_started(attempts.values())) >= MAX_ATTEMPTS:
            reason = f"{started} workers died or vanished while they ran this job"
            self.add_result(
                result_entry(entry, lost_result(entry.job, reason), holder.worker, holder.hardware, 0.0)
            )
            return None
        path = self.path / "leases" / f"{entry.key}.{latest + 1}"
        if not self._create(path, holder.dumps()):
            return None
        if self.result(entry.key):  # the previous holder has finished meanwhile
            path.unlink(missing_ok=True)
            return None
        return Lease(entry, path, holder)

    def renew(self, lease: Lease) -> None:
        """Renew a lease: its heartbeat."""
        with contextlib.suppress(OSError):  # another worker finished the job, or the folder is unreachable
            os.utime(lease.path)

    def report_stage(self, lease: Lease, stage: str) -> None:
        """Write the stage of a job, for its callers.

        The first stage marks the job as started and binds its task to the worker's hardware.
        """
        holder = LeaseHolder(lease.holder.worker, lease.holder.hardware, lease.holder.timeout, stage)
        with contextlib.suppress(OSError):
            if lease.path.exists():
                self._bind_hardware(lease.entry, holder.hardware)
                self._replace(lease.path, holder.dumps())

    def release(self, lease: Lease) -> None:
        """Return a job that was not run. This does not count as an attempt."""
        lease.path.unlink(missing_ok=True)

    def lease_holders(self) -> dict[str, LeaseHolder]:
        """The holders of all live leases, by the key of the job."""
        latest = {key: attempts[max(attempts)] for key, attempts in self._leases().items()}
        return {key: holder for key, path in latest.items() if (holder := self.live_holder(path))}

    def live_holder(self, path: Path) -> LeaseHolder | None:
        """The holder of a lease or registration; None if it has expired."""
        found = _read_holder(path)
        return found[0] if found and self._now() - found[1] <= found[0].timeout else None

    def attempts(self, key: str) -> int:
        """How many times a job was started."""
        return self._count_started(self._leases().get(key, {}).values())

    def _count_started(self, leases: Iterable[Path]) -> int:
        return sum(found is not None and bool(found[0].stage) for found in map(_read_holder, leases))

    def _leases(self) -> dict[str, dict[int, Path]]:
        leases: dict[str, dict[int, Path]] = {}
        for path in (self.path / "leases").iterdir():
            key, _, number = path.name.partition(".")
            if key and number.isdigit():
                leases.setdefault(key, {})[int(number)] = path
        return leases

    # --- hardware --------------------------------------------------------------------------------------

    def hardware_for(self, entry: JobEntry, device: Device) -> str | None:
        """The hardware name under which a device would run this job; None if it may not run it."""
        name = device.name_for(entry.job.target)
        if name is None or entry.gpu_name.lower() not in name.lower():
            return None
        return name if self.bound_hardware(entry) in ("", name) else None

    def bound_hardware(self, entry: JobEntry) -> str:
        """The hardware to which the job's task is bound; empty if it is not bound yet."""
        try:
            path = self.path / "hardware" / entry.group
            return path.read_text(encoding="utf-8").strip() if entry.group else ""
        except FileNotFoundError:
            return ""

    def _bind_hardware(self, entry: JobEntry, name: str) -> None:
        if entry.group and name:
            self._create(self.path / "hardware" / entry.group, name + "\n")

    # --- workers ---------------------------------------------------------------------------------------

    def register_worker(self, name: str, holder: LeaseHolder) -> Path:
        """Write the registration of a worker, which renews it like a lease and removes it at the end."""
        path = self.path / "workers" / f"{name}.json"
        self._replace(path, holder.dumps())
        return path

    def live_workers(self) -> list[LeaseHolder]:
        """Workers whose registration has not expired."""
        paths = [path for path in (self.path / "workers").glob("*.json") if path.name[0] != "."]
        return [found for path in sorted(paths) if (found := self.live_holder(path))]

    def report_failed_device(self, device: str, holder: LeaseHolder) -> None:
        """Record that a device failed its health check. The holder's stage is the message."""
        self._replace(self.path / "workers" / f"{device}.failed", holder.dumps())

    def clear_failed_device(self, device: str) -> None:
        """Remove the record of a failed device, because a worker uses it again."""
        (self.path / "workers" / f"{device}.failed").unlink(missing_ok=True)

    def failed_devices(self) -> list[LeaseHolder]:
        """Devices that failed their health checks."""
        paths = [path for path in (self.path / "workers").glob("*.failed") if path.name[0] != "."]
        return [found[0] for path in sorted(paths) if (found := _read_holder(path))]

    # --- files -----------------------------------------------------------------------------------------

    def _now(self) -> float:
        with tempfile.TemporaryFile(dir=self.path) as file:
            return os.fstat(file.fileno()).st_mtime

    def _is_settled(self, path: Path) -> bool:
        try:
            return abs(self._now() - path.stat().st_mtime) > _SETTLE_SECONDS  # abs: clocks may be set back
        except FileNotFoundError:
            return False

    def _create(self, path: Path, text: str) -> bool:
        """Create a file atomically; False if it exists."""
        if path.exists():
            return False
        hidden = self._write_temporary(path, text)
        try:
            os.link(hidden, path)
        except FileExistsError:
            return False
        except OSError:  # no hard links here; a race between this check and the rename remains
            if path.exists():
                return False
            os.rename(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)
        return True

    def _replace(self, path: Path, text: str) -> None:
        os.replace(self._write_temporary(path, text), path)

    def _write_temporary(self, path: Path, text: str) -> Path:
        hidden = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{next(self._count)}")
        try:
            with open(hidden, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            hidden.unlink(missing_ok=True)
            raise SpoolWriteError(f"{path} cannot be written: {error.strerror}") from None
        return hidden


def _read_entry(path: Path) -> JobEntry | ResultEntry:
    try:
        return parse_entry(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise DamagedEntry("it is not UTF-8 text") from None
    except IsADirectoryError:
        raise DamagedEntry("it is a folder") from None


def _read_holder(path: Path) -> tuple[LeaseHolder, float] | None:
    """The content of a lease or registration, and the time of its last renewal; None if it is unreadable."""
    try:
        with open(path, encoding="utf-8") as file:  # opening makes network file systems refresh attributes
            text, changed = file.read(), os.fstat(file.fileno()).st_mtime
        return LeaseHolder.from_json(json.loads(text)), changed
    except (OSError, ValueError, TypeError):
        return None
