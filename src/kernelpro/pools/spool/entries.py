"""What is in a spool's files: one line of JSON each, so that many of them are simply lines of one file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from kernelpro.records import Job, Record, Result, digest


class Damaged(Exception):
    """This is no entry of a spool; the message says why."""


@dataclass(frozen=True)
class Posted(Record):
    """A job, complete in itself. Its key is a hash of what it asks for, whoever asks."""

    key: str
    match: str
    """Only hardware whose name contains this takes it."""
    job: Job
    type: str = "job"

    @property
    def group(self) -> str:
        """Jobs of one group are timed on one kind of hardware; empty where nothing is timed."""
        return digest(self.job.task.id, self.job.target or "", self.match) if self.job.task else ""

    @property
    def words(self) -> str:
        """For people."""
        parts = [
            self.job.kind,
            self.job.task.name if self.job.task else "",
            self.job.candidate.name if self.job.candidate else "",
        ]
        return " ".join(filter(None, parts))


@dataclass(frozen=True)
class Answered(Record):
    """A result, and who found it."""

    key: str
    result: Result
    worker: str
    hardware: str
    check: str = ""
    type: str = "result"
    seconds: float = 0.0


def post(job: Job, match: str = "") -> Posted:
    """The same question has the same key: names and ids are the asker's own affair."""
    asked = replace(
        job, id="", task=None, candidate=None, sanitize=False
    )  # the verdict is the same without the last
    about = (job.task and job.task.id, job.candidate and job.candidate.id)
    return Posted(digest("job", asked.nondefault_json(), *(part or "" for part in about), match), match, job)


def answer(posted: Posted, result: Result, worker: str, hardware: str, seconds: float) -> Answered:
    return Answered(posted.key, result, worker, hardware, _check(result.to_json()), seconds=seconds)


def addressed(result: Result, job: Job) -> Result:
    """The result as this asker named things."""
    verdict = result.verdict
    if verdict and job.candidate and job.task:
        verdict = replace(verdict, candidate=job.candidate.name, task=job.task.name)
    return replace(result, job=job.id, verdict=verdict)


def failure(result: Result) -> str:
    """Why this is no result to keep: an error, or a job that nobody lived to answer. Empty for all others."""
    if result.error is not None:
        return result.error or "an error without words"
    return result.lost


def line(entry: Posted | Answered) -> str:
    return entry.dumps() + "\n"


def read(text: str) -> Posted | Answered:
    """Raises Damaged for whatever is not complete and as it was written."""
    try:
        data = json.loads(text)
    except ValueError:
        raise Damaged("it is truncated, or no JSON") from None
    try:
        if data["type"] == "job":
            posted = Posted.from_json(data)
            if post(posted.job, posted.match).key != posted.key:
                raise Damaged("its content is not what its key says")
            return posted
        if data["type"] == "result":
            if _check(data["result"]) != data["check"]:
                raise Damaged("its content is not what its checksum says")
            return Answered.from_json(data)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise Damaged(f"it lacks what an entry has ({type(error).__name__}: {error})") from None
    raise Damaged("it is neither a job nor a result")


def _check(result: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:16]
