"""Energy of two kernels at the same rate of calls, with rests in between: what differs where a board at its limit hides it.

In a loop without rests a board at its power limit lowers its clock for the hungrier kernel, and gives what the leaner one saves
back as clock; both take the limit, and energy is time. Here both make as many calls a second, in stretches of some milliseconds
with rests between them, so that the board stays below its limit. The energy of the rests is part of a call's.

For kernels that nobody suspects: one that made fewer calls than it says would not be found out by its time. The meter, which
judges candidates, does without rests.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from energy import Table

from kernelpro.lab.energy import student
from kernelpro.lab.energy.counter import EnergyCounter
from kernelpro.lab.energy.updates import CounterTrace, UnresolvedEnergy, poll_idle, poll
from kernelpro.lab.energy.window import Side
from kernelpro.lab.sandbox import gpu

_ROUNDS = 5
_PERIOD, _BUSY = 0.04, 0.7
"""Seconds from stretch to stretch, about, and the share of them in which the slower side is called."""
_WARM, _WINDOW = 0.5, 2.0
_TIMEOUT = 60.0


class Pulse:
    """Has a side called in stretches until it is closed; rests are as long as keeps it to its rate."""

    def __init__(self, table: Table, side: Side, slowest_ms: float):
        self._expected, self._side = table.bench.expected, side
        self._seconds, self._rate = _PERIOD * _BUSY * side.judged_ms / slowest_ms, _BUSY * 1e3 / slowest_ms
        self.calls, self.seconds = 0, 0.0
        self._over, self._threads = threading.Event(), ThreadPoolExecutor(1)

    def __enter__(self) -> Pulse:
        self._beating = self._threads.submit(self._beat)
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._threads.shutdown()
        self._beating.result()  # what the side did wrong is raised here

    def _beat(self) -> None:
        first = time.perf_counter()
        while not self._over.is_set():
            self._side.participant.start_loop(self._side.buffer_sets, self._side.batch_calls)
            time.sleep(self._seconds)
            self.calls += self._side.participant.stop_loop(self._expected, _TIMEOUT).calls
            time.sleep(max(0.0, first + self.calls / self._rate - time.perf_counter()))
            self.seconds = time.perf_counter() - first

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds


def window(counter: EnergyCounter, table: Table, side: Side, slowest_ms: float, seconds: float) -> dict[str, Any]:
    def is_over(trace: CounterTrace) -> bool:
        return trace.duration() >= seconds and trace.is_resolved(jitter=0.0)

    table.ready(side)
    with Pulse(table, side, slowest_ms) as pulse:
        poll(counter, lambda trace, passed: passed >= _WARM)
        trace = poll(counter, lambda trace, passed: is_over(trace) or passed > 3 * seconds)
    span = trace.span()
    if not trace.is_resolved(jitter=0.0):
        raise UnresolvedEnergy(f"counter updates were seen with an uncertainty of {span.uncertainty:.1%}")
    if trace.throttled_share(gpu.SLOWDOWN):
        raise UnresolvedEnergy("the device was throttled")
    return {
        "watts": span.watts,
        "rate": pulse.rate,
        "joules_per_call": span.watts / pulse.rate,
        "uncertainty": span.uncertainty,
        "sm_mhz": trace.median("sm_mhz"),
        "power_capped": trace.throttled_share(gpu.POWER_CAP),
    }


def compared(counter: EnergyCounter, table: Table, one: Side, other: Side) -> dict[str, Any]:
    """`one` over `other`, in turn: energies, their ratio, and at which rates. Raises Unresolved."""
    slowest = max(one.judged_ms, other.judged_ms)
    seconds = max(_WINDOW, poll_idle(counter, 1.0).period().window_seconds)
    rounds = []
    for _ in range(_ROUNDS):
        rounds.append(
            {
                side.name: window(counter, table, side, slowest, seconds)
                for side in random.sample([one, other], 2)
            }
        )
    ratios = [made[one.name]["joules_per_call"] / made[other.name]["joules_per_call"] for made in rounds]
    return {"ratio": student.ratio_interval(ratios).to_json(), "rounds": rounds}
