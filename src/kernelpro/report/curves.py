"""What the charts show, as numbers: best so far by step and by time, and the way up under the roof."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernelpro.engine.store import Store
from kernelpro.records import Step

Event = tuple[float, str, dict[str, Any]]


def working_seconds(events: Iterable[Event]) -> dict[int, float]:
    """When each step was settled, in seconds of work: the time between two sittings of a run does not count."""
    clock, before, found = 0.0, None, {}
    for at, kind, data in events:
        if before is not None and kind != "begun":
            clock += max(0.0, at - before)
        before = at
        if kind == "settled":
            found[int(data["step"])] = clock
    return found


def progress(steps: Iterable[Step], store: Store) -> list[dict[str, Any]]:
    """A point for every settled step: its time where it passed, and the best until then."""
    seconds, best, points = working_seconds(store.events()), None, []
    for step in steps:
        if step.stage != "settled":
            continue
        if step.ms is not None and (best is None or step.ms < best):
            best = step.ms
        at = seconds.get(step.number)
        points.append(
            {"step": step.number, "seconds": at, "state": step.state, "ms": step.ms, "best_ms": best}
        )
    return points


def roofline(ground: dict[str, Any], stops: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Roofs as measured, and every stop (`label`, `kind`, `ms`) with the rates that its time means. None without the task's work.

    The intensity is the task's: operations over the bytes that must move, whoever computes it. So the way from the
    reference to the winner leads straight up.
    """
    work, hardware = ground.get("work"), ground.get("hardware")
    if not work or not hardware:
        return None
    flops, nbytes = work["matrix_flops"] + work["vector_flops"], work["read_bytes"] + work["written_bytes"]
    if not flops or not nbytes:
        return None
    rates = hardware["rates"]
    wanted = ground.get("unit") or ("bf16" if ground["precision"] == "native" else ground["precision"])
    unit = wanted if work["matrix_flops"] and wanted in rates else "fp32"
    for stop in stops:
        stop["flops_per_second"] = 1e3 * flops / stop["ms"]
        stop["bytes_per_second"] = 1e3 * nbytes / stop["ms"]
    return {
        "intensity": flops / nbytes,
        "bandwidth": hardware["bandwidth"],
        "rates": rates,
        "unit": unit,
        "ridge": rates[unit] / hardware["bandwidth"],
        "attainable": min(rates[unit], flops / nbytes * hardware["bandwidth"]),
        "flops": flops,
        "bytes": nbytes,
        "stops": stops,
    }
