"""The folder of a spool. Files appear whole or not at all; nobody needs a lock.

    DIR/jobs/KEY.json       a job
    DIR/results/KEY.json    its result: the first one stands
    DIR/leases/KEY.N        the Nth time it was taken; the file's time of change is its last sign of life
    DIR/hardware/GROUP      what the jobs of a task are timed on: the hardware on which the first was begun
    DIR/workers/NAME.json   who is there to work
    DIR/workers/PLACE.sick  a device that failed its health check, until somebody works on it again
    DIR/aside/              files that could not be used, kept for people to look at

A job is taken by creating its next lease, which only one can. A lease that has not been renewed for as long as it says has
ended: the next attempt may begin. Workers take jobs ahead of time, so that only those that were begun count as attempts. A
holder that wakes up later does no harm, since the second result is dropped. Ages are told by the file system's own clock,
whatever the machines' clocks say.
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
from kernelpro.pools.spool.entries import ResultEntry, DamagedEntry, JobEntry, result_entry, failure_reason, to_line, parse_entry
from kernelpro.records import BadInput, Record

_Entry = TypeVar("_Kind", JobEntry, ResultEntry)
MAX_ATTEMPTS = 5
"""A worker outlives what it runs; so these were machines that failed, or one job that brings them down."""
_SUBFOLDERS = ("jobs", "results", "leases", "hardware", "workers", "aside")
_SETTLE_SECONDS = 2.0
"""Seconds after which a damaged file is taken for complete, and not for one that is being copied."""


class SpoolWriteError(BadInput, OSError):
    """One clear line for whoever asks; for whoever works, a trouble of the file system that may pass."""


@dataclass(frozen=True)
class LeaseHolder(Record):
    """What a lease says."""

    worker: str
    hardware: str
    timeout: float
    """How long it holds without a sign of life."""
    stage: str = ""
    """What is being done; empty as long as it was not begun."""


@dataclass(frozen=True)
class Lease:
    entry: JobEntry
    path: Path
    holder: LeaseHolder


class SpoolFolder:
    def __init__(self, path: Path, warn: Callable[[str], None] = lambda line: None):
        self.path, self._warn = path, warn
        self._count = itertools.count()
        self._jobs: dict[str, JobEntry] = {}
        self._valid_results: set[str] = set()
        """Keys whose results have been read and found complete."""
        try:
            for room in _SUBFOLDERS:
                (path / room).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"spool:{path} cannot be used: {error.strerror}") from None

    # --- jobs and results ------------------------------------------------------------------------------

    def add_job(self, entry: JobEntry) -> bool:
        """Whether it is new. What is there and damaged is written anew."""
        self._jobs.setdefault(entry.key, entry)
        path, text = self._job_file(entry.key), to_line(entry)
        if self._create(path, text):
            return True
        try:
            existing = _read_entry(path)
            if isinstance(existing, JobEntry) and existing.key == entry.key:
                return False
            reason = "it was something else"
        except (FileNotFoundError, DamagedEntry) as error:
            reason = str(error)
        self._replace(path, text)
        self._warn(f"{path} is written anew: {reason}")
        return True

    def remove_job(self, entry: JobEntry) -> None:
        """Nobody wants it any more: it goes, unless somebody is at it or has done it."""
        if entry.key not in self.lease_holders() and not self._result_file(entry.key).exists():
            self._job_file(entry.key).unlink(missing_ok=True)
            self._jobs.pop(entry.key, None)

    def job(self, key: str) -> JobEntry | None:
        """None where there is no such job, or none that can be read: that one is set aside and reported."""
        if key not in self._jobs and (found := self._read_valid(self._job_file(key), JobEntry, key)):
            self._jobs[key] = found
        return self._jobs.get(key)

    def result(self, key: str) -> ResultEntry | None:
        """A result that is not what it should be is set aside and reported; its job is then open again."""
        if found := self._read_valid(self._result_file(key), ResultEntry, key):
            self._valid_results.add(key)
        return found

    def _read_valid(self, path: Path, entry_type: type[_Entry], key: str) -> _Entry | None:
        """What the file holds, if it is there and what its name says; else it is set aside, once nobody writes it any more."""
        try:
            entry = _read_entry(path)
            if not isinstance(entry, entry_type) or entry.key != key:
                raise DamagedEntry("it is not what its name says")
            return entry
        except FileNotFoundError:
            return None
        except DamagedEntry as error:
            if self._is_settled(path):
                self.quarantine(path, str(error))
            return None

    def reopen(self, entry: JobEntry, result: ResultEntry) -> None:
        """A result that is a failure is set aside: asked again, the job is done again."""
        self.quarantine(
            self._result_file(entry.key), f"{entry.description} could not be done: {failure_reason(result.result)}"
        )

    def add_result(self, result: ResultEntry) -> bool:
        """False where there was a result already, which stands."""
        added = self._create(self._result_file(result.key), to_line(result))
        if added and not failure_reason(result.result) and (posted := self.job(result.key)):
            self._bind_hardware(posted, result.hardware)
        for path in self._leases().get(result.key, {}).values():
            path.unlink(missing_ok=True)
        return added

    def open_jobs(self) -> list[JobEntry]:
        """Those without a result, oldest first."""
        results = {path.stem for path in (self.path / "results").glob("*.json")}
        self._valid_results &= results
        entries = []
        for key in self._keys():
            done = key in self._valid_results or (key in results and self.result(key))
            if not done and (entry := self.job(key)):
                entries.append(entry)
        return entries

    def _keys(self) -> list[str]:
        """Of all jobs, oldest first."""
        entries = [
            (entry.stat().st_mtime, entry.name)
            for entry in os.scandir(self.path / "jobs")
            if entry.name[0] != "."
        ]
        return [name.removesuffix(".json") for _, name in sorted(entries) if name.endswith(".json")]

    def adopt_stray_results(self) -> None:
        """Results under other names than their own, as copying by hand makes them: taken in, or reported as doubles."""
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
                    "its job has a result already" if self.job(entry.key) else "there is no such job here",
                )

    def _job_file(self, key: str) -> Path:
        return self.path / "jobs" / f"{key}.json"

    def _result_file(self, key: str) -> Path:
        return self.path / "results" / f"{key}.json"

    def quarantine(self, path: Path, reason: str) -> None:
        target = self.path / "aside" / f"{path.name}.{time.time_ns()}"
        with contextlib.suppress(FileNotFoundError):  # somebody else did
            path.rename(target)
            self._warn(f"{path} is set aside as {target.name}: {reason}")

    # --- leases ----------------------------------------------------------------------------------------

    def acquire(self, entry: JobEntry, holder: LeaseHolder) -> Lease | None:
        """None where somebody else has it, had it done, or where the task belongs to other hardware."""
        if self.bound_hardware(entry) not in ("", holder.hardware):
            return None
        attempts = self._leases().get(entry.key, {})
        latest = max(attempts, default=0)
        if latest and self.live_holder(attempts[latest]):
            return None
        if (started := self._count_started(attempts.values())) >= MAX_ATTEMPTS:
            reason = f"{started} workers died or vanished while they were at this job"
            self.add_result(result_entry(entry, lost_result(entry.job, reason), holder.worker, holder.hardware, 0.0))
            return None
        path = self.path / "leases" / f"{entry.key}.{latest + 1}"
        if not self._create(path, holder.dumps()):
            return None
        if self.result(entry.key):  # by whoever had it when we looked
            path.unlink(missing_ok=True)
            return None
        return Lease(entry, path, holder)

    def renew(self, lease: Lease) -> None:
        with contextlib.suppress(OSError):  # done by somebody else meanwhile, or out of reach for now
            os.utime(lease.path)

    def report_stage(self, lease: Lease, stage: str) -> None:
        """What is being done, for those who wait. With its first stage a job has begun, and its task belongs to this hardware."""
        holder = LeaseHolder(lease.holder.worker, lease.holder.hardware, lease.holder.timeout, stage)
        with contextlib.suppress(OSError):
            if lease.path.exists():
                self._bind_hardware(lease.entry, holder.hardware)
                self._replace(lease.path, holder.dumps())

    def release(self, lease: Lease) -> None:
        """Give a job back that was not done: it counts as no attempt."""
        lease.path.unlink(missing_ok=True)

    def lease_holders(self) -> dict[str, LeaseHolder]:
        """By key: who is at which job."""
        latest = {key: attempts[max(attempts)] for key, attempts in self._leases().items()}
        return {key: holder for key, path in latest.items() if (holder := self.live_holder(path))}

    def live_holder(self, path: Path) -> LeaseHolder | None:
        """Of a lease, or of a sign of presence; None where it has ended."""
        found = _read_holder(path)
        return found[0] if found and self._now() - found[1] <= found[0].timeout else None

    def attempts(self, key: str) -> int:
        """How often it was begun."""
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
        """The hardware that this job would be done on here; None where it is not for this device."""
        name = device.name_for(entry.job.target)
        if name is None or entry.gpu_name.lower() not in name.lower():
            return None
        return name if self.bound_hardware(entry) in ("", name) else None

    def bound_hardware(self, entry: JobEntry) -> str:
        """What the jobs of this task are timed on; empty while that is open."""
        try:
            return (
                (self.path / "hardware" / entry.group).read_text(encoding="utf-8").strip()
                if entry.group
                else ""
            )
        except FileNotFoundError:
            return ""

    def _bind_hardware(self, entry: JobEntry, name: str) -> None:
        if entry.group and name:
            self._create(self.path / "hardware" / entry.group, name + "\n")

    # --- workers ---------------------------------------------------------------------------------------

    def register_worker(self, name: str, holder: LeaseHolder) -> Path:
        """A sign of presence; to be renewed like a lease, and removed at the end."""
        path = self.path / "workers" / f"{name}.json"
        self._replace(path, holder.dumps())
        return path

    def live_workers(self) -> list[LeaseHolder]:
        """Those that are alive."""
        paths = [path for path in (self.path / "workers").glob("*.json") if path.name[0] != "."]
        return [found for path in sorted(paths) if (found := self.live_holder(path))]

    def report_failed_device(self, device: str, holder: LeaseHolder) -> None:
        """A device failed its health check; the holder's stage says how that is told."""
        self._replace(self.path / "workers" / f"{device}.sick", holder.dumps())

    def clear_failed_device(self, device: str) -> None:
        """Somebody works on it again."""
        (self.path / "workers" / f"{device}.sick").unlink(missing_ok=True)

    def failed_devices(self) -> list[LeaseHolder]:
        paths = [path for path in (self.path / "workers").glob("*.sick") if path.name[0] != "."]
        return [found[0] for path in sorted(paths) if (found := _read_holder(path))]

    # --- files -----------------------------------------------------------------------------------------

    def _now(self) -> float:
        with tempfile.TemporaryFile(dir=self.path) as file:
            return os.fstat(file.fileno()).st_mtime

    def _is_settled(self, path: Path) -> bool:
        try:
            return self._now() - path.stat().st_mtime > _SETTLE_SECONDS
        except FileNotFoundError:
            return False

    def _create(self, path: Path, text: str) -> bool:
        """In full, and only where there is no such file yet."""
        if path.exists():
            return False
        hidden = self._write_temporary(path, text)
        try:
            os.link(hidden, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links: the moment between looking and renaming stays open
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
        raise DamagedEntry("it is no text") from None


def _read_holder(path: Path) -> tuple[LeaseHolder, float] | None:
    """What a lease or a sign of presence says, and when it was last renewed."""
    try:
        with open(path, encoding="utf-8") as file:  # opening makes network file systems tell the truth
            told, changed = file.read(), os.fstat(file.fileno()).st_mtime
        return LeaseHolder.from_json(json.loads(told)), changed
    except (OSError, ValueError, TypeError):
        return None
