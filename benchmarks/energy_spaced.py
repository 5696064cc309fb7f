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

from kernelpro.lab.energy import few
from kernelpro.lab.energy.counter import Counter
from kernelpro.lab.energy.track import Track, Unresolved, at_rest, watch
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
        self._seconds, self._rate = _PERIOD * _BUSY * side.own_ms / slowest_ms, _BUSY * 1e3 / slowest_ms
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
            self._side.participant.start_loop(self._side.sets, self._side.batch)
            time.sleep(self._seconds)
            self.calls += self._side.participant.stop_loop(self._expected, _TIMEOUT).calls
            time.sleep(max(0.0, first + self.calls / self._rate - time.perf_counter()))
            self.seconds = time.perf_counter() - first

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds


def window(counter: Counter, table: Table, side: Side, slowest_ms: float, seconds: float) -> dict[str, Any]:
    def is_over(track: Track) -> bool:
        return track.seen_seconds() >= seconds and track.is_known(jitter=0.0)

    table.ready(side)
    with Pulse(table, side, slowest_ms) as pulse:
        watch(counter, lambda track, passed: passed >= _WARM)
        track: Track = watch(counter, lambda track, passed: is_over(track) or passed > 3 * seconds)
    stretch = track.stretch()
    if not track.is_known(jitter=0.0):
        raise Unresolved(f"the counter's steps were seen to {stretch.doubt:.1%} only")
    if track.held_back(gpu.SLOWDOWN):
        raise Unresolved("the device was throttled")
    told = {
        "watts": stretch.watts,
        "rate": pulse.rate,
        "joules_a_call": stretch.watts / pulse.rate,
        "doubt": stretch.doubt,
    }
    return told | {"sm_mhz": track.median("sm_mhz"), "capped": track.held_back(gpu.POWER_CAP)}


def compared(counter: Counter, table: Table, one: Side, other: Side) -> dict[str, Any]:
    """`one` over `other`, in turn: energies, their ratio, and at which rates. Raises Unresolved."""
    slowest = max(one.own_ms, other.own_ms)
    seconds = max(_WINDOW, at_rest(counter, 1.0).step().window_seconds)
    rounds = []
    for _ in range(_ROUNDS):
        rounds.append(
            {
                side.name: window(counter, table, side, slowest, seconds)
                for side in random.sample([one, other], 2)
            }
        )
    ratios = [made[one.name]["joules_a_call"] / made[other.name]["joules_a_call"] for made in rounds]
    return {"ratio": few.ratio_interval(ratios).to_json(), "rounds": rounds}
