"""Nsight Compute: hardware counters and stalls by line, through its command line and CSV.

`commands` says what to run (in a cell), `read_raw` and `read_lines` take what it printed. Only the metrics that were asked for
are collected; kernels of several entries are told apart by the marker kernel that `target` launches before
each; the launches of one kernel (one instance of a template) are merged, weighted by time.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelpro.lab.profile.target import MARKER
from kernelpro.lab.profile.timeline import readable
from kernelpro.records import Line, Skipped

TIME = "gpu__time_duration.sum"
ALWAYS = (
    TIME,
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
)
"""The speed of light, bytes and occupancy: what stage 1 holds against the roofline. Launch properties come with every kernel."""
PARTS = (
    "breakdown:sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "breakdown:gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
)
"""What the speed of light is made of: each pipe of the SMs, each part of L1, L2 and DRAM that this chip has. They are what the two
throughputs are computed from: they should cost no pass more."""
LINES = ("SourceCounters", "WarpStateStats")
"""Sections for where and why warps wait. The first samples stalls by line; the same metrics by name give no columns on the source
page. The second counts every reason that this chip knows; names of reasons differ from chip to chip."""
_REPORT = "kernels.ncu-rep"
MOST_LAUNCHES = 40
"""For each entry."""
_MOST_LINES = 20
_LEAST_STALL, _LEAST_SHARE = 0.05, 0.10
"""Of a line's samples: for a reason to be told, for an instruction to be shown."""
_MOST_INSTRUCTIONS = 4
PERMISSION = (
    "set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia kernel module, or run as root (CAP_SYS_ADMIN)"
)


def find() -> str | None:
    """ncu's path: KERNELPRO_NCU (empty forbids it), the PATH, CUDA's folder, Nsight's own."""
    given = os.environ.get("KERNELPRO_NCU")
    if given is not None:
        return given or None
    places = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    found = shutil.which("ncu") or next(
        (p for home in places if home and os.access(p := f"{home}/bin/ncu", os.X_OK)), None
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
    launches: int = MOST_LAUNCHES,
    without: frozenset[str] = frozenset(),
) -> list[list[str]]:
    """Collect, then print the raw page, then (with `lines`) the source page. `without`: metrics that this device does not have."""
    wanted = dict.fromkeys(name for name in (*ALWAYS, *PARTS, *metrics) if name not in without)
    collect = [ncu, "--profile-from-start", "off", "--clock-control", "none", "--metrics", ",".join(wanted)]
    collect += ["--launch-count", str(launches), "-f", "-o", _REPORT]
    for section in LINES if lines else ():
        collect += ["--section", section]
    if kernels:
        collect += ["--kernel-name", f"regex:^({'|'.join(map(re.escape, (MARKER, *kernels)))})$"]
    # Mangled, because every demangler writes template arguments in its own way: this name is demangled as the timeline's are.
    show = [ncu, "--import", _REPORT, "--csv", "--print-units", "base", "--print-kernel-base", "mangled"]
    found = [[*collect, *target], [*show, "--page", "raw"]]
    if lines:
        found.append([*show, "--page", "source", "--print-source", "cuda,sass"])
    return found


def unknown(text: str, metrics: tuple[str, ...]) -> frozenset[str]:
    """Metrics that were asked for and that ncu's errors name: it then counts nothing at all."""
    named = {
        word for line in text.splitlines() if "==ERROR==" in line for word in re.findall(r"[\w.:]+", line)
    }
    return frozenset(named & {*ALWAYS, *PARTS, *metrics})


@dataclass
class Counted:
    """One kernel of one entry."""

    name: str
    """In full, template arguments and parameters included."""
    nanoseconds: float = 0.0
    launches: int = 0
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    """Of the first launch, as `grid`."""
    metrics: dict[str, float] = field(default_factory=dict)


def refusal(text: str) -> Skipped:
    """Why ncu gave nothing, in words."""
    if "ERR_NVGPUCTRPERM" in text:
        return Skipped(
            "ncu",
            "the driver does not let this user read performance counters (ERR_NVGPUCTRPERM)",
            PERMISSION,
        )
    if "No kernels were profiled" in text:
        return Skipped("ncu", "it saw no kernel", "")
    told = [line for line in text.splitlines() if "==ERROR==" in line or "Error" in line]
    last = (told or text.strip().splitlines() or ["it ended without a word"])[-1]
    return Skipped("ncu", last.strip()[:300], "run `kernelpro doctor`")


def read_raw(text: str, entries: int) -> list[dict[str, Counted]]:
    """The raw page: for each entry its kernels by name, launches merged."""
    found: list[dict[str, Counted]] = [{} for _ in range(entries)]
    entry = -1
    for row in _rows(text):
        name = readable(row.get("Kernel Name", ""))
        if MARKER in name:
            entry += 1
            continue
        if not 0 <= entry < entries:
            continue
        values = {
            key: number for key, cell in row.items() if "__" in key and (number := _number(cell)) is not None
        }
        grid, block = (_extents(row.get(column)) for column in ("Grid Size", "Block Size"))
        _merge(
            found[entry].setdefault(name, Counted(name)),
            Counted(name, values.get(TIME, 0.0), 1, grid, block, values),
        )
    return found


def launches(text: str) -> int:
    """How many launches the raw page tells of, markers included."""
    return sum(1 for _ in _rows(text))


def merged(counted: Iterable[Counted]) -> Counted | None:
    """Several kernels as one; None where there is none."""
    whole = None
    for one in counted:
        whole = whole or Counted(one.name)
        _merge(whole, one)
    return whole


def _extents(cell: str | None) -> tuple[int, ...]:
    """`(8192, 1, 1)` as numbers."""
    return tuple(map(int, re.findall(r"\d+", cell or "")))


def _rows(text: str) -> Iterator[dict[str, str]]:
    """CSV after whatever ncu printed before it; the row of units is left out."""
    start = text.find('"ID"')
    if start < 0:
        return
    reader = csv.DictReader(io.StringIO(text[start:]))
    for row in reader:
        if row.get("ID"):
            yield row


def _number(cell: str | None) -> float | None:
    try:
        return float((cell or "").replace(",", ""))
    except ValueError:
        return None


def _merge(into: Counted, more: Counted) -> None:
    """All are averages over launches: of sums the plain one, of rates and shares the one weighted by time."""
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


def read_lines(text: str, sources: dict[str, str]) -> dict[str, tuple[Line, ...]]:
    """The source page: for each kernel its worst lines by stall samples. `sources`: text of native sources by name."""
    found: dict[str, list[Line]] = {}
    for block in re.split(r'(?m)^(?="(?:File Path|Kernel Name)",)', text):
        kernel, lines = _block(block, sources)
        found.setdefault(kernel, []).extend(lines)
    worst = {}
    for kernel, lines in found.items():
        total = sum(line.share for line in lines)
        if kernel and total:
            ranked = sorted(lines, key=lambda line: -line.share)[:_MOST_LINES]
            worst[kernel] = tuple(replace(line, share=line.share / total) for line in ranked)
    return worst


_REASONS = {
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
"""The source page's short names -> those of the counters."""


_STALL = re.compile(r"(?:stall_|smsp__pcsamp_warps_issue_stalled_)(\w+?)(?<!_not_issued)")


def _reason(name: str) -> str:
    return _REASONS.get(name, name)


def _block(block: str, sources: dict[str, str]) -> tuple[str, list[Line]]:
    """One file's lines of one kernel, each with its worst instructions; `share` is still a count of samples."""
    rows = list(csv.reader(io.StringIO(block)))
    about = {row[0]: row[1] for row in rows[:3] if len(row) >= 2}
    file = os.path.basename(about.get("File Path", ""))
    kernel = readable(about.get("Function Name") or about.get("Kernel Name", ""))
    head = next((row for row in rows if row and row[0] == "Line No"), None)
    if head is None or MARKER in kernel:
        return "", []
    reasons = {i: _reason(match[1]) for i, name in enumerate(head) if (match := _STALL.fullmatch(name))}
    text = next(
        (content for name, content in sources.items() if os.path.basename(name) == file), ""
    ).splitlines()
    lines: list[Line] = []
    for row in rows[rows.index(head) + 1 :]:
        count = sum(_number(row[i]) or 0.0 for i in reasons) if len(row) == len(head) else 0.0
        if not count:
            continue
        if row[0]:
            shares = {reason: (_number(row[i]) or 0.0) / count for i, reason in reasons.items()}
            stalls = dict(
                sorted(((r, s) for r, s in shares.items() if s >= _LEAST_STALL), key=lambda item: -item[1])
            )
            number = int(row[0])
            shown = (
                text[number - 1]
                if 0 < number <= len(text)
                else row[1].replace("<Unable to open source file>", "")
            )
            lines.append(Line(f"{file}:{number}", shown.strip(), count, stalls))
        elif lines and count >= _LEAST_SHARE * lines[-1].share:
            lines[-1] = replace(
                lines[-1], sass=(*lines[-1].sass, " ".join(row[3].split()))[:_MOST_INSTRUCTIONS]
            )
    return kernel, lines
