"""Static facts and samples together: what share of the time each loop has. The result is described in cpu.py."""

from __future__ import annotations

import mmap
import os
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_MIN_SAMPLES = 30
"""With fewer, shares are guesses and the static cost of loops is the better one."""
_DIVISION_COST, _CALL_COST = 8, 40
"""In simple instructions, to weigh loops where nothing was sampled: throughput of a division, length of a scalar libm function."""
_LIBM_FUNCTION = re.compile(
    r"(a?(sin|cos|tan)h?|atan2|exp(2|10|m1)?|log(2|10|1p)?|pow|erfc?|cbrt|hypot|fmod|[lt]gamma|sqrt|round|floor|ceil|f(min|max))f?"
)
_LIBRARIES = (
    ("math", ("libm.", "libm-", "libmvec")),
    (
        "torch",
        ("libtorch_cpu", "libtorch.", "libc10", "libopenblas", "libarm_compute", "libmkl", "libtorch_cuda"),
    ),
    ("memory", ("libc.", "libc-", "ld-linux", "libstdc++")),
)


def vector_bits() -> int:
    """The widest vector of this machine, as /proc/cpuinfo knows it."""
    flags = next(
        (
            row
            for row in Path("/proc/cpuinfo").read_text().splitlines()
            if row.lower().startswith(("flags", "features"))
        ),
        "",
    )
    words = flags.split()
    if "sve" in words:
        length = Path("/proc/sys/abi/sve_default_vector_length")
        return 8 * int(length.read_text()) if length.exists() else 128
    return 512 if "avx512f" in words else 256 if "avx" in words else 128


def build_profile(
    static: Mapping[str, Any], dynamic: Mapping[str, Any], sources: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """`Profile.cpu`: loops with their share of the time that was not spent waiting. `sources` give the text of each loop's line."""
    source_lines = {Path(name).name: text.splitlines() for name, text in (sources or {}).items()}
    samples = dynamic.get("samples", {})
    addresses = {
        f: {int(a): n for a, n in counts.items()} for f, counts in samples.get("addresses", {}).items()
    }
    work_ns = sum(samples.get("modules", {}).values())
    own_files = {function["file"] for function in static["functions"]}
    sampled = samples.get("count", 0) >= _MIN_SAMPLES and work_ns > 0 and bool(own_files & addresses.keys())

    def share(file: str, begin: int, end: int) -> float:
        inside = sum(n for a, n in addresses.get(file, {}).items() if begin <= a <= end)
        return float(inside / work_ns)

    loops, sweeps, functions = [], [], []
    for function in static["functions"]:
        if sampled and (part := share(function["file"], function["begin"], function["end"])):
            functions.append({"name": function["name"], "share": part})
        vector = [set(loop["lines"]) for loop in function["loops"] if loop["innermost"] and loop["bits"]]
        for loop in function["loops"]:
            where = _main_line(loop["lines"], source_lines)
            entry = {
                "file": function["file"],
                "function": function["name"],
                "where": where,
                "text": _line_text(where, source_lines),
            }
            if not any(
                o is not loop and o["begin"] <= loop["begin"] and loop["end"] <= o["end"]
                for o in function["loops"]
            ):
                own = share(function["file"], loop["begin"], loop["end"]) if sampled else 0.0
                sweeps.append((entry | {"share": own}, set(loop["calls"])))
            if loop["innermost"]:
                lines = set(loop["lines"])
                entry |= {key: value for key, value in loop.items() if key not in ("innermost", "lines")}
                entry["parallel"] = "_omp_fn" in function["name"] or ".omp_outlined" in function["name"]
                entry["remainder"] = not loop["bits"] and any(lines & other for other in vector)
                entry["math"] = sorted(name for name in loop["calls"] if _LIBM_FUNCTION.fullmatch(name))
                entry["reasons"] = _reasons(lines, static["remarks"])
                entry["share"] = (
                    share(function["file"], loop["begin"], loop["end"]) if sampled else _static_cost(entry)
                )
                loops.append(entry)
    if not sampled and (total := sum(loop["share"] for loop in loops)) > 0:
        for loop in loops:
            loop["share"] /= total
    return {
        "cores": len(os.sched_getaffinity(0)),
        "vector_bits": vector_bits(),
        "machine": platform.machine(),
        "page_bytes": mmap.PAGESIZE,
        "static": dict(static),
        "dynamic": dict(dynamic),
        "sampled": sampled,
        "shares": _shares(samples.get("modules", {}), own_files),
        "functions": sorted(functions, key=lambda function: -function["share"]),
        "loops": sorted(loops, key=lambda loop: -loop["share"]),
        "sweeps": sorted(_merge_called_loops(sweeps), key=lambda sweep: -sweep["share"]),
    }


def _merge_called_loops(sweeps: Sequence[tuple[dict[str, Any], set[str]]]) -> list[dict[str, Any]]:
    """Loops of functions that are called in a loop belong to that one: they walk over a block of the data, again and again."""
    caller_loops = {
        name: index
        for index, (sweep, calls) in enumerate(sweeps)
        for name in calls
        if name != sweep["function"]
    }
    merged: dict[int, dict[str, Any]] = {}
    for index, (sweep, _) in enumerate(sweeps):
        outermost, seen = index, {index}
        while (
            caller := caller_loops.get(sweeps[outermost][0]["function"])
        ) is not None and caller not in seen:
            outermost = caller
            seen.add(outermost)
        target = merged.setdefault(outermost, sweeps[outermost][0] | {"share": 0.0})
        target["share"] += sweep["share"]
    return list(merged.values())


def _static_cost(loop: Mapping[str, Any]) -> float:
    """Static weight of a loop; the scalar rest of a vector loop hardly runs."""
    mix = loop["mix"]
    divisions = mix.get("division", 0) + mix.get("integer_division", 0)
    return (
        0.0
        if loop["remainder"]
        else loop["instructions"] + _DIVISION_COST * divisions + _CALL_COST * mix.get("call", 0)
    )


def _shares(modules: Mapping[str, int], own_files: set[str]) -> dict[str, float]:
    total = sum(modules.values())
    time_by_kind: Counter[str] = Counter()
    for name, count in modules.items():
        kind = (
            "native"
            if name in own_files
            else next((k for k, names in _LIBRARIES if name.startswith(names)), "host")
        )
        time_by_kind[kind] += count
    return {
        kind: time_by_kind[kind] / total if total else 0.0
        for kind in ("native", "math", "torch", "memory", "host")
    }


def _main_line(lines: Mapping[str, int], texts: Mapping[str, Sequence[str]]) -> str:
    own = [line for line in lines if line.rpartition(":")[0] in texts] or list(lines)
    return max(own, key=lambda line: lines[line], default="")


def _line_text(where: str, texts: Mapping[str, Sequence[str]]) -> str:
    file, _, line = where.rpartition(":")
    rows = texts.get(file, ())
    return rows[int(line) - 1].strip() if line.isdigit() and 0 < int(line) <= len(rows) else ""


def _reasons(lines: set[str], remarks: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(
        dict.fromkeys(
            f"{r['reason']} (line {r['line']})" for r in remarks if f"{r['file']}:{r['line']}" in lines
        )
    )
