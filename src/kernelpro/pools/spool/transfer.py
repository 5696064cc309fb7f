"""A spool's jobs and results as one file, for places that no file system joins."""

from __future__ import annotations

from collections.abc import Iterator
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
    with open(out, "a", encoding="utf-8") as file:
        file.write(line(entry))


def _lines(source: Path) -> Iterator[tuple[Path, int, str]]:
    if source.is_dir():
        rooms = [source / room for room in ("jobs", "results")]
        inside = [path for room in [source, *rooms] if room.is_dir() for path in sorted(room.iterdir())]
        paths = [path for path in inside if path.is_file() and path.suffix in (".json", ".jsonl") and path.name[0] != "."]
        if not paths:
            raise BadInput(f"{source} holds neither jobs nor results")
    else:
        paths = [source]
    for path in paths:
        try:
            content = path.read_bytes().decode("utf-8", errors="replace")
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}") from None
        yield from ((path, number, text) for number, text in enumerate(content.split("\n"), 1) if text.strip())


def _write(out: Path, text: str) -> None:
    hidden = out.with_name(f".{out.name}.part")
    try:
        hidden.write_text(text, encoding="utf-8")
        hidden.replace(out)
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error.strerror}") from None
