"""Carries a spool's jobs and results as one file, for machines that share no file system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kernelpro.pools.spool.entries import DamagedEntry, JobEntry, ResultEntry, parse_entry, to_line
from kernelpro.pools.spool.folder import SpoolFolder
from kernelpro.records import BadInput


@dataclass
class MergeCounts:
    """What a merge added to a spool."""

    jobs: int = 0
    results: int = 0
    duplicates: int = 0
    """Number of jobs and results that the spool had already."""
    errors: list[str] = field(default_factory=list)
    """Lines that were rejected, and why."""


def pack_jobs(folder: SpoolFolder, out: Path) -> int:
    """Write all open jobs to one file; returns their number."""
    jobs = folder.open_jobs()
    _write(out, "".join(map(to_line, jobs)))
    return len(jobs)


def read_jobs(source: Path) -> list[JobEntry]:
    """The jobs in a file; raises BadInput if it has none."""
    jobs = {}
    for _, _, text in _lines(source):
        with contextlib.suppress(DamagedEntry):
            entry = parse_entry(text)
            if isinstance(entry, JobEntry):
                jobs[entry.key] = entry
    if not jobs:
        raise BadInput(
            f"{source} has no jobs: give a spool's folder, or a file that `kernelpro spool pack` wrote"
        )
    return list(jobs.values())


def collect_results(folder: SpoolFolder, jobs: Iterable[JobEntry], out: Path) -> int:
    """Write the results of these jobs to one file; returns their number."""
    results = [entry for job in jobs if (entry := folder.result(job.key))]
    _write(out, "".join(map(to_line, results)))
    return len(results)


def merge(folder: SpoolFolder, source: Path) -> MergeCounts:
    """Add jobs and results from a file of lines, or a folder of files: another spool, or its `results`."""
    counts = MergeCounts()
    for path, number, text in _lines(source):
        try:
            entry = parse_entry(text)
        except DamagedEntry as error:
            counts.errors.append(f"{path}, line {number}: {error}")
            continue
        if isinstance(entry, JobEntry):
            new = folder.add_job(entry)
            counts.jobs += new
        elif folder.job(entry.key) is None:
            counts.errors.append(f"{path}, line {number}: a result of a job that this spool does not have")
            continue
        else:
            new = _add_result(folder, entry)
            counts.results += new
        counts.duplicates += not new
    return counts


def _add_result(folder: SpoolFolder, entry: ResultEntry) -> bool:
    return folder.result(entry.key) is None and folder.add_result(entry)


def append_result(out: Path, entry: ResultEntry) -> None:
    """Append a result on a line of its own, even if the last line of the file is truncated."""
    with open(out, "ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        torn = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * torn + to_line(entry).encode())


def _lines(source: Path) -> Iterator[tuple[Path, int, str]]:
    if source.is_dir():
        subfolders = [source / folder_ for folder_ in ("jobs", "results")]
        inside = [
            path
            for folder_ in [source, *subfolders]
            if folder_.is_dir()
            for path in sorted(folder_.iterdir())
        ]
        paths = [
            path
            for path in inside
            if path.is_file() and path.suffix in (".json", ".jsonl") and path.name[0] != "."
        ]
        if not paths:
            raise BadInput(f"{source} has neither jobs nor results")
    else:
        paths = [source]
    for path in paths:
        try:
            content = path.read_bytes().decode("utf-8", errors="replace")
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}") from None
        yield from (
            (path, number, text) for number, text in enumerate(content.split("\n"), 1) if text.strip()
        )


def _write(out: Path, text: str) -> None:
    hidden = out.with_name(f".{out.name}.part")
    try:
        hidden.write_text(text, encoding="utf-8")
        hidden.replace(out)
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error.strerror}") from None
