"""Compare the energy of two kernels at the same rate of calls, with idle time in between.

In a loop without idle time a board at its power limit lowers its clock for the kernel that needs more
power. Both kernels then draw the limit, and energy is proportional to time. Here both kernels make the same
number of calls per second, in stretches of some milliseconds with idle time between them, so that the board
stays below its limit. The energy of the idle time counts as part of a call's.

Only for trusted kernels: a kernel that makes fewer calls than it reports would not be detected by its time.
The meter that judges candidates measures without idle time.

A library for energy_search.py, not a command.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from energy import EnergyBench

from kernelpro.lab.energy import student
from kernelpro.lab.energy.counter import EnergyCounter
from kernelpro.lab.energy.updates import CounterTrace, UnresolvedEnergy, poll, poll_idle
from kernelpro.lab.energy.window import Side
from kernelpro.lab.sandbox import gpu

_ROUNDS = 5
_PERIOD, _BUSY = 0.04, 0.7
"""Approximate seconds from stretch to stretch, and the share of them in which the slower side is called."""
_WARM, _WINDOW = 0.5, 2.0
_TIMEOUT = 60.0


class SpacedCalls:
    """Calls a side in stretches until it is closed; idle time between them keeps it to its rate."""

    def __init__(self, kernels: EnergyBench, side: Side, slowest_ms: float):
        self._output_spec, self._side = kernels.bench.output_spec, side
        self._seconds, self._rate = _PERIOD * _BUSY * side.judged_ms / slowest_ms, _BUSY * 1e3 / slowest_ms
        self.calls, self.seconds = 0, 0.0
        self._stop, self._executor = threading.Event(), ThreadPoolExecutor(1)

    def __enter__(self) -> SpacedCalls:
        self._running = self._executor.submit(self._run)
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._executor.shutdown()
        self._running.result()  # raises the errors of the side

    def _run(self) -> None:
        started = time.perf_counter()
        while not self._stop.is_set():
            self._side.participant.start_loop(self._side.buffer_sets, self._side.batch_calls)
            time.sleep(self._seconds)
            self.calls += self._side.participant.stop_loop(self._output_spec, _TIMEOUT).calls
            time.sleep(max(0.0, started + self.calls / self._rate - time.perf_counter()))
            self.seconds = time.perf_counter() - started

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds


def measure_window(
    counter: EnergyCounter, kernels: EnergyBench, side: Side, slowest_ms: float, seconds: float
) -> dict[str, Any]:
    """The power and rate of a side over a window. Raises UnresolvedEnergy."""

    def is_over(trace: CounterTrace) -> bool:
        return trace.duration() >= seconds and trace.is_resolved(jitter=0.0)

    kernels.prepare_loop(side)
    with SpacedCalls(kernels, side, slowest_ms) as spaced:
        poll(counter, lambda trace, elapsed: elapsed >= _WARM)
        trace = poll(counter, lambda trace, elapsed: is_over(trace) or elapsed > 3 * seconds)
    span = trace.span()
    if not trace.is_resolved(jitter=0.0):
        raise UnresolvedEnergy(f"counter updates were seen with an uncertainty of {span.uncertainty:.1%}")
    if trace.throttled_share(gpu.SLOWDOWN):
        raise UnresolvedEnergy("the device was throttled")
    return {
        "watts": span.watts,
        "rate": spaced.rate,
        "joules_per_call": span.watts / spaced.rate,
        "uncertainty": span.uncertainty,
        "sm_mhz": trace.median("sm_mhz"),
        "power_capped": trace.throttled_share(gpu.POWER_CAP),
    }


def compare_spaced(
    counter: EnergyCounter, kernels: EnergyBench, candidate: Side, lean: Side
) -> dict[str, Any]:
    """Energy per call of `candidate` over `lean`, measured in alternation. Raises UnresolvedEnergy."""
    slowest = max(candidate.judged_ms, lean.judged_ms)
    seconds = max(_WINDOW, poll_idle(counter, 1.0).period().window_seconds)
    rounds = []
    for _ in range(_ROUNDS):
        rounds.append(
            {
                side.name: measure_window(counter, kernels, side, slowest, seconds)
                for side in random.sample([candidate, lean], 2)
            }
        )
    ratios = [
        sides[candidate.name]["joules_per_call"] / sides[lean.name]["joules_per_call"] for sides in rounds
    ]
    return {"ratio": student.ratio_interval(ratios).to_json(), "rounds": rounds}
