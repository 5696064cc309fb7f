"""The evidence pack: what an expert who is asked to improve a kernel wants on one page.

Time split into device and host, on the CPU by functions, loops and threads; the configuration that ran; each kernel
beside the library's or compiler's, column by column: launch, bytes between the levels of memory, use of each pipe; what the
high-level percentages are made of; all stall reasons; the worst lines with their machine code; clock and power; the
compiler's remarks. Sections come most valuable first, and are cut to a budget of tokens from the end: the same
profile always gives the same page.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from kernelpro.diagnose import occupancy
from kernelpro.diagnose.counters import (
    DRAM_THROUGHPUT,
    DURATION,
    ISSUE_ACTIVE,
    MEMORY_THROUGHPUT,
    SM_THROUGHPUT,
    WARP_CYCLES,
    stall_metric,
)
from kernelpro.diagnose.diagnostic import DiagnosticContext, MissingData
from kernelpro.diagnose.guidance import number
from kernelpro.diagnose.kernel_names import display_name, plain_name
from kernelpro.diagnose.stall_reasons import WORDS
from kernelpro.diagnose.traffic import DRAM_READ, DRAM_WRITTEN, L1_LOADED, L1_STORED, L2_READ, SECTOR
from kernelpro.records import Bound, Kernel, Profile

CHARACTERS_PER_TOKEN = 4
"""Of English and code, roughly; only the order of magnitude matters here."""
_MOST_KERNELS = 3
_MOST_LINES = 12
_LEAST_STALL = 0.03
_LEAST_PART, _MOST_PARTS = 5.0, 6
"""Of a high-level percentage: from which percentage a part is told, and how many."""
_LEAST_SHARE = 0.01
_LEAST_LOOP = 0.08
_MOST_FUNCTIONS = 5


def write(profile: Profile, tokens: int = 2500) -> str:
    """The page, in Markdown."""
    sections = ("\n".join(section(profile)) for section in _SECTIONS)
    page, room = "\n\n".join(filter(None, sections)) + "\n", tokens * CHARACTERS_PER_TOKEN
    if len(page) <= room:
        return page
    kept = page[:room].split("\n")[:-1]
    while kept and (not kept[-1] or kept[-1].startswith("## ")):  # no title without what it announces
        kept.pop()
    return "\n".join(kept) + "\n" if kept else ""


def _time(profile: Profile) -> Iterator[str]:
    yield "## Time of a call"
    share = profile.floor_ms / profile.time_ms
    yield f"in this profile {profile.time_ms:.4f} ms; floor {profile.floor_ms:.4f} ms ({share:.0%} reached)"
    if line := profile.timeline:
        outside = max(0.0, line.call_us - line.busy_us - line.gaps_us)
        yield (
            f"traced ({line.source}): {line.call_us:.1f} us = device busy {line.busy_us:.1f} + gaps {line.gaps_us:.1f} "
            f"+ host before and after {outside:.1f}, tracing itself included; "
            f"{line.launches:g} launch{'' if line.launches == 1 else 'es'}"
        )
        for copy in line.copies:
            yield f"copies {copy.kind}: {copy.count:g}, {number(copy.nbytes)} bytes, {copy.microseconds:.1f} us"
        for name, count in line.syncs.items():
            yield f"synchronisation inside the call: {name} x {count:g}"


def _cpu(profile: Profile) -> Iterator[str]:
    """Where a call's time goes on the CPU: native code against Python, functions and loops, threads."""
    seen = profile.cpu.get("dynamic", {})
    if "call_ms" not in seen:
        return
    yield "## On the CPU, calls one after the other (caches warm)"
    calls, inside = seen.get("native_calls"), seen["native_ms"]
    how_often = f" in {number(round(calls, 1))} call{'' if calls == 1 else 's'}" if calls else ""
    around = max(0.0, seen["call_ms"] - inside)
    yield f"a call takes {seen['call_ms']:.4f} ms: {inside:.4f} in native code{how_often}, {around:.4f} around it"
    if profile.cpu["sampled"]:
        names = {
            "native": "native code",
            "math": "libm",
            "torch": "torch",
            "memory": "libc (copies, fills)",
            "host": "interpreter",
        }
        parts = [(name, profile.cpu["shares"][kind]) for kind, name in names.items()]
        yield "CPU time: " + ", ".join(
            f"{name} {share:.0%}" for name, share in parts if share >= _LEAST_SHARE
        )
        own: Counter[str] = Counter()
        for function in profile.cpu.get(
            "functions", ()
        ):  # parallel regions and clones count for the function they are of
            own[plain_name(function["name"])] += function["share"]
        if told := [
            f"{name} {share:.0%}" for name, share in own.most_common(_MOST_FUNCTIONS) if share >= _LEAST_SHARE
        ]:
            yield "by function: " + ", ".join(told)
        for loop in [loop for loop in profile.cpu["loops"] if loop["share"] >= _LEAST_LOOP][:_MOST_FUNCTIONS]:
            width = f"{loop['bits']}-bit vectors" if loop["bits"] else "scalar"
            place = loop["where"] or plain_name(loop["function"])
            yield f"{loop['share']:4.0%}  innermost loop at {place}, {width}  {loop['text']}".rstrip()
    works = ", ".join(f"{thread['work_ms']:.4f}" for thread in seen["threads"])
    fixed = "num_threads" in profile.source  # then asking for one thread changes nothing
    alone = (
        f"; with one thread a call takes {seen['alone_ms']:.4f} ms"
        if "alone_ms" in seen and not fixed
        else ""
    )
    yield f"threads: {seen['effective_threads']:.1f} of {profile.cpu['cores']} cores' worth of work (ms of each: {works}){alone}"
    if seen["minor_faults"] >= 1:
        yield f"page faults in a call: {seen['minor_faults']:.0f}"


def _configuration(profile: Profile) -> Iterator[str]:
    chosen = profile.compiler.get("configuration", {})
    if chosen:
        yield "## Configuration that ran"
        yield from (f"{name}: {text}" for name, text in chosen.items())


_LOCAL = tuple(f"l1tex__t_requests_pipe_lsu_mem_local_op_{operation}.sum" for operation in ("st", "ld"))

_ROWS: tuple[tuple[str, Callable[[Kernel], str]], ...] = (
    ("time in a call, us", lambda k: f"{k.microseconds:.1f}" if k.microseconds else ""),
    ("time of a launch under ncu, us", lambda k: _scaled(k, DURATION, 1e-3)),
    ("launches", lambda k: f"{k.launches:g}"),
    (
        "grid x block",
        lambda k: f"{'x'.join(map(str, k.grid))} x {'x'.join(map(str, k.block))}" if k.grid else "",
    ),
    ("registers", lambda k: str(k.registers or k.code.get("registers", ""))),
    ("shared memory, bytes", lambda k: str(k.static_shared + k.dynamic_shared or "")),
    ("spilled bytes (stores, loads)", lambda k: _spills(k)),
    ("occupancy achieved, %", lambda k: _metric(k, "sm__warps_active.avg.pct_of_peak_sustained_active")),
    ("waves", lambda k: _metric(k, "launch__waves_per_multiprocessor")),
    ("SM busy, % of peak", lambda k: _metric(k, SM_THROUGHPUT)),
    ("memory busy, % of peak", lambda k: _metric(k, MEMORY_THROUGHPUT)),
    ("DRAM busy, % of peak", lambda k: _metric(k, DRAM_THROUGHPUT)),
    ("DRAM read, MB a launch", lambda k: _scaled(k, DRAM_READ, 1e-6)),
    ("DRAM written, MB a launch", lambda k: _scaled(k, DRAM_WRITTEN, 1e-6)),
    ("L2 to L1, MB a launch", lambda k: _scaled(k, L2_READ, SECTOR * 1e-6)),
    ("L1 to registers (global), MB a launch", lambda k: _scaled(k, L1_LOADED, SECTOR * 1e-6)),
    ("stored (global), MB a launch", lambda k: _scaled(k, L1_STORED, SECTOR * 1e-6)),
    (
        "shared memory, million wavefronts a launch",
        lambda k: _scaled(k, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1e-6),
    ),
    ("L2 hit rate of reads, %", lambda k: _metric(k, "lts__t_sector_op_read_hit_rate.pct")),
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
    """Use of a pipe by whichever counter of it there is: while SMs are active, else over the whole launch."""
    forms = [
        f"sm__{form}.avg.pct_of_peak_sustained_{over}"
        for over in ("active", "elapsed")
        for form in (f"pipe_{name}_cycles_active", f"inst_executed_pipe_{name}")
    ]
    return next((text for form in forms if (text := _metric(kernel, form))), "")


def _spills(kernel: Kernel) -> str:
    if "spill_stores" in kernel.code:
        return f"{kernel.code['spill_stores']}, {kernel.code.get('spill_loads', 0)}"
    if mix := kernel.code.get("mix", {}):
        return f"{mix.get('local_store', 0)}, {mix.get('local_load', 0)} instructions"
    requests = [_metric(kernel, name) for name in _LOCAL]
    return f"{', '.join(requests)} requests" if all(requests) else ""


def _kernels(profile: Profile) -> Iterator[str]:
    columns = [(display_name(kernel, profile.kernels), kernel) for kernel in profile.kernels[:_MOST_KERNELS]]
    columns += [  # their time in a call was not traced
        (f"{name}: {plain_name(kernel.name)}", replace(kernel, microseconds=0.0))
        for name, other in profile.references.items()
        for kernel in other.kernels[:1]
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
            holds = occupancy.kernel_occupancy(DiagnosticContext(profile, Bound.MIXED, kernel))
            blocks = f"{holds.blocks} block{'s' if holds.blocks > 1 else ''}"
            yield f"occupancy is limited by {holds.limiter}: {blocks} an SM, {holds.share:.0%} of its warps"
        yield from _parts(kernel)


_PART = re.compile(r"(\w+__\w+)\.(?:avg|sum|max)\.pct_of_peak_sustained_elapsed")


def _parts(kernel: Kernel) -> Iterator[str]:
    """What the busy SM and the busy memory are made of, by ncu's own names: they differ from chip to chip."""
    found = {match[1]: value for name, value in kernel.metrics.items() if (match := _PART.fullmatch(name))}
    parts = {
        name: value
        for name, value in found.items()
        if not name.endswith("throughput") and value >= _LEAST_PART
    }
    inside = [name for name in parts if name.startswith(("sm__", "smsp__", "idc__"))]
    for title, names in (("SM", inside), ("memory", [name for name in parts if name not in inside])):
        if names:
            largest = sorted(names, key=lambda name: -parts[name])[:_MOST_PARTS]
            yield f"{title}, busiest parts (% of peak): " + ", ".join(
                f"{name} {parts[name]:.0f}" for name in largest
            )


_STALL = re.compile(re.escape(stall_metric("REASON")).replace("REASON", r"(\w+?)(?<!_not_issued)"))


def _stalls(profile: Profile) -> Iterator[str]:
    for kernel in profile.kernels[:1]:
        cycles = kernel.metrics.get(WARP_CYCLES, 0.0)
        counts = {
            match[1]: value for name, value in kernel.metrics.items() if (match := _STALL.fullmatch(name))
        }
        if not cycles or not counts:
            continue
        ranked = sorted(
            ((reason, value / cycles) for reason, value in counts.items()), key=lambda item: -item[1]
        )
        yield f"## Why warps of {plain_name(kernel.name)} wait (share of their time)"
        yield from (
            f"{share:4.0%}  {reason}: {WORDS.get(reason, reason)}"
            for reason, share in ranked
            if share >= _LEAST_STALL
        )
        small = [(reason, share) for reason, share in ranked if _LEAST_STALL > share >= _LEAST_SHARE / 2]
        if small:
            yield "less: " + ", ".join(f"{reason} {share:.0%}" for reason, share in small)
        if (rest := 1 - sum(share for _, share in ranked)) >= _LEAST_SHARE:
            yield f"{rest:4.0%}  reasons that were not counted"


def _lines(profile: Profile) -> Iterator[str]:
    for kernel in profile.kernels[:1]:
        if kernel.lines:
            yield f"## Worst lines of {plain_name(kernel.name)}, by stall samples"
        for line in kernel.lines[:_MOST_LINES]:
            reasons = ", ".join(f"{reason} {share:.0%}" for reason, share in list(line.stalls.items())[:3])
            yield f"{line.share:4.0%}  {line.where or '(no line information)'}  {line.text}".rstrip() + (
                f"   [{reasons}]" if reasons else ""
            )
            yield from (f"        {text}" for text in line.sass)


def _power(profile: Profile) -> Iterator[str]:
    power = profile.power
    if "watts" in power:
        yield "## Under sustained load"
        known = "sm_mhz" in power and "max_sm_mhz" in power
        clock = f", SM clock {power['sm_mhz']:.0f} of {power['max_sm_mhz']:.0f} MHz" if known else ""
        limit = f" of {power['limit_watts']:.0f}" if "limit_watts" in power else ""
        bound = f"; {'' if power['capped'] > 0.5 else 'not '}power-bound" if "capped" in power else ""
        yield f"{power['watts']:.0f}{limit} W{clock}{bound}"


def _remarks(profile: Profile) -> Iterator[str]:
    told = [
        *profile.compiler.get("warnings", []),
        *(text for k in profile.kernels for text in k.code.get("warnings", [])),
    ]
    if told:
        yield "## The compiler's remarks"
        yield from dict.fromkeys(told)


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
    _remarks,
    _skipped,
)
