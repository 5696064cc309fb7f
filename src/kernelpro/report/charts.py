"""The numbers behind the charts: progress and roofline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kernelpro.engine.store import RunStore
from kernelpro.records import ComparableTimes, Step, TaskFacts
from kernelpro.records.events import RunEvent, RunStarted, StepProgress
from kernelpro.report.schema import ProgressPoint, RooflineChart, RooflineStop


def working_seconds(events: Iterable[tuple[float, RunEvent]]) -> dict[int, float]:
    """Seconds of work on the run until each step was settled. Pauses between sessions do not count."""
    clock, previous, seconds = 0.0, None, {}
    for time, event in events:
        if previous is not None and not isinstance(event, RunStarted):
            clock += max(0.0, time - previous)
        previous = time
        if isinstance(event, StepProgress) and event.phase == "settled":
            seconds[event.step] = clock
    return seconds


def progress(steps: Iterable[Step], store: RunStore, times: ComparableTimes) -> tuple[ProgressPoint, ...]:
    """A point for every settled step."""
    seconds, best, points, dollars = working_seconds(store.events()), None, [], 0.0
    for step in steps:
        if step.stage != "settled":
            continue
        ms = times.ms(step)
        if ms is not None and (best is None or ms < best):
            best = ms
        dollars += step.cost.dollars
        point = ProgressPoint(step.number, seconds.get(step.number), step.state, ms, best, dollars)
        points.append(point)
    return tuple(points)


def roofline(facts: TaskFacts | None, stops: Sequence[RooflineStop]) -> RooflineChart | None:
    """The measured roofs with all stops; None if the task's operations or bytes are unknown.

    All stops have the intensity of the task, its operations over the bytes that any implementation must move.
    So the path from the baselines to the winner is vertical.
    """
    if facts is None or facts.work is None or not facts.hardware.bandwidth:
        return None
    work, rates, bandwidth = facts.work, facts.hardware.rates, facts.hardware.bandwidth
    flops, nbytes = work.matrix_flops + work.vector_flops, work.read_bytes + work.written_bytes
    if not flops or not nbytes:
        return None
    task_unit = facts.unit or ("bf16" if facts.precision == "native" else facts.precision)
    unit = task_unit if work.matrix_flops and task_unit in rates else "fp32"
    return RooflineChart(
        intensity=flops / nbytes,
        bandwidth=bandwidth,
        rates=rates,
        unit=unit,
        ridge=rates[unit] / bandwidth,
        attainable=min(rates[unit], flops / nbytes * bandwidth),
        flops=flops,
        bytes=nbytes,
        stops=tuple(
            replace(stop, flops_per_second=1e3 * flops / stop.ms, bytes_per_second=1e3 * nbytes / stop.ms)
            for stop in stops
        ),
    )
