"""A spool's jobs and results as one file, for places that no file system joins."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kernelpro.pools.spool.entries import Answered, Damaged, Posted, line, read
from kernelpro.pools.spool.folder import Folder
from kernelpro.records import BadInput


@dataclass
class Merged:
    jobs: int = 0
    results: int = 0
    doubles: int = 0
    """Jobs and results that were there already."""
    strange: list[str] = field(default_factory=list)
    """What could not be used, and why."""


def pack(folder: Folder, out: Path) -> int:
    """Write all jobs without a result to one file; how many."""
    jobs = folder.open_jobs()
    _write(out, "".join(map(line, jobs)))
    return len(jobs)


def asked(source: Path) -> list[Posted]:
    """The jobs in a file; bad input where there is none."""
    found = {}
    for _, _, text in _lines(source):
        with contextlib.suppress(Damaged):
            entry = read(text)
            if isinstance(entry, Posted):
                found[entry.key] = entry
    if not found:
        raise BadInput(
            f"{source} holds no job: give a spool's folder, or a file that `kernelpro spool pack` wrote"
        )
    return list(found.values())


def collect(folder: Folder, jobs: Iterable[Posted], out: Path) -> int:
    """Write the results of these jobs to one file; how many there are."""
    found = [entry for posted in jobs if (entry := folder.answered(posted.key))]
    _write(out, "".join(map(line, found)))
    return len(found)


def merge(folder: Folder, source: Path) -> Merged:
    """Take in what a file holds, line by line, or a folder with such files: another spool, or its `results`."""
    found = Merged()
    for path, number, text in _lines(source):
        try:
            entry = read(text)
        except Damaged as error:
            found.strange.append(f"{path}, line {number}: {error}")
            continue
        if isinstance(entry, Posted):
            new = folder.put(entry)
            found.jobs += new
        elif folder.job(entry.key) is None:
            found.strange.append(f"{path}, line {number}: a result for a job that was never asked for here")
            continue
        else:
            new = _take_in(folder, entry)
            found.results += new
        found.doubles += not new
    return found


def _take_in(folder: Folder, entry: Answered) -> bool:
    return folder.answered(entry.key) is None and folder.keep(entry)


def append(out: Path, entry: Answered) -> None:
    """On a line of its own, whatever was cut short before it."""
    with open(out, "ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        torn = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * torn + line(entry).encode())


def _lines(source: Path) -> Iterator[tuple[Path, int, str]]:
    if source.is_dir():
        rooms = [source / room for room in ("jobs", "results")]
        inside = [path for room in [source, *rooms] if room.is_dir() for path in sorted(room.iterdir())]
        paths = [
            path
            for path in inside
            if path.is_file() and path.suffix in (".json", ".jsonl") and path.name[0] != "."
        ]
        if not paths:
            raise BadInput(f"{source} holds neither jobs nor results")
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
