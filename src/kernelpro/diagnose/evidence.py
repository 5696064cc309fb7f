"""The evidence page: the profile in numbers, for an expert who optimizes the kernel.

Time split into device and host, on the CPU by functions, loops and threads; the autotuned configuration;
each kernel beside the library's or compiler's, column by column: launch, bytes between the memory levels,
utilization of each pipe; the breakdown of the SM and memory throughput; all stall reasons; the hottest
lines with their SASS; clock and power; the compiler's warnings. Sections come most valuable first, and are
cut to a token budget from the end. The same profile always gives the same page.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from kernelpro.diagnose.counters import (
    DRAM_READ,
    DRAM_THROUGHPUT,
    DRAM_WRITTEN,
    DURATION,
    ISSUE_ACTIVE,
    MEMORY_THROUGHPUT,
    SECTOR,
    SM_THROUGHPUT,
    WARP_CYCLES,
    WAVEFRONTS,
    stall_metric,
)
from kernelpro.diagnose.diagnostic import DiagnosticContext, MissingData
from kernelpro.diagnose.guidance import number
from kernelpro.diagnose.kernel_names import display_name, plain_name
from kernelpro.diagnose.occupancy import kernel_occupancy, registers_per_thread, shared_bytes
from kernelpro.diagnose.stall_reasons import DESCRIPTIONS
from kernelpro.diagnose.traffic import L1_LOADED, L1_STORED, L2_READ
from kernelpro.records import Bound, CpuProfile, Kernel, Profile

CHARACTERS_PER_TOKEN = 4
"""A rough mean for English and code; only the order of magnitude matters here."""
_MAX_KERNELS = 3
_MAX_LINES = 12
_MIN_STALL = 0.03
_MIN_UTILIZATION, _MAX_UNITS = 5.0, 6
"""Throughput breakdown: the lowest utilization shown, in percent, and the number of units."""
_MIN_SHARE = 0.01
_MIN_LOOP_SHARE = 0.08
_MAX_FUNCTIONS = 5


def write(profile: Profile, tokens: int = 2500) -> str:
    """The page, in Markdown."""
    sections = ("\n".join(section(profile)) for section in _SECTIONS)
    page, limit = "\n\n".join(filter(None, sections)) + "\n", tokens * CHARACTERS_PER_TOKEN
    if len(page) <= limit:
        return page
    lines = page[:limit].split("\n")[:-1]
    while lines and (not lines[-1] or lines[-1].startswith("## ")):  # no heading without content
        lines.pop()
    return "\n".join(lines) + "\n" if lines else ""


def _time(profile: Profile) -> Iterator[str]:
    yield "## Time of a call"
    share = profile.floor_ms / profile.time_ms
    time, floor = f"{profile.time_ms:.4f} ms", f"{profile.floor_ms:.4f} ms"
    yield f"profiled {time}; floor {floor} ({share:.0%} of the floor's speed)"
    if timeline := profile.timeline:
        outside = max(0.0, timeline.call_us - timeline.busy_us - timeline.gaps_us)
        yield (
            f"traced ({timeline.source}): {timeline.call_us:.1f} us = device busy {timeline.busy_us:.1f} + "
            f"gaps {timeline.gaps_us:.1f} + host before and after {outside:.1f}, with tracing overhead; "
            f"{timeline.launches:g} launch{'' if timeline.launches == 1 else 'es'}"
        )
        for copy in timeline.copies:
            size = number(copy.nbytes)
            yield f"copies {copy.kind}: {copy.count:g}, {size} bytes, {copy.microseconds:.1f} us"
        for name, count in timeline.syncs.items():
            yield f"synchronization inside the call: {name} x {count:g}"


def _cpu(profile: Profile) -> Iterator[str]:
    """Where a call's time goes on the CPU: native code and Python, functions and loops, threads."""
    cpu = profile.cpu
    if cpu is None or cpu.dynamic.call_ms is None or cpu.dynamic.native_ms is None:
        return
    run = cpu.dynamic
    yield "## On the CPU, consecutive calls (warm caches)"
    calls = run.native_calls
    count = f" in {number(round(calls, 1))} call{'' if calls == 1 else 's'}" if calls else ""
    around = max(0.0, cpu.dynamic.call_ms - cpu.dynamic.native_ms)
    native = f"{run.native_ms:.4f} in native code{count}"
    yield f"a call takes {run.call_ms:.4f} ms: {native}, {around:.4f} around it"
    if cpu.sampled:
        yield from _cpu_shares(cpu)
    works = ", ".join(f"{thread.work_ms:.4f}" for thread in run.threads)
    fixed = "num_threads" in profile.source  # then one OpenMP thread was not possible
    alone = f"; one thread takes {run.alone_ms:.4f} ms" if run.alone_ms is not None and not fixed else ""
    effective = run.effective_threads or 0.0
    yield f"effective threads: {effective:.1f} of {cpu.cores} cores (work of each, ms: {works}){alone}"
    if run.minor_faults and run.minor_faults >= 1:
        yield f"page faults in a call: {run.minor_faults:.0f}"


def _cpu_shares(cpu: CpuProfile) -> Iterator[str]:
    """CPU time by library, function and loop."""
    shares = {
        "native code": cpu.shares.native,
        "libm": cpu.shares.libm,
        "torch": cpu.shares.torch,
        "libc (copies, fills)": cpu.shares.libc,
        "interpreter": cpu.shares.host,
    }
    functions: dict[str, float] = {}
    for function in cpu.functions:  # parallel regions and clones count for their function
        name = plain_name(function.name)
        functions[name] = functions.get(name, 0.0) + function.share
    for title, items in (
        ("CPU time", list(shares.items())),
        ("by function", sorted(functions.items(), key=lambda item: -item[1])[:_MAX_FUNCTIONS]),
    ):
        if parts := [f"{name} {share:.0%}" for name, share in items if share >= _MIN_SHARE]:
            yield f"{title}: {', '.join(parts)}"
    for loop in [loop for loop in cpu.loops if loop.share >= _MIN_LOOP_SHARE][:_MAX_FUNCTIONS]:
        width = f"{loop.bits}-bit vectors" if loop.bits else "scalar"
        place = loop.where or plain_name(loop.function)
        yield f"{loop.share:4.0%}  innermost loop at {place}, {width}  {loop.text}".rstrip()


def _configuration(profile: Profile) -> Iterator[str]:
    if profile.compiler.configuration:
        yield "## Autotuned configuration"
        yield from (f"{name}: {text}" for name, text in profile.compiler.configuration.items())


_LOCAL = tuple(f"l1tex__t_requests_pipe_lsu_mem_local_op_{operation}.sum" for operation in ("st", "ld"))

_ROWS: tuple[tuple[str, Callable[[Kernel], str]], ...] = (
    ("time in a call, us", lambda k: f"{k.microseconds:.1f}" if k.microseconds else ""),
    ("time of a launch under ncu, us", lambda k: _scaled(k, DURATION, 1e-3)),
    ("launches", lambda k: f"{k.launches:g}"),
    (
        "grid x block",
        lambda k: f"{'x'.join(map(str, k.grid))} x {'x'.join(map(str, k.block))}" if k.grid else "",
    ),
    ("registers per thread", lambda k: str(registers_per_thread(k) or "")),
    ("shared memory per block, bytes", lambda k: str(shared_bytes(k) or "")),
    ("spilled bytes (stores, loads)", lambda k: _spills(k)),
    ("achieved occupancy, %", lambda k: _metric(k, "sm__warps_active.avg.pct_of_peak_sustained_active")),
    ("waves per SM", lambda k: _metric(k, "launch__waves_per_multiprocessor")),
    ("SM throughput, % of peak", lambda k: _metric(k, SM_THROUGHPUT)),
    ("memory throughput, % of peak", lambda k: _metric(k, MEMORY_THROUGHPUT)),
    ("DRAM throughput, % of peak", lambda k: _metric(k, DRAM_THROUGHPUT)),
    ("DRAM read, MB per launch", lambda k: _scaled(k, DRAM_READ, 1e-6)),
    ("DRAM written, MB per launch", lambda k: _scaled(k, DRAM_WRITTEN, 1e-6)),
    ("L2 to L1, MB per launch", lambda k: _scaled(k, L2_READ, SECTOR * 1e-6)),
    ("global loads from L1, MB per launch", lambda k: _scaled(k, L1_LOADED, SECTOR * 1e-6)),
    ("global stores, MB per launch", lambda k: _scaled(k, L1_STORED, SECTOR * 1e-6)),
    (
        "shared memory, million wavefronts per launch",
        lambda k: _scaled(k, WAVEFRONTS, 1e-6),
    ),
    ("L2 read hit rate, %", lambda k: _metric(k, "lts__t_sector_op_read_hit_rate.pct")),
    ("FMA pipe, % of peak", lambda k: _pipe(k, "fma")),
    ("ALU pipe, % of peak", lambda k: _pipe(k, "alu")),
    ("special functions (XU), % of peak", lambda k: _pipe(k, "xu")),
    ("FP64 pipe, % of peak", lambda k: _pipe(k, "fp64")),
    ("load/store unit (LSU), % of peak", lambda k: _pipe(k, "lsu")),
    ("tensor pipe, % of peak", lambda k: _pipe(k, "tensor")),
    ("issue slots used, %", lambda k: _metric(k, ISSUE_ACTIVE)),
)


def _metric(kernel: Kernel, name: str) -> str:
    value = kernel.metrics.get(name)
    return "" if value is None else number(round(value, 2))


def _scaled(kernel: Kernel, name: str, factor: float) -> str:
    value = kernel.metrics.get(name)
    return "" if value is None else f"{value * factor:.1f}"


def _pipe(kernel: Kernel, name: str) -> str:
    """Utilization of a pipe by the first collected counter: over active cycles, else over the launch."""
    metrics = [
        f"sm__{form}.avg.pct_of_peak_sustained_{over}"
        for over in ("active", "elapsed")
        for form in (f"pipe_{name}_cycles_active", f"inst_executed_pipe_{name}")
    ]
    return next((text for metric in metrics if (text := _metric(kernel, metric))), "")


def _spills(kernel: Kernel) -> str:
    code = kernel.code
    if code and code.spill_stores is not None:
        return f"{code.spill_stores}, {code.spill_loads or 0}"
    if code and code.mix:
        return f"{code.count('local_store')}, {code.count('local_load')} instructions"
    requests = [_metric(kernel, name) for name in _LOCAL]
    return f"{', '.join(requests)} requests" if all(requests) else ""


def _kernels(profile: Profile) -> Iterator[str]:
    columns = [(display_name(kernel, profile.kernels), kernel) for kernel in profile.kernels[:_MAX_KERNELS]]
    columns += [  # their time in a call was not traced
        (f"{name}: {plain_name(kernel.name)}", replace(kernel, microseconds=0.0))
        for name, reference in profile.references.items()
        for kernel in reference.kernels[:1]
    ]
    if not columns:
        return
    yield "## Kernels" + (", beside the baselines' largest" if profile.references else "")
    yield "| | " + " | ".join(title for title, _ in columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for title, cell in _ROWS:
        cells = [cell(kernel) for _, kernel in columns]
        if any(cells):
            yield f"| {title} | " + " | ".join(cells) + " |"
    for kernel in profile.kernels[:1]:
        with contextlib.suppress(MissingData):
            occupancy = kernel_occupancy(DiagnosticContext(profile, Bound.MIXED, kernel))
            yield f"theoretical occupancy is limited by {occupancy.limiter}: {occupancy}"
        yield from _throughput_breakdown(kernel)


_UNIT_METRIC = re.compile(r"(\w+__\w+)\.(?:avg|sum|max)\.pct_of_peak_sustained_elapsed")


def _throughput_breakdown(kernel: Kernel) -> Iterator[str]:
    """The units behind SM and memory throughput, under ncu's own names, which differ between chips."""
    metrics = {m[1]: value for name, value in kernel.metrics.items() if (m := _UNIT_METRIC.fullmatch(name))}
    units = {
        name: value
        for name, value in metrics.items()
        if not name.endswith("throughput") and value >= _MIN_UTILIZATION
    }
    inside = [name for name in units if name.startswith(("sm__", "smsp__", "idc__"))]
    for title, names in (("SM", inside), ("memory", [name for name in units if name not in inside])):
        if names:
            busiest = sorted(names, key=lambda name: -units[name])[:_MAX_UNITS]
            values = ", ".join(f"{name} {units[name]:.0f}" for name in busiest)
            yield f"{title} throughput breakdown (% of peak): {values}"


_STALL = re.compile(re.escape(stall_metric("REASON")).replace("REASON", r"(\w+?)(?<!_not_issued)"))


def _stalls(profile: Profile) -> Iterator[str]:
    for kernel in profile.kernels[:1]:
        cycles = kernel.metrics.get(WARP_CYCLES, 0.0)
        counts = {m[1]: value for name, value in kernel.metrics.items() if (m := _STALL.fullmatch(name))}
        if not cycles or not counts:
            continue
        shares = sorted(((name, value / cycles) for name, value in counts.items()), key=lambda item: -item[1])
        yield f"## Warp stalls of {plain_name(kernel.name)} (share of warp cycles)"
        yield from (
            f"{share:4.0%}  {reason}: {DESCRIPTIONS.get(reason, reason)}"
            for reason, share in shares
            if share >= _MIN_STALL
        )
        small = [(reason, share) for reason, share in shares if _MIN_STALL > share >= _MIN_SHARE / 2]
        if small:
            yield "less: " + ", ".join(f"{reason} {share:.0%}" for reason, share in small)
        if (rest := 1 - sum(share for _, share in shares)) >= _MIN_SHARE:
            yield f"{rest:4.0%}  reasons that were not counted"


def _lines(profile: Profile) -> Iterator[str]:
    for kernel in profile.kernels[:1]:
        if kernel.lines:
            yield f"## Hottest lines of {plain_name(kernel.name)}, by stall samples"
        for line in kernel.lines[:_MAX_LINES]:
            reasons = ", ".join(f"{reason} {share:.0%}" for reason, share in list(line.stalls.items())[:3])
            yield f"{line.share:4.0%}  {line.where or '(no line information)'}  {line.text}".rstrip() + (
                f"   [{reasons}]" if reasons else ""
            )
            yield from (f"        {text}" for text in line.sass)


def _power(profile: Profile) -> Iterator[str]:
    power = profile.power
    if power is None or power.watts is None:
        return
    yield "## Under sustained load"
    clock = limit = capped = ""
    if power.sm_mhz is not None and power.max_sm_mhz is not None:
        clock = f", SM clock {power.sm_mhz:.0f} of {power.max_sm_mhz:.0f} MHz"
    if power.limit_watts is not None:
        limit = f" of {power.limit_watts:.0f}"
    if power.capped is not None:
        capped = f"; {'' if power.capped > 0.5 else 'not '}power-limited"
    yield f"{power.watts:.0f}{limit} W{clock}{capped}"


def _warnings(profile: Profile) -> Iterator[str]:
    warnings = [
        *profile.compiler.warnings,
        *(text for kernel in profile.kernels if kernel.code for text in kernel.code.warnings),
    ]
    if warnings:
        yield "## Compiler warnings"
        yield from dict.fromkeys(warnings)


def _skipped(profile: Profile) -> Iterator[str]:
    if profile.skipped:
        yield "## Not measured"
        for item in profile.skipped:
            yield f"{item.what}: {item.why}" + (f" ({item.enable})" if item.enable else "")


_SECTIONS: tuple[Callable[[Profile], Iterator[str]], ...] = (
    _time,
    _cpu,
    _configuration,
    _kernels,
    _stalls,
    _lines,
    _power,
    _warnings,
    _skipped,
)
