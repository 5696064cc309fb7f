"""What is in a spool's files: one line of JSON each, so that many of them are simply lines of one file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from kernelpro.records import Job, Record, Result, digest


class DamagedEntry(Exception):
    """This is no entry of a spool; the message says why."""


@dataclass(frozen=True)
class JobEntry(Record):
    """A job, complete in itself. Its key is a hash of what it asks for, whoever asks."""

    key: str
    gpu_name: str
    """Only hardware whose name contains this takes it."""
    job: Job
    type: str = "job"

    @property
    def group(self) -> str:
        """Jobs of one group are timed on one kind of hardware; empty where nothing is timed."""
        return digest(self.job.task.id, self.job.target or "", self.gpu_name) if self.job.task else ""

    @property
    def description(self) -> str:
        """For people."""
        parts = [
            self.job.kind,
            self.job.task.name if self.job.task else "",
            self.job.candidate.name if self.job.candidate else "",
        ]
        return " ".join(filter(None, parts))


@dataclass(frozen=True)
class ResultEntry(Record):
    """A result, and who found it."""

    key: str
    result: Result
    worker: str
    hardware: str
    checksum: str = ""
    type: str = "result"
    seconds: float = 0.0


def job_entry(job: Job, gpu_name: str = "") -> JobEntry:
    """The same question has the same key: names and ids are the asker's own affair."""
    question = replace(
        job, id="", task=None, candidate=None, sanitize=False
    )  # the verdict is the same without the last
    content = (job.task and job.task.id, job.candidate and job.candidate.id)
    return JobEntry(digest("job", question.nondefault_json(), *(part or "" for part in content), gpu_name), gpu_name, job)


def result_entry(entry: JobEntry, result: Result, worker: str, hardware: str, seconds: float) -> ResultEntry:
    return ResultEntry(entry.key, result, worker, hardware, _checksum(result.to_json()), seconds=seconds)


def result_for(result: Result, job: Job) -> Result:
    """The result as this asker named things."""
    verdict = result.verdict
    if verdict and job.candidate and job.task:
        verdict = replace(verdict, candidate=job.candidate.name, task=job.task.name)
    return replace(result, job=job.id, verdict=verdict)


def failure_reason(result: Result) -> str:
    """Why this is no result to keep: an error, or a job that nobody lived to answer. Empty for all others."""
    if result.error is not None:
        return result.error or "an error without words"
    return result.lost


def to_line(entry: JobEntry | ResultEntry) -> str:
    return entry.dumps() + "\n"


def parse_entry(text: str) -> JobEntry | ResultEntry:
    """Raises Damaged for whatever is not complete and as it was written."""
    try:
        data = json.loads(text)
    except ValueError:
        raise DamagedEntry("it is truncated, or no JSON") from None
    try:
        if data["type"] == "job":
            entry = JobEntry.from_json(data)
            if job_entry(entry.job, entry.gpu_name).key != entry.key:
                raise DamagedEntry("its content is not what its key says")
            return entry
        if data["type"] == "result":
            if _checksum(data["result"]) != data["check"]:
                raise DamagedEntry("its content is not what its checksum says")
            return ResultEntry.from_json(data)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise DamagedEntry(f"it lacks what an entry has ({type(error).__name__}: {error})") from None
    raise DamagedEntry("it is neither a job nor a result")


def _checksum(result: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:16]
