"""Combines machine code and samples: the share of the time that each loop takes."""

from __future__ import annotations

import mmap
import os
import platform
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from kernelpro.lab import machine
from kernelpro.records.cpu_profile import (
    CpuCode,
    CpuLoop,
    CpuProfile,
    CpuRun,
    CpuSamples,
    CpuShares,
    FunctionShare,
    MachineLoop,
    Sweep,
    VectorizationRemark,
)

_MIN_SAMPLES = 30
"""With fewer samples, the static cost of loops is the better estimate."""
_DIVISION_COST, _CALL_COST = 8, 40
"""Static cost in simple instructions: of a division (its throughput), of a call (a scalar libm function)."""
_LIBM_FUNCTION = re.compile(
    r"(a?(sin|cos|tan)h?|atan2|exp(2|10|m1)?|log(2|10|1p)?|pow|erfc?|cbrt|hypot|fmod|[lt]gamma|sqrt|round|floor|ceil|f(min|max))f?"
)
_LIBRARIES = (
    ("libm", ("libm.", "libm-", "libmvec")),
    (
        "torch",
        ("libtorch_cpu", "libtorch.", "libc10", "libopenblas", "libarm_compute", "libmkl", "libtorch_cuda"),
    ),
    ("libc", ("libc.", "libc-", "ld-linux", "libstdc++")),
)


def vector_bits() -> int:
    """Return the width of this machine's widest vector register, from /proc/cpuinfo."""
    facts = machine.cpu_facts()
    flags = (facts.get("flags") or facts.get("features", "")).split()
    if "sve" in flags:
        length = Path("/proc/sys/abi/sve_default_vector_length")
        return 8 * int(length.read_text()) if length.exists() else 128
    return 512 if "avx512f" in flags else 256 if "avx" in flags else 128


@dataclass
class _Nest:
    """An outermost loop: its parts, and the line of the part that takes the most time."""

    where: str
    longest: float
    spans: list[tuple[int, int]] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)


def build_profile(code: CpuCode, run: CpuRun, sources: Mapping[str, str] | None = None) -> CpuProfile:
    """Combine code and observed calls. `sources`: C++ texts by name, to quote the line of each loop."""
    source_lines = {Path(name).name: text.splitlines() for name, text in (sources or {}).items()}
    samples = run.samples or CpuSamples()
    addresses = {
        file: {int(address): time_ns for address, time_ns in times.items()}
        for file, times in samples.addresses.items()
    }
    work_ns = sum(samples.modules.values())
    own_files = {function.file for function in code.functions}
    sampled = samples.count >= _MIN_SAMPLES and work_ns > 0 and bool(own_files & addresses.keys())

    def share(file: str, *spans: tuple[int, int]) -> float:
        """Share of the time at addresses in any of these spans."""
        if not sampled:
            return 0.0
        times = addresses.get(file, {}).items()
        return sum(ns for at, ns in times if any(begin <= at <= end for begin, end in spans)) / work_ns

    loops: list[CpuLoop] = []
    sweeps: dict[tuple[str, str, int], _Nest] = {}
    functions: list[FunctionShare] = []
    for function in code.functions:
        if part := share(function.file, (function.begin, function.end)):
            functions.append(FunctionShare(function.name, part))
        vector_lines = [set(loop.lines) for loop in function.loops if loop.innermost and loop.bits]
        for loop in function.loops:
            where = _main_line(loop.lines, source_lines)
            loop_share = share(function.file, (loop.begin, loop.end))
            if not any(
                other is not loop and other.begin <= loop.begin and loop.end <= other.end
                for other in function.loops
            ):
                key = (function.file, function.name, loop.nest or loop.begin)
                # an existing entry is another part of the same loop, which the compiler has moved
                nest = sweeps.setdefault(key, _Nest(where, loop_share))
                nest.spans.append((loop.begin, loop.end))
                nest.calls |= set(loop.calls)
                if loop_share > nest.longest:
                    nest.where, nest.longest = where, loop_share
            if loop.innermost:
                lines = set(loop.lines)
                remainder = not loop.bits and any(lines & other for other in vector_lines)
                loops.append(
                    CpuLoop(
                        **vars(loop),
                        file=function.file,
                        function=function.name,
                        where=where,
                        text=_line_text(where, source_lines),
                        share=loop_share if sampled else _static_cost(loop, remainder),
                        math=tuple(sorted(name for name in loop.calls if _LIBM_FUNCTION.fullmatch(name))),
                        remainder=remainder,
                        parallel="_omp_fn" in function.name or ".omp_outlined" in function.name,
                        reasons=_reasons(lines, code.remarks),
                    )
                )
    if not sampled and (total := sum(loop.share for loop in loops)) > 0:
        loops = [replace(loop, share=loop.share / total) for loop in loops]
    return CpuProfile(
        cores=len(os.sched_getaffinity(0)),
        vector_bits=vector_bits(),
        machine=platform.machine(),
        page_bytes=mmap.PAGESIZE,
        static=code,
        dynamic=run,
        sampled=sampled,
        shares=_shares(samples.modules, own_files),
        functions=_by_share(functions),
        loops=_by_share(loops),
        sweeps=_by_share(
            _merge_called_loops(
                [
                    (Sweep(nest.where, name, share(file, *nest.spans)), nest.calls)
                    for (file, name, _), nest in sweeps.items()
                ]
            )
        ),
    )


Shared = TypeVar("Shared", FunctionShare, CpuLoop, Sweep)


def _by_share(items: Iterable[Shared]) -> tuple[Shared, ...]:
    return tuple(sorted(items, key=lambda item: -item.share))


def _merge_called_loops(sweeps: Sequence[tuple[Sweep, set[str]]]) -> Iterable[Sweep]:
    """Add the shares of loops in a called function to the loop that calls it: they process part of its
    data."""
    caller_loops = {
        name: index for index, (sweep, calls) in enumerate(sweeps) for name in calls if name != sweep.function
    }
    shares: dict[int, float] = defaultdict(float)
    for index, (sweep, _) in enumerate(sweeps):
        outermost, visited = index, {index}
        while (
            caller := caller_loops.get(sweeps[outermost][0].function)
        ) is not None and caller not in visited:
            outermost = caller
            visited.add(caller)
        shares[outermost] += sweep.share
    return (replace(sweeps[index][0], share=share) for index, share in shares.items())


def _static_cost(loop: MachineLoop, remainder: bool) -> float:
    """Return the static cost of a loop; 0 for the scalar remainder of a vector loop, which hardly runs."""
    divisions = loop.count("division", "integer_division")
    cost = loop.instructions + _DIVISION_COST * divisions + _CALL_COST * loop.count("call")
    return 0.0 if remainder else cost


def _shares(modules: Mapping[str, int], own_files: set[str]) -> CpuShares:
    total = sum(modules.values()) or 1
    shares: dict[str, float] = defaultdict(float)
    for name, time_ns in modules.items():
        library = next((kind for kind, names in _LIBRARIES if name.startswith(names)), "host")
        shares["native" if name in own_files else library] += time_ns / total
    return CpuShares(**shares)


def _main_line(lines: Mapping[str, int], texts: Mapping[str, Sequence[str]]) -> str:
    own = [line for line in lines if line.rpartition(":")[0] in texts] or list(lines)
    return max(own, key=lambda line: lines[line], default="")


def _line_text(where: str, texts: Mapping[str, Sequence[str]]) -> str:
    file, _, line = where.rpartition(":")
    rows = texts.get(file, ())
    return rows[int(line) - 1].strip() if line.isdigit() and 0 < int(line) <= len(rows) else ""


def _reasons(lines: set[str], remarks: Sequence[VectorizationRemark]) -> tuple[str, ...]:
    reasons = (f"{r.reason} (line {r.line})" for r in remarks if f"{r.file}:{r.line}" in lines)
    return tuple(dict.fromkeys(reasons))
