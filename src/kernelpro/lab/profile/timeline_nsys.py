"""A trace made by Nsight Systems around a target program, read from nsys's SQLite export.

1. `find` the binary. 2. Run `profile_argv` around a target that calls `perform`. 3. Run `export_argv`. 4. `read`.
`nsys` does all four; where a step fails it says what is missing.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from kernelpro.lab.profile.trace import COPY_KINDS, Event, Trace, api_name, calls_of, repeat
from kernelpro.records import Skipped

_PLACES = (
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "usr/local/cuda*/bin/nsys",
    "usr/local/cuda*/nsight-systems*/bin/nsys",
    "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
)
"""Where installers put it, best first: the copy inside Nsight Compute may lack libraries of its importer."""
_LAST_WORDS = 600
"""Characters of a failed tool's output that are shown: its last few lines."""


def find(root: Path = Path("/")) -> str | None:
    """The nsys of PATH, else the newest that an installer left."""
    if named := shutil.which("nsys"):
        return named
    for place in _PLACES:
        if found := sorted(
            root.glob(place), key=lambda path: [int(part) for part in re.findall(r"\d+", str(path))]
        ):
            return str(found[-1])
    return None


def profile_argv(binary: str, report: Path, target: Sequence[str]) -> list[str]:
    """Trace what the target does between cudaProfilerStart and Stop. Sampling and OS tracing stay off: they make 2 MB into 2 GB."""
    return [
        binary,
        "profile",
        "-t",
        "cuda,nvtx",
        "-s",
        "none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",  # a graph as a whole has no kernels
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--force-overwrite=true",
        "-o",
        str(report.with_suffix("")),  # nsys adds .nsys-rep
        *target,
    ]


def export_argv(binary: str, report: Path, database: Path) -> list[str]:
    return [binary, "export", "-t", "sqlite", "--force-overwrite=true", "-o", str(database), str(report)]


def perform(call: Callable[[], object], synchronize: Callable[[], object], calls: int = 5) -> None:
    """What the target program does under nsys, with a warm candidate."""
    import torch

    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    try:
        repeat(call, synchronize, calls, torch.cuda.nvtx.range)
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def nsys(
    run: Callable[[list[str]], tuple[int, str]],
    target: Sequence[str],
    folder: Path,
    binary: str | None = None,
) -> Trace | Skipped:
    """The trace of a target that calls `perform`. `run` executes a command that may write to `folder`; gives status and output."""
    binary = binary or find()
    if binary is None:
        return absent()
    report, database = folder / "trace.nsys-rep", folder / "trace.sqlite"
    status, said = run(profile_argv(binary, report, target))
    if not report.exists():
        return unfinished(folder, status, said)
    status, said = run(export_argv(binary, report, database))
    return outcome(folder, status, said)


def absent() -> Skipped:
    return _skipped(
        "nsys was not found",
        "install Nsight Systems (nsight-systems-cli), or trace with CUPTI, which needs nothing",
    )


def outcome(folder: Path, status: int, said: str) -> Trace | Skipped:
    """What the commands left in `folder`: the trace, or why there is none. `status` and `said` are the last command's."""
    database = folder / "trace.sqlite"
    if not database.exists():
        if (folder / "trace.nsys-rep").exists():
            return _skipped(f"nsys export ended with status {status}: {_end(said)}")
        return unfinished(folder, status, said)
    try:
        trace = read(database)
    except (sqlite3.Error, TypeError, ValueError) as error:
        return _skipped(f"nsys's database cannot be read: {error}", "use a version of nsys from 2023 on")
    if not trace.calls:
        return _skipped(
            f"the trace holds no complete call; the target said: {_end(said)}",
            "the target must call `perform`",
        )
    return trace


def unfinished(folder: Path, status: int, said: str) -> Skipped:
    """Why `nsys profile` left no report."""
    lacking = re.search(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object", said)
    if lacking or any(folder.glob("*.qdstrm")):
        library = lacking[1] if lacking else "libdw.so.1"
        sure = "" if lacking else "perhaps "
        why = f"nsys recorded, but its importer (QdstrmImporter) left no report: {library} is {sure}missing"
        package = (
            "libdw1 (Debian, Ubuntu) or elfutils-libs (Fedora)"
            if library.startswith("libdw")
            else f"the package with {library}"
        )
        return _skipped(why, f"install {package}, or trace with CUPTI")
    return _skipped(f"nsys ended with status {status} and left no report: {_end(said)}")


def _skipped(why: str, enable: str = "trace with CUPTI, which needs nothing") -> Skipped:
    return Skipped("timeline by nsys", why, enable)


def _end(text: str) -> str:
    return text.strip()[-_LAST_WORDS:] or "(no output)"


def read(database: Path) -> Trace:
    """The trace in an SQLite export. A table is absent where nothing of its kind happened, a column where nsys is older."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        text = dict(_rows(db, "StringIds", "id", "value"))
        marks = _rows(db, "NVTX_EVENTS", "start", "end", "text", "textId")
        ranges = [(label or text.get(key, ""), start, end) for start, end, label, key in marks if end]
        events = [*_kernels(db, text), *_copies(db), *_apis(db, text)]
    return Trace("nsys", calls_of(ranges), tuple(sorted(events, key=lambda event: event.start_ns)))


def _kernels(db: sqlite3.Connection, text: dict[int, str]) -> Iterator[Event]:
    shape = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    used = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory")
    columns = ("start", "end", "correlationId", "mangledName", "demangledName", *shape, *used)
    for start, end, linked, mangled, plain, *numbers in _rows(db, "CUPTI_ACTIVITY_KIND_KERNEL", *columns):
        name = text.get(mangled) or text.get(
            plain, "?"
        )  # nsys's own demangling differs from everybody else's
        sizes = [number or 0 for number in numbers]
        registers, static, dynamic = sizes[6:]
        grid, block = tuple(sizes[:3]), tuple(sizes[3:6])
        yield Event(
            "kernel", name, start, end, grid, block, registers, static, dynamic, correlation=linked or 0
        )


def _copies(db: sqlite3.Connection) -> Iterator[Event]:
    for start, end, linked, nbytes, kind in _rows(
        db, "CUPTI_ACTIVITY_KIND_MEMCPY", "start", "end", "correlationId", "bytes", "copyKind"
    ):
        way = COPY_KINDS.get(kind, "other")
        yield Event("copy", way, start, end, nbytes=nbytes or 0, copy_kind=way, correlation=linked or 0)
    for start, end, linked, nbytes in _rows(
        db, "CUPTI_ACTIVITY_KIND_MEMSET", "start", "end", "correlationId", "bytes"
    ):
        yield Event("memset", "memset", start, end, nbytes=nbytes or 0, correlation=linked or 0)


def _apis(db: sqlite3.Connection, text: dict[int, str]) -> Iterator[Event]:
    """Runtime and driver calls: nsys keeps both in one table."""
    for start, end, linked, key, thread in _rows(
        db, "CUPTI_ACTIVITY_KIND_RUNTIME", "start", "end", "correlationId", "nameId", "globalTid"
    ):
        yield Event(
            "api", api_name(text.get(key, "?")), start, end, correlation=linked or 0, thread=thread or 0
        )


def _rows(db: sqlite3.Connection, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    present = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
    if present:
        chosen = (f'"{name}"' if name in present else "NULL" for name in columns)
        yield from db.execute(f"SELECT {', '.join(chosen)} FROM {table}")
