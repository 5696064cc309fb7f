"""The content of a spool's files: one line of JSON each, so that many files can be packed into one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from kernelpro.records import Job, Record, Result, digest


class DamagedEntry(Exception):
    """The text is not an entry of a spool; the message says why."""


@dataclass(frozen=True)
class JobEntry(Record):
    """A job. Its key is a hash of its content, so that equal jobs of several callers share an entry."""

    key: str
    """Content hash; also the name of the file."""
    gpu_name: str
    """Only workers on hardware whose name contains this text run the job."""
    job: Job
    type: str = "job"

    @property
    def group(self) -> str:
        """The job's group; empty for jobs without a task. Jobs of one group are timed on one kind of
        hardware."""
        return digest(self.job.task.id, self.job.target or "", self.gpu_name) if self.job.task else ""

    @property
    def description(self) -> str:
        """The job in a few words, for messages."""
        parts = [
            self.job.kind,
            self.job.task.name if self.job.task else "",
            self.job.candidate.name if self.job.candidate else "",
        ]
        return " ".join(filter(None, parts))


@dataclass(frozen=True)
class ResultEntry(Record):
    """A result, with the worker and the hardware that produced it."""

    key: str
    """The key of the job."""
    result: Result
    worker: str
    """Name of the worker."""
    hardware: str
    """Name of the hardware."""
    checksum: str = ""
    """Hash of the result."""
    type: str = "result"
    seconds: float = 0.0
    """Duration of the job."""


def job_entry(job: Job, gpu_name: str = "") -> JobEntry:
    """The entry of a job. The job's id and the names of task and candidate do not influence the key."""
    question = replace(job, id="", task=None, candidate=None, sanitize=False)  # sanitizing changes no verdict
    content = (job.task and job.task.id, job.candidate and job.candidate.id)
    return JobEntry(
        digest("job", question.nondefault_json(), *(part or "" for part in content), gpu_name), gpu_name, job
    )


def result_entry(entry: JobEntry, result: Result, worker: str, hardware: str, seconds: float) -> ResultEntry:
    """The entry of a result, with its checksum."""
    return ResultEntry(entry.key, result, worker, hardware, _checksum(result.to_json()), seconds=seconds)


def result_for(result: Result, job: Job) -> Result:
    """The result with the id and the names that this caller's job uses."""
    verdict = result.verdict
    if verdict and job.candidate and job.task:
        verdict = replace(verdict, candidate=job.candidate.name, task=job.task.name)
    return replace(result, job=job.id, verdict=verdict)


def failure_reason(result: Result) -> str:
    """Why a result must not be reused: it is an error, or no worker finished the job. Empty if it may be."""
    if result.error is not None:
        return result.error or "an error without a message"
    return result.lost


def to_line(entry: JobEntry | ResultEntry) -> str:
    """The entry as one line of JSON."""
    return entry.dumps() + "\n"


def parse_entry(text: str) -> JobEntry | ResultEntry:
    """Parse a line. Raises DamagedEntry unless the entry is complete and unchanged."""
    try:
        data = json.loads(text)
    except ValueError:
        raise DamagedEntry("it is truncated or not JSON") from None
    try:
        if data["type"] == "job":
            entry = JobEntry.from_json(data)
            if job_entry(entry.job, entry.gpu_name).key != entry.key:
                raise DamagedEntry("its content does not match its key")
            return entry
        if data["type"] == "result":
            if _checksum(data["result"]) != data["checksum"]:
                raise DamagedEntry("its content does not match its checksum")
            return ResultEntry.from_json(data)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise DamagedEntry(f"a field is missing or wrong ({type(error).__name__}: {error})") from None
    raise DamagedEntry("it is neither a job nor a result")


def _checksum(result: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:16]
