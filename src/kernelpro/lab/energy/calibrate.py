"""Calibration of this machine's energy counter: its update period, its latency, and how well windows repeat.

1. Idle: the length of an update period, and the joules per update.
2. Under a load of matrix products: the same, the cost of a reading, and the latency from the start of the
   load to the end of the first update period whose power is closer to the load's than to idle power.
3. Windows of that load as the meter measures them: joules per product, their spread, and the ratio of one
   half of the windows to the other, whose interval must contain 1."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch

from kernelpro.lab.energy import student
from kernelpro.lab.energy.counter import EnergyCounter, NoEnergyCounter, find_counter
from kernelpro.lab.energy.updates import (
    CounterTrace,
    EnergySpan,
    UnresolvedEnergy,
    UpdatePeriod,
    poll,
    poll_idle,
)
from kernelpro.records import CounterStatistics, EnergyData, Target

_IDLE_SECONDS = 2.0
_LOAD_SECONDS = 3.0
_WARM_SECONDS = 0.5
_WINDOWS = 8
_READINGS = 50
_MATRIX_SIZE = {"cuda": 4096, "cpu": 512}


class MatrixLoad:
    """A thread that computes matrix products back to back and counts them."""

    def __init__(self, target: Target):
        size = _MATRIX_SIZE[target]
        self._operands = [torch.randn(size, size, device=target) for _ in range(2)]
        self._target, self.product_count, self._stop = target, 0, threading.Event()
        self._multiply()  # the first product also loads the library

    @contextmanager
    def running(self) -> Iterator[None]:
        """Compute products until the block ends."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._multiply()
            self.product_count += 1

    def _multiply(self) -> None:
        a, b = self._operands
        a @ b
        if self._target == "cuda":
            torch.cuda.synchronize()


def calibrate(
    target: Target, report: Callable[[str], None], counter: EnergyCounter | None = None
) -> EnergyData:
    """Calibrate `counter`, by default that of this machine. Without a usable counter, the result has an
    `error`."""
    try:
        return _calibrate(counter or find_counter(target), target, report)
    except (NoEnergyCounter, UnresolvedEnergy) as reason:
        return EnergyData(target, error=str(reason))


def _calibrate(counter: EnergyCounter, target: Target, report: Callable[[str], None]) -> EnergyData:
    report("polling the energy counter at idle")
    idle = poll_idle(counter, _IDLE_SECONDS)
    load = MatrixLoad(target)
    report("polling the energy counter under load")
    started = time.perf_counter()
    with load.running():
        trace = poll(
            counter,
            lambda trace, elapsed: elapsed > _LOAD_SECONDS and trace.duration() > _LOAD_SECONDS / 2,
        )
        warm = _without_warm_up(trace)
        read_us = _reading_us(counter)
        period = warm.period()
        window_s = period.window_seconds
        report("repeating the same window")
        windows = [_measure_window(counter, load, window_s, period) for _ in range(_WINDOWS)]
    joules = [value for value, _ in windows]
    median = statistics.median(joules)
    random.shuffle(joules)
    half = len(joules) // 2
    return EnergyData(
        target,
        counter=counter.name,
        read_us=read_us,
        idle=_describe(idle),
        load=_describe(warm),
        latency_s=_latency(trace, started, (idle.span().watts + warm.span().watts) / 2),
        window_s=window_s,
        quantization=max(span.uncertainty for _, span in windows),
        joules_per_product=median,
        spread=statistics.stdev(joules) / median,
        range=(max(joules) - min(joules)) / median,
        control=student.ratio_interval([a / b for a, b in zip(joules[:half], joules[half:], strict=True)]),
        windows=len(windows),
    )


def _without_warm_up(trace: CounterTrace) -> CounterTrace:
    warm_at = trace.updates[0].time + _WARM_SECONDS if trace.updates else 0.0
    return CounterTrace([update for update in trace.updates if update.time >= warm_at], trace.states)


def _describe(trace: CounterTrace) -> CounterStatistics:
    period, span = trace.period(), trace.span()
    return CounterStatistics(
        watts=span.watts,
        period_s=period.seconds,
        jitter_s=period.jitter,
        joules_per_update=span.watts * period.seconds,
        sm_mhz=trace.median("sm_mhz"),
        memory_mhz=trace.median("memory_mhz"),
        temperature_c=trace.median("temperature_c"),
    )


def _reading_us(counter: EnergyCounter) -> float:
    times = []
    for _ in range(_READINGS):
        started = time.perf_counter()
        counter.joules()
        times.append(1e6 * (time.perf_counter() - started))
    return statistics.median(times)


def _latency(trace: CounterTrace, started: float, halfway_watts: float) -> float | None:
    for before, after in pairwise(trace.updates):
        if (after.joules - before.joules) / (after.time - before.time) > halfway_watts:
            return after.time - started
    return None


def _measure_window(
    counter: EnergyCounter, load: MatrixLoad, seconds: float, period: UpdatePeriod
) -> tuple[float, EnergySpan]:
    """Return the joules per product, and the span over which they were measured."""
    started, first_count = time.perf_counter(), load.product_count
    trace = poll(counter, lambda trace, elapsed: trace.duration() >= seconds)
    rate = (load.product_count - first_count) / (time.perf_counter() - started)
    span = trace.span(period.jitter)
    return span.watts / rate, span
