"""Polls an energy counter, and measures the energy between two of its updates.

A counter is updated in steps (on an H200, NVML's every 100 ms, by up to 70 J under load). If it were read at
arbitrary times, a window of 2 s would be wrong by up to one update at either end, which is 10 %. Therefore
windows begin and end at an update. Polling finds the time of an update to half the gap between two readings.
The energy between two updates is exact, and the remaining quantization error is

    uncertainty = (gap / 2 + jitter of the first update + gap / 2 + jitter of the last) / seconds between them

where jitter is the variation of the counter's own period. The gaps at idle determine how long windows must be
for an uncertainty below `MAX_UNCERTAINTY`; if readings are slower under load, windows are extended. A
constant delay of the counter does not matter under a constant load. Therefore the same load runs before each
window."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise, product

from kernelpro.lab.energy.counter import DeviceState, EnergyCounter

MAX_UNCERTAINTY = 0.005
"""Largest relative error of a window's energy that quantization may cause."""
MIN_WINDOW_SECONDS = 2.0
"""A window must also be longer than the sensor's own averaging: sensors of A100 and H100 sample only a
quarter of the time."""
MAX_WINDOW_SECONDS = 20.0
_MIN_UPDATES = 5
_LOAD_MARGIN = 1.5
"""Windows are longer than the gaps at idle require by this factor: under load, readings are slower."""
_END_CANDIDATES = 5
"""A window may begin at any of this many first updates and end at any of this many last ones; the pair with
the lowest uncertainty is used. With three at either end, 3 of 16 windows of a search on an H200 were
rejected."""
_POLL_SECONDS = 0.001
_MAX_STILL_SECONDS = 10.0
"""A counter with fewer than three updates in this time is rejected."""

StopCondition = Callable[["CounterTrace", float], bool]
"""Called after every reading with the trace and the elapsed seconds; polling ends when it returns True."""


class UnresolvedEnergy(Exception):
    """The counter cannot resolve the energy. The message says why."""


@dataclass(frozen=True)
class CounterUpdate:
    """One update of the counter."""

    time: float
    """Middle of the two readings around the update, by time.perf_counter."""
    joules: float
    slack: float
    """Half of the time between these readings."""


@dataclass(frozen=True)
class EnergySpan:
    """Energy between two updates of the counter."""

    joules: float
    seconds: float
    uncertainty: float
    """Relative error that quantization may cause."""

    @property
    def watts(self) -> float:
        """Mean power."""
        return self.joules / self.seconds


@dataclass(frozen=True)
class UpdatePeriod:
    """How often a counter is updated."""

    seconds: float
    """Median time between two updates."""
    jitter: float
    """Median absolute deviation of that time."""
    slack: float
    """Median of `CounterUpdate.slack`."""

    @property
    def window_seconds(self) -> float:
        """Length of a window whose uncertainty is below MAX_UNCERTAINTY.

        Raises UnresolvedEnergy if that exceeds MAX_WINDOW_SECONDS.
        """
        resolvable = _LOAD_MARGIN * 2 * (self.jitter + self.slack) / MAX_UNCERTAINTY
        required = max(MIN_WINDOW_SECONDS, _MIN_UPDATES * self.seconds, resolvable)
        if required > MAX_WINDOW_SECONDS:
            raise UnresolvedEnergy(
                f"the counter is updated every {self.seconds:.3g} +- {self.jitter:.3g} s: an uncertainty of "
                f"{MAX_UNCERTAINTY:.1%} would need windows of {required:.0f} s, more than the limit of "
                f"{MAX_WINDOW_SECONDS:.0f} s"
            )
        return required


@dataclass
class CounterTrace:
    """The updates of a counter that was polled for some time."""

    updates: list[CounterUpdate] = field(default_factory=list)
    states: list[DeviceState] = field(default_factory=list)
    """Sensor readings, taken just after each update, when the next update is furthest away."""

    def period(self) -> UpdatePeriod:
        """Return the update period. Raises UnresolvedEnergy with fewer than three updates."""
        if len(self.updates) < 3:
            raise UnresolvedEnergy(f"the counter was updated {len(self.updates)} times while it was polled")
        intervals = [after.time - before.time for before, after in pairwise(self.updates)]
        period = statistics.median(intervals)
        jitter = statistics.median(abs(interval - period) for interval in intervals)
        return UpdatePeriod(period, jitter, statistics.median(update.slack for update in self.updates))

    def duration(self) -> float:
        """Return the seconds between the first and the last update."""
        return self.updates[-1].time - self.updates[0].time if self.updates else 0.0

    def span(self, jitter: float = 0.0) -> EnergySpan:
        """Return the span with the lowest uncertainty from one of the first updates to one of the last.

        Readings may be slow under load, so that the very first and last updates are not always the most
        exact.
        """
        if len(self.updates) < 2:
            raise UnresolvedEnergy(f"the counter was updated {len(self.updates)} times while it was polled")
        end_count = max(1, min(_END_CANDIDATES, len(self.updates) // 4))
        ends = product(self.updates[:end_count], self.updates[: -end_count - 1 : -1])
        return min((_span(first, last, jitter) for first, last in ends), key=lambda span: span.uncertainty)

    def is_resolved(self, jitter: float) -> bool:
        """Whether the uncertainty of the span is below MAX_UNCERTAINTY."""
        return len(self.updates) >= 2 and self.span(jitter).uncertainty <= MAX_UNCERTAINTY

    def throttled_share(self, reasons: int) -> float:
        """Return the share of readings with throttling for one of these reasons (NVML's bits)."""
        readings = [bits for state in self.states if (bits := state.get("throttle")) is not None]
        return sum(bool(bits & reasons) for bits in readings) / len(readings) if readings else 0.0

    def median(self, name: str) -> float | None:
        """Return the median of a sensor, or None if it gave no reading."""
        values = [value for state in self.states if (value := state.get(name)) is not None]
        return statistics.median(values) if values else None


def _span(first: CounterUpdate, last: CounterUpdate, jitter: float) -> EnergySpan:
    seconds = last.time - first.time
    return EnergySpan(last.joules - first.joules, seconds, (first.slack + last.slack + 2 * jitter) / seconds)


def poll(counter: EnergyCounter, until: StopCondition) -> CounterTrace:
    """Poll the counter until `until` returns True."""
    trace = CounterTrace()
    started = time.perf_counter()
    previous_time, previous_value = started, counter.joules()
    while not until(trace, time.perf_counter() - started):
        time.sleep(max(0.0, _POLL_SECONDS - (time.perf_counter() - previous_time)))
        value, now = counter.joules(), time.perf_counter()
        if value != previous_value:
            trace.updates.append(CounterUpdate((previous_time + now) / 2, value, (now - previous_time) / 2))
            trace.states.append(counter.state())
            previous_value, now = value, time.perf_counter()
        previous_time = now
    return trace


def poll_idle(counter: EnergyCounter, seconds: float) -> CounterTrace:
    """Poll the counter while the device is idle, for longer than `seconds` if updates are rare."""
    trace = poll(
        counter,
        lambda trace, elapsed: (
            elapsed > _MAX_STILL_SECONDS or (elapsed > seconds and len(trace.updates) >= 4)
        ),
    )
    if len(trace.updates) < 3:
        raise UnresolvedEnergy(
            f"the counter ({counter.name}) was updated {len(trace.updates)} times"
            f" in {_MAX_STILL_SECONDS:.0f} s"
        )
    return trace
