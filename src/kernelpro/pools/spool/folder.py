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
from kernelpro.pools.pool import lost
from kernelpro.pools.spool.entries import Answered, Damaged, Posted, answer, failure, line, read
from kernelpro.records import BadInput, Record

_Kind = TypeVar("_Kind", Posted, Answered)
MOST_ATTEMPTS = 5
"""A worker outlives what it runs; so these were machines that failed, or one job that brings them down."""
_ROOMS = ("jobs", "results", "leases", "hardware", "workers", "aside")
_SETTLED = 2.0
"""Seconds after which a damaged file is taken for complete, and not for one that is being copied."""


class CannotWrite(BadInput, OSError):
    """One clear line for whoever asks; for whoever works, a trouble of the file system that may pass."""


@dataclass(frozen=True)
class Holder(Record):
    """What a lease says."""

    worker: str
    hardware: str
    seconds: float
    """How long it holds without a sign of life."""
    stage: str = ""
    """What is being done; empty as long as it was not begun."""


@dataclass(frozen=True)
class Lease:
    posted: Posted
    path: Path
    holder: Holder


class Folder:
    def __init__(self, path: Path, say: Callable[[str], None] = lambda line: None):
        self.path, self._say = path, say
        self._count = itertools.count()
        self._jobs: dict[str, Posted] = {}
        self._good: set[str] = set()
        """Keys whose results have been read and found complete."""
        try:
            for room in _ROOMS:
                (path / room).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"spool:{path} cannot be used: {error.strerror}") from None

    # --- jobs and results ------------------------------------------------------------------------------

    def put(self, posted: Posted) -> bool:
        """Whether it is new. What is there and damaged is written anew."""
        self._jobs.setdefault(posted.key, posted)
        path, text = self._job_file(posted.key), line(posted)
        if self._write(path, text):
            return True
        try:
            found = _read(path)
            if isinstance(found, Posted) and found.key == posted.key:
                return False
            why = "it was something else"
        except (FileNotFoundError, Damaged) as error:
            why = str(error)
        self._replace(path, text)
        self._say(f"{path} is written anew: {why}")
        return True

    def withdraw(self, posted: Posted) -> None:
        """Nobody wants it any more: it goes, unless somebody is at it or has done it."""
        if posted.key not in self.holders() and not self._result_file(posted.key).exists():
            self._job_file(posted.key).unlink(missing_ok=True)
            self._jobs.pop(posted.key, None)

    def job(self, key: str) -> Posted | None:
        """None where there is no such job, or none that can be read: that one is set aside and reported."""
        if key not in self._jobs and (found := self._sound(self._job_file(key), Posted, key)):
            self._jobs[key] = found
        return self._jobs.get(key)

    def answered(self, key: str) -> Answered | None:
        """A result that is not what it should be is set aside and reported; its job is then open again."""
        if found := self._sound(self._result_file(key), Answered, key):
            self._good.add(key)
        return found

    def _sound(self, path: Path, kind: type[_Kind], key: str) -> _Kind | None:
        """What the file holds, if it is there and what its name says; else it is set aside, once nobody writes it any more."""
        try:
            found = _read(path)
            if not isinstance(found, kind) or found.key != key:
                raise Damaged("it is not what its name says")
            return found
        except FileNotFoundError:
            return None
        except Damaged as error:
            if self._settled(path):
                self.set_aside(path, str(error))
            return None

    def reopen(self, posted: Posted, answered: Answered) -> None:
        """A result that is a failure is set aside: asked again, the job is done again."""
        self.set_aside(
            self._result_file(posted.key), f"{posted.words} could not be done: {failure(answered.result)}"
        )

    def keep(self, answered: Answered) -> bool:
        """False where there was a result already, which stands."""
        kept = self._write(self._result_file(answered.key), line(answered))
        if kept and not failure(answered.result) and (posted := self.job(answered.key)):
            self._bind(posted, answered.hardware)
        for path in self._leases().get(answered.key, {}).values():
            path.unlink(missing_ok=True)
        return kept

    def open_jobs(self) -> list[Posted]:
        """Those without a result, oldest first."""
        results = {path.stem for path in (self.path / "results").glob("*.json")}
        self._good &= results
        found = []
        for key in self._keys():
            done = key in self._good or (key in results and self.answered(key))
            if not done and (posted := self.job(key)):
                found.append(posted)
        return found

    def _keys(self) -> list[str]:
        """Of all jobs, oldest first."""
        entries = [
            (entry.stat().st_mtime, entry.name)
            for entry in os.scandir(self.path / "jobs")
            if entry.name[0] != "."
        ]
        return [name.removesuffix(".json") for _, name in sorted(entries) if name.endswith(".json")]

    def tidy(self) -> None:
        """Results under other names than their own, as copying by hand makes them: taken in, or reported as doubles."""
        for path in (self.path / "results").iterdir():
            if path.name.startswith(".") or (path.suffix == ".json" and self.job(path.stem)):
                continue
            try:
                found = _read(path)
            except FileNotFoundError:
                continue
            except Damaged as error:
                if self._settled(path):
                    self.set_aside(path, str(error))
                continue
            if isinstance(found, Answered) and self.job(found.key) and self.keep(found):
                path.unlink(missing_ok=True)
            else:
                self.set_aside(
                    path,
                    "its job has a result already" if self.job(found.key) else "there is no such job here",
                )

    def _job_file(self, key: str) -> Path:
        return self.path / "jobs" / f"{key}.json"

    def _result_file(self, key: str) -> Path:
        return self.path / "results" / f"{key}.json"

    def set_aside(self, path: Path, why: str) -> None:
        place = self.path / "aside" / f"{path.name}.{time.time_ns()}"
        with contextlib.suppress(FileNotFoundError):  # somebody else did
            path.rename(place)
            self._say(f"{path} is set aside as {place.name}: {why}")

    # --- leases ----------------------------------------------------------------------------------------

    def take(self, posted: Posted, holder: Holder) -> Lease | None:
        """None where somebody else has it, had it done, or where the task belongs to other hardware."""
        if self.hardware(posted) not in ("", holder.hardware):
            return None
        attempts = self._leases().get(posted.key, {})
        latest = max(attempts, default=0)
        if latest and self.holder(attempts[latest]):
            return None
        if (begun := self._begun(attempts.values())) >= MOST_ATTEMPTS:
            reason = f"{begun} workers died or vanished while they were at this job"
            self.keep(answer(posted, lost(posted.job, reason), holder.worker, holder.hardware, 0.0))
            return None
        path = self.path / "leases" / f"{posted.key}.{latest + 1}"
        if not self._write(path, holder.dumps()):
            return None
        if self.answered(posted.key):  # by whoever had it when we looked
            path.unlink(missing_ok=True)
            return None
        return Lease(posted, path, holder)

    def renew(self, lease: Lease) -> None:
        with contextlib.suppress(OSError):  # done by somebody else meanwhile, or out of reach for now
            os.utime(lease.path)

    def tell(self, lease: Lease, stage: str) -> None:
        """What is being done, for those who wait. With its first stage a job has begun, and its task belongs to this hardware."""
        told = Holder(lease.holder.worker, lease.holder.hardware, lease.holder.seconds, stage)
        with contextlib.suppress(OSError):
            if lease.path.exists():
                self._bind(lease.posted, told.hardware)
                self._replace(lease.path, told.dumps())

    def release(self, lease: Lease) -> None:
        """Give a job back that was not done: it counts as no attempt."""
        lease.path.unlink(missing_ok=True)

    def holders(self) -> dict[str, Holder]:
        """By key: who is at which job."""
        latest = {key: attempts[max(attempts)] for key, attempts in self._leases().items()}
        return {key: found for key, path in latest.items() if (found := self.holder(path))}

    def holder(self, path: Path) -> Holder | None:
        """Of a lease, or of a sign of presence; None where it has ended."""
        found = _told(path)
        return found[0] if found and self._now() - found[1] <= found[0].seconds else None

    def attempts(self, key: str) -> int:
        """How often it was begun."""
        return self._begun(self._leases().get(key, {}).values())

    def _begun(self, leases: Iterable[Path]) -> int:
        return sum(found is not None and bool(found[0].stage) for found in map(_told, leases))

    def _leases(self) -> dict[str, dict[int, Path]]:
        found: dict[str, dict[int, Path]] = {}
        for path in (self.path / "leases").iterdir():
            key, _, number = path.name.partition(".")
            if key and number.isdigit():
                found.setdefault(key, {})[int(number)] = path
        return found

    # --- hardware --------------------------------------------------------------------------------------

    def suits(self, posted: Posted, device: Device) -> str | None:
        """The hardware that this job would be done on here; None where it is not for this device."""
        name = device.name_for(posted.job.target)
        if name is None or posted.match.lower() not in name.lower():
            return None
        return name if self.hardware(posted) in ("", name) else None

    def hardware(self, posted: Posted) -> str:
        """What the jobs of this task are timed on; empty while that is open."""
        try:
            return (
                (self.path / "hardware" / posted.group).read_text(encoding="utf-8").strip()
                if posted.group
                else ""
            )
        except FileNotFoundError:
            return ""

    def _bind(self, posted: Posted, name: str) -> None:
        if posted.group and name:
            self._write(self.path / "hardware" / posted.group, name + "\n")

    # --- workers ---------------------------------------------------------------------------------------

    def attend(self, name: str, holder: Holder) -> Path:
        """A sign of presence; to be renewed like a lease, and removed at the end."""
        path = self.path / "workers" / f"{name}.json"
        self._replace(path, holder.dumps())
        return path

    def workers(self) -> list[Holder]:
        """Those that are alive."""
        paths = [path for path in (self.path / "workers").glob("*.json") if path.name[0] != "."]
        return [found for path in sorted(paths) if (found := self.holder(path))]

    def report_sick(self, place: str, holder: Holder) -> None:
        """A device failed its health check; the holder's stage says how that is told."""
        self._replace(self.path / "workers" / f"{place}.sick", holder.dumps())

    def forget_sick(self, place: str) -> None:
        """Somebody works on it again."""
        (self.path / "workers" / f"{place}.sick").unlink(missing_ok=True)

    def sick(self) -> list[Holder]:
        paths = [path for path in (self.path / "workers").glob("*.sick") if path.name[0] != "."]
        return [found[0] for path in sorted(paths) if (found := _told(path))]

    # --- files -----------------------------------------------------------------------------------------

    def _now(self) -> float:
        with tempfile.TemporaryFile(dir=self.path) as file:
            return os.fstat(file.fileno()).st_mtime

    def _settled(self, path: Path) -> bool:
        try:
            return self._now() - path.stat().st_mtime > _SETTLED
        except FileNotFoundError:
            return False

    def _write(self, path: Path, text: str) -> bool:
        """In full, and only where there is no such file yet."""
        if path.exists():
            return False
        hidden = self._hidden(path, text)
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
        os.replace(self._hidden(path, text), path)

    def _hidden(self, path: Path, text: str) -> Path:
        hidden = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{next(self._count)}")
        try:
            with open(hidden, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            hidden.unlink(missing_ok=True)
            raise CannotWrite(f"{path} cannot be written: {error.strerror}") from None
        return hidden


def _read(path: Path) -> Posted | Answered:
    try:
        return read(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise Damaged("it is no text") from None


def _told(path: Path) -> tuple[Holder, float] | None:
    """What a lease or a sign of presence says, and when it was last renewed."""
    try:
        with open(path, encoding="utf-8") as file:  # opening makes network file systems tell the truth
            told, changed = file.read(), os.fstat(file.fileno()).st_mtime
        return Holder.from_json(json.loads(told)), changed
    except (OSError, ValueError, TypeError):
        return None
