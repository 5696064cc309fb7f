"""Nsight Compute: hardware counters and stalls by source line, through its command line and CSV output.

`commands` returns the commands to run in a sandbox; `parse_raw_page` and `parse_source_page` parse the
output. ncu collects the requested metrics and some that are always needed. `profiled_program` launches a
marker kernel before each entry, which separates the kernels of several entries. The launches of one kernel
(one instance of a template) are merged, weighted by time."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelpro.lab.profile.kernel_names import demangle
from kernelpro.lab.profile.profiled_program import MARKER_KERNEL
from kernelpro.records import Line, Skipped

TIME_METRIC = "gpu__time_duration.sum"
BASE_METRICS = (
    TIME_METRIC,
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
)
"""Speed of light, bytes and occupancy, which stage 1 of the diagnosis compares with the roofline. ncu adds
the launch properties of every kernel by itself."""
BREAKDOWN_METRICS = (
    "breakdown:sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "breakdown:gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
)
"""The components of the speed of light: each pipe of the SMs, and each unit of L1, L2 and DRAM of this chip.
ncu computes both throughputs from them, so that they should need no further pass."""
SOURCE_SECTIONS = ("SourceCounters", "WarpStateStats")
"""Sections on where and why warps stall. The first samples stalls by line; requesting its metrics by name
would give no columns on the source page. The second counts every stall reason of this chip, whose names
differ between chips."""
_REPORT = "kernels.ncu-rep"
MAX_LAUNCHES = 40
"""Number of launches that ncu measures for each entry."""
_MAX_LINES = 20
_MIN_STALL_SHARE, _MIN_INSTRUCTION_SHARE = 0.05, 0.10
"""Smallest shares of a line's samples for which a stall reason or an instruction is listed."""
_MAX_INSTRUCTIONS = 4
PERMISSION = (
    "set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia kernel module, or run as root (CAP_SYS_ADMIN)"
)


def find_ncu() -> str | None:
    """Return ncu's path from KERNELPRO_NCU (empty disables it), the PATH, the CUDA toolkit, or Nsight."""
    configured = os.environ.get("KERNELPRO_NCU")
    if configured is not None:
        return configured or None
    cuda_homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    found = shutil.which("ncu") or next(
        (p for home in cuda_homes if home and os.access(p := f"{home}/bin/ncu", os.X_OK)), None
    )
    return found or next(
        (str(path) for path in sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)), None
    )


def commands(
    ncu: str,
    target: list[str],
    metrics: tuple[str, ...],
    lines: bool,
    kernels: tuple[str, ...],
    launches: int = MAX_LAUNCHES,
    unsupported: frozenset[str] = frozenset(),
) -> list[list[str]]:
    """Return the commands that collect, print the raw page and (with `lines`) print the source page.

    `unsupported`: metrics that this device does not have.
    """
    collected = dict.fromkeys(
        name for name in (*BASE_METRICS, *BREAKDOWN_METRICS, *metrics) if name not in unsupported
    )
    collect = [
        ncu,
        "--profile-from-start",
        "off",
        "--clock-control",
        "none",
        "--metrics",
        ",".join(collected),
    ]
    collect += ["--launch-count", str(launches), "-f", "-o", _REPORT]
    for section in SOURCE_SECTIONS if lines else ():
        collect += ["--section", section]
    if kernels:
        collect += ["--kernel-name", f"regex:^({'|'.join(map(re.escape, (MARKER_KERNEL, *kernels)))})$"]
    # mangled, because demanglers differ: `demangle` treats these names like those of the timeline
    show = [ncu, "--import", _REPORT, "--csv", "--print-units", "base", "--print-kernel-base", "mangled"]
    commands = [[*collect, *target], [*show, "--page", "raw"]]
    if lines:
        commands.append([*show, "--page", "source", "--print-source", "cuda,sass"])
    return commands


def unsupported_metrics(text: str, metrics: tuple[str, ...]) -> frozenset[str]:
    """Return the requested metrics that ncu's errors name. After such an error, ncu collects nothing."""
    named = {
        word for line in text.splitlines() if "==ERROR==" in line for word in re.findall(r"[\w.:]+", line)
    }
    return frozenset(named & {*BASE_METRICS, *BREAKDOWN_METRICS, *metrics})


@dataclass
class KernelCounters:
    """Counters of one kernel of one entry."""

    name: str
    """The demangled name, with template arguments and parameters."""
    nanoseconds: float = 0.0
    launches: int = 0
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    """Grid and block are those of the first launch."""
    metrics: dict[str, float] = field(default_factory=dict)


def explain_failure(text: str) -> Skipped:
    """Explain why ncu collected nothing."""
    if "ERR_NVGPUCTRPERM" in text:
        return Skipped(
            "ncu",
            "this user may not read performance counters (ERR_NVGPUCTRPERM)",
            PERMISSION,
        )
    if "No kernels were profiled" in text:
        return Skipped("ncu", "no kernel was launched")
    error_lines = [line for line in text.splitlines() if "==ERROR==" in line or "Error" in line]
    last = (error_lines or text.strip().splitlines() or ["it failed without a message"])[-1]
    return Skipped("ncu", last.strip()[:300], "run `kernelpro doctor`")


def parse_raw_page(text: str, entries: int, marked: bool = True) -> list[dict[str, KernelCounters]]:
    """Parse the raw page: for each entry, its kernels by name, with launches merged.

    `marked`: a marker precedes each entry. Without markers, all kernels belong to the first entry.
    """
    kernels_by_entry: list[dict[str, KernelCounters]] = [{} for _ in range(entries)]
    entry = -1 if marked else 0
    for row in _rows(text):
        name = demangle(row.get("Kernel Name", ""))
        if MARKER_KERNEL in name:
            entry += marked
            continue
        if not 0 <= entry < entries:
            continue
        values = {
            key: number
            for key, cell in row.items()
            if "__" in key and (number := _parse_number(cell)) is not None
        }
        grid, block = (_parse_extents(row.get(column)) for column in ("Grid Size", "Block Size"))
        _merge(
            kernels_by_entry[entry].setdefault(name, KernelCounters(name)),
            KernelCounters(name, values.get(TIME_METRIC, 0.0), 1, grid, block, values),
        )
    return kernels_by_entry


def count_launches(text: str) -> int:
    """Return the number of launches in the raw page, markers included."""
    return sum(1 for _ in _rows(text))


def merge_counters(counters: Iterable[KernelCounters]) -> KernelCounters | None:
    """Merge the counters of several kernels; None if there are none."""
    total = None
    for kernel in counters:
        total = total or KernelCounters(kernel.name)
        _merge(total, kernel)
    return total


def _parse_extents(cell: str | None) -> tuple[int, ...]:
    """Parse `(8192, 1, 1)`."""
    return tuple(map(int, re.findall(r"\d+", cell or "")))


def _rows(text: str) -> Iterator[dict[str, str]]:
    """Yield the rows of the CSV after ncu's messages, without the row of units."""
    start = text.find('"ID"')
    if start < 0:
        return
    reader = csv.DictReader(io.StringIO(text[start:]))
    for row in reader:
        if row.get("ID"):
            yield row


def _parse_number(cell: str | None) -> float | None:
    try:
        return float((cell or "").replace(",", ""))
    except ValueError:
        return None


def _merge(into: KernelCounters, more: KernelCounters) -> None:
    """Merge averages over launches: weight sums by launches, and rates and shares by time."""
    total, launches = into.nanoseconds + more.nanoseconds, into.launches + more.launches
    for key, value in more.metrics.items():
        before = into.metrics.get(key, value)
        if key.endswith(".sum"):
            into.metrics[key] = (before * into.launches + value * more.launches) / launches
        elif total > 0:
            into.metrics[key] = (before * into.nanoseconds + value * more.nanoseconds) / total
        else:
            into.metrics[key] = value
    into.nanoseconds, into.launches = total, launches
    into.grid, into.block = into.grid or more.grid, into.block or more.block


def parse_source_page(text: str, sources: dict[str, str]) -> dict[str, tuple[Line, ...]]:
    """Parse the source page: the lines of each kernel with the most stall samples.

    `sources`: source texts by file name.
    """
    lines_by_kernel: dict[str, list[Line]] = {}
    for block in re.split(r'(?m)^(?="(?:File Path|Kernel Name)",)', text):
        kernel, lines = _parse_source_block(block, sources)
        lines_by_kernel.setdefault(kernel, []).extend(lines)
    worst = {}
    for kernel, lines in lines_by_kernel.items():
        total = sum(line.share for line in lines)
        if kernel and total:
            ranked = sorted(lines, key=lambda line: -line.share)[:_MAX_LINES]
            worst[kernel] = tuple(replace(line, share=line.share / total) for line in ranked)
    return worst


_STALL_NAMES = {
    "long_sb": "long_scoreboard",
    "short_sb": "short_scoreboard",
    "lg": "lg_throttle",
    "math": "math_pipe_throttle",
    "mio": "mio_throttle",
    "tex": "tex_throttle",
    "imc": "imc_miss",
    "no_inst": "no_instruction",
    "dispatch": "dispatch_stall",
    "sleep": "sleeping",
}
"""Short names of stall reasons on the source page, and their names as counters."""


_STALL_COLUMN = re.compile(r"(?:stall_|smsp__pcsamp_warps_issue_stalled_)(\w+?)(?<!_not_issued)")


def _reason(name: str) -> str:
    return _STALL_NAMES.get(name, name)


def _parse_source_block(block: str, sources: dict[str, str]) -> tuple[str, list[Line]]:
    """Parse the lines of one kernel in one file, each with its worst instructions.

    `share` of a returned line is its number of samples.
    """
    rows = list(csv.reader(io.StringIO(block)))
    header = {row[0]: row[1] for row in rows[:3] if len(row) >= 2}
    file = os.path.basename(header.get("File Path", ""))
    kernel = demangle(header.get("Function Name") or header.get("Kernel Name", ""))
    columns = next((row for row in rows if row and row[0] == "Line No"), None)
    if columns is None or MARKER_KERNEL in kernel:
        return "", []
    reasons = {
        i: _reason(match[1]) for i, name in enumerate(columns) if (match := _STALL_COLUMN.fullmatch(name))
    }
    text = next(
        (content for name, content in sources.items() if os.path.basename(name) == file), ""
    ).splitlines()
    lines: list[Line] = []
    for row in rows[rows.index(columns) + 1 :]:
        count = sum(_parse_number(row[i]) or 0.0 for i in reasons) if len(row) == len(columns) else 0.0
        if not count:
            continue
        if row[0]:
            shares = {reason: (_parse_number(row[i]) or 0.0) / count for i, reason in reasons.items()}
            stalls = dict(
                sorted(
                    ((r, s) for r, s in shares.items() if s >= _MIN_STALL_SHARE), key=lambda item: -item[1]
                )
            )
            number = int(row[0])
            line_text = (
                text[number - 1]
                if 0 < number <= len(text)
                else row[1].replace("<Unable to open source file>", "")
            )
            lines.append(Line(f"{file}:{number}", line_text.strip(), count, stalls))
        elif lines and count >= _MIN_INSTRUCTION_SHARE * lines[-1].share:
            lines[-1] = replace(
                lines[-1], sass=(*lines[-1].sass, " ".join(row[3].split()))[:_MAX_INSTRUCTIONS]
            )
    return kernel, lines
