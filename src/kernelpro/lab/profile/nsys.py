"""Tracing with Nsight Systems: commands around a target program, and the trace in nsys's SQLite export.

1. `find_nsys` finds the program.
2. Run `profile_command` around a program that calls `run_under_nsys`.
3. Run `export_command`.
4. `load_trace` returns the trace, or explains what is missing.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from kernelpro.lab.profile.trace import (
    COPY_KINDS,
    Trace,
    TraceEvent,
    api_name,
    calls_from_ranges,
    run_traced_calls,
)
from kernelpro.records import Skipped

_INSTALL_PATHS = (
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "usr/local/cuda*/bin/nsys",
    "usr/local/cuda*/nsight-systems*/bin/nsys",
    "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
)
"""Default install paths, best first: the copy inside Nsight Compute may lack libraries of its importer."""
_MAX_OUTPUT_CHARACTERS = 600
"""How much of the end of a failed tool's output is shown."""


def find_nsys(root: Path = Path("/")) -> str | None:
    """Return the nsys on the PATH, else the newest installed version."""
    if named := shutil.which("nsys"):
        return named
    for place in _INSTALL_PATHS:
        if found := sorted(
            root.glob(place), key=lambda path: [int(part) for part in re.findall(r"\d+", str(path))]
        ):
            return str(found[-1])
    return None


def profile_command(binary: str, report: Path, target: Sequence[str]) -> list[str]:
    """Return the command that traces `target` between cudaProfilerStart and Stop.

    Sampling and OS tracing are off: they would turn 2 MB into 2 GB.
    """
    return [
        binary,
        "profile",
        "-t",
        "cuda,nvtx",
        "-s",
        "none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",  # without it, nsys does not list the kernels of a graph
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--force-overwrite=true",
        "-o",
        str(report.with_suffix("")),  # nsys adds .nsys-rep
        *target,
    ]


def export_command(binary: str, report: Path, database: Path) -> list[str]:
    """Return the command that converts a report to SQLite."""
    return [binary, "export", "-t", "sqlite", "--force-overwrite=true", "-o", str(database), str(report)]


def run_under_nsys(call: Callable[[], object], synchronize: Callable[[], object], calls: int = 5) -> None:
    """Run the calls to trace: called by the target program under nsys, with a warm candidate."""
    import torch

    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    try:
        run_traced_calls(call, synchronize, calls, torch.cuda.nvtx.range)
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def not_found() -> Skipped:
    """A note that nsys is not installed."""
    return _skipped(
        "nsys was not found",
        "install Nsight Systems (nsight-systems-cli), or trace with CUPTI, which needs no installation",
    )


def load_trace(folder: Path, status: int, output: str) -> Trace | Skipped:
    """Return the trace in `folder`, or why there is none. `status`, `output`: those of the last command."""
    database = folder / "trace.sqlite"
    if not database.exists():
        if (folder / "trace.nsys-rep").exists():
            return _skipped(f"nsys export ended with status {status}: {_tail(output)}")
        return _missing_report(folder, status, output)
    try:
        trace = read_database(database)
    except (sqlite3.Error, TypeError, ValueError) as error:
        return _skipped(f"nsys's database cannot be read: {error}", "use a version of nsys from 2023 on")
    if not trace.calls:
        return _skipped(
            f"the trace has no complete call; output of the target: {_tail(output)}",
            "the target must call `run_under_nsys`",
        )
    return trace


def _missing_report(folder: Path, status: int, output: str) -> Skipped:
    """Explain why `nsys profile` wrote no report."""
    missing = re.search(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object", output)
    if missing or any(folder.glob("*.qdstrm")):
        library = missing[1] if missing else "libdw.so.1"
        certainty = "" if missing else "perhaps "
        why = f"nsys's importer (QdstrmImporter) wrote no report: {library} is {certainty}missing"
        package = (
            "libdw1 (Debian, Ubuntu) or elfutils-libs (Fedora)"
            if library.startswith("libdw")
            else f"the package with {library}"
        )
        return _skipped(why, f"install {package}, or trace with CUPTI")
    return _skipped(f"nsys ended with status {status} and left no report: {_tail(output)}")


def _skipped(why: str, enable: str = "trace with CUPTI, which needs no installation") -> Skipped:
    return Skipped("timeline by nsys", why, enable)


def _tail(text: str) -> str:
    return text.strip()[-_MAX_OUTPUT_CHARACTERS:] or "(no output)"


def read_database(database: Path) -> Trace:
    """Read an SQLite export. It lacks tables of events that did not happen; older versions lack columns."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        text = dict(_rows(db, "StringIds", "id", "value"))
        marks = _rows(db, "NVTX_EVENTS", "start", "end", "text", "textId")
        ranges = [(label or text.get(key, ""), start, end) for start, end, label, key in marks if end]
        events = [*_kernels(db, text), *_copies(db), *_apis(db, text)]
    return Trace("nsys", calls_from_ranges(ranges), tuple(sorted(events, key=lambda event: event.start_ns)))


def _kernels(db: sqlite3.Connection, text: dict[int, str]) -> Iterator[TraceEvent]:
    shape = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    used = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory")
    columns = ("start", "end", "correlationId", "mangledName", "demangledName", *shape, *used)
    for start, end, linked, mangled, plain, *numbers in _rows(db, "CUPTI_ACTIVITY_KIND_KERNEL", *columns):
        name = text.get(mangled) or text.get(plain, "?")  # nsys demangles in its own style
        sizes = [number or 0 for number in numbers]
        registers, static, dynamic = sizes[6:]
        grid, block = tuple(sizes[:3]), tuple(sizes[3:6])
        yield TraceEvent(
            "kernel", name, start, end, grid, block, registers, static, dynamic, correlation=linked or 0
        )


def _copies(db: sqlite3.Connection) -> Iterator[TraceEvent]:
    for start, end, linked, nbytes, kind in _rows(
        db, "CUPTI_ACTIVITY_KIND_MEMCPY", "start", "end", "correlationId", "bytes", "copyKind"
    ):
        way = COPY_KINDS.get(kind, "other")
        yield TraceEvent("copy", way, start, end, nbytes=nbytes or 0, copy_kind=way, correlation=linked or 0)
    for start, end, linked, nbytes in _rows(
        db, "CUPTI_ACTIVITY_KIND_MEMSET", "start", "end", "correlationId", "bytes"
    ):
        yield TraceEvent("memset", "memset", start, end, nbytes=nbytes or 0, correlation=linked or 0)


def _apis(db: sqlite3.Connection, text: dict[int, str]) -> Iterator[TraceEvent]:
    """Yield runtime and driver calls: nsys stores both in one table."""
    for start, end, linked, key, thread in _rows(
        db, "CUPTI_ACTIVITY_KIND_RUNTIME", "start", "end", "correlationId", "nameId", "globalTid"
    ):
        yield TraceEvent(
            "api", api_name(text.get(key, "?")), start, end, correlation=linked or 0, thread=thread or 0
        )


def _rows(db: sqlite3.Connection, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    present = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
    if present:
        chosen = (f'"{name}"' if name in present else "NULL" for name in columns)
        yield from db.execute(f"SELECT {', '.join(chosen)} FROM {table}")
