"""What this machine's counter of energy can do: its step, its latency, how well it repeats.

1. At rest: how long a step is, how many joules, what a reading costs.
2. Under a load of our own (matrix products): the same, and how long after its start the counter shows it, that is the end
   of the first step whose power lies nearer to the load's than to rest.
3. Windows of that load as the meter makes them: joules a product, their spread, and the interval of a ratio of two halves,
   which must hold 1.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernelpro.lab.energy import few
from kernelpro.lab.energy.counter import Counter, NoCounter, find
from kernelpro.lab.energy.track import Step, Track, Unresolved, at_rest, watch
from kernelpro.records import Target

_REST_SECONDS = 2.0
_LOAD_SECONDS = 3.0
_WARM_SECONDS = 0.5
_WINDOWS = 8
_READINGS = 50
_SIZE = {"cuda": 4096, "cpu": 512}


class Load:
    """Matrix products, one after the other, in a thread; counts them."""

    def __init__(self, target: Target):
        self._operands = [torch.randn(_SIZE[target], _SIZE[target], device=target) for _ in range(2)]
        self._target, self.done, self._stop = target, 0, threading.Event()
        self._product()  # the first one also loads the library

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._product()
            self.done += 1

    def _product(self) -> None:
        a, b = self._operands
        a @ b
        if self._target == "cuda":
            torch.cuda.synchronize()


def calibrate(
    target: Target, report: Callable[[str], None], counter: Counter | None = None
) -> dict[str, Any]:
    """All of it as plain data; `refused` where there is none or it resolves nothing. Without a `counter`, the machine's own."""
    try:
        return _calibrate(counter or find(target), target, report)
    except (NoCounter, Unresolved) as reason:
        return {"target": target, "refused": str(reason)}


def _calibrate(counter: Counter, target: Target, report: Callable[[str], None]) -> dict[str, Any]:
    report("watching the counter at rest")
    rest = at_rest(counter, _REST_SECONDS)
    load = Load(target)
    report("watching it under load")
    begun = time.perf_counter()
    with load.running():
        busy = watch(
            counter, lambda track, passed: passed > _LOAD_SECONDS and track.seen_seconds() > _LOAD_SECONDS / 2
        )
        idle, loaded = rest.stretch().watts, _settled(busy).stretch().watts
        found = {
            "target": target,
            "source": counter.name,
            "read_us": _reading_us(counter),
            "rest": _about(rest),
            "load": _about(_settled(busy)),
            "latency_s": _latency(busy, begun, (idle + loaded) / 2),
        }
        step = _settled(busy).step()
        wanted = step.window_seconds
        report("repeating the same window")
        windows = [_window(counter, load, wanted, step) for _ in range(_WINDOWS)]
    return found | {"window_s": wanted} | _repeatability(windows)


def _settled(track: Track) -> Track:
    """Without the first steps of a new load."""
    begun = track.edges[0].at + _WARM_SECONDS if track.edges else 0.0
    return Track([edge for edge in track.edges if edge.at >= begun], track.states)


def _about(track: Track) -> dict[str, Any]:
    step, stretch = track.step(), track.stretch()
    states = {name: track.median(name) for name in ("sm_mhz", "memory_mhz", "temperature_c")}
    steps = stretch.seconds / step.seconds
    return {
        "watts": stretch.watts,
        "step_s": step.seconds,
        "step_jitter_s": step.jitter,
        "step_joules": stretch.joules / steps,
        **{name: value for name, value in states.items() if value is not None},
    }


def _reading_us(counter: Counter) -> float:
    times = []
    for _ in range(_READINGS):
        begun = time.perf_counter()
        counter.joules()
        times.append(1e6 * (time.perf_counter() - begun))
    return statistics.median(times)


def _latency(busy: Track, begun: float, halfway: float) -> float | None:
    for before, after in zip(busy.edges, busy.edges[1:], strict=False):
        if (after.joules - before.joules) / (after.at - before.at) > halfway:
            return after.at - begun
    return None


def _window(counter: Counter, load: Load, seconds: float, step: Step) -> tuple[float, float]:
    """Joules a product, and the doubt that quantisation leaves."""
    begun, done = time.perf_counter(), load.done
    track = watch(counter, lambda seen, passed: seen.seen_seconds() >= seconds)
    rate = (load.done - done) / (time.perf_counter() - begun)
    stretch = track.stretch(step.jitter)
    return stretch.watts / rate, stretch.doubt


def _repeatability(windows: list[tuple[float, float]]) -> dict[str, Any]:
    joules = [value for value, _ in windows]
    middle = statistics.median(joules)
    random.shuffle(joules)
    half = len(joules) // 2
    a_a = few.ratio_interval([a / b for a, b in zip(joules[:half], joules[half:], strict=True)])
    return {
        "doubt": max(doubt for _, doubt in windows),
        "joules_a_product": middle,
        "spread": statistics.stdev(joules) / middle,
        "range": (max(joules) - min(joules)) / middle,
        "a_a": a_a.to_json(),
        "windows": len(windows),
    }
