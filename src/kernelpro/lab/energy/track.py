"""A counter watched: energy from step to step.

A counter moves in steps (NVML's every 100 ms on an H200, up to 70 J under load). Read at arbitrary moments, a window of 2 s is
wrong by up to a step at either end, which is 10 %. So windows begin and end where the counter moves: it is read again
and again, and the moment of a step is known to half the gap between two readings. The energy between two steps is then the
counter's own, and what remains of quantisation is

    doubt = (gap / 2 + jitter at the first step + gap / 2 + jitter at the last step) / seconds between them

where jitter is how much the counter's own steps differ in length. Windows are made long enough for less than `FINEST`, by how
sharply steps are seen at rest, and go on where readings are later under load. A constant delay of the counter does not matter
under a load that does not change; windows are preceded by the same load for that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

from kernelpro.lab.energy.counter import Counter, State

FINEST = 0.005
"""Share of a window's energy that quantisation may make uncertain."""
SHORTEST_SECONDS = 2.0
"""A window also has to outlast the sensor's own averaging, and those that sample a quarter of the time (A100, H100)."""
LONGEST_SECONDS = 20.0
_FEWEST_STEPS = 5
_ROOM = 1.5
"""Steps under load are seen less sharply than at rest, by which the length is chosen."""
_CHOICE = 5
"""Steps at either end, of which one is to be sharp: with three, 3 of 16 windows of a search on an H200 were dropped."""
_POLL_SECONDS = 0.001
_STILL_SECONDS = 10.0
"""A counter that has not moved three times in this time is of no use."""


class Unresolved(Exception):
    """The counter cannot tell; the message says why."""


@dataclass(frozen=True)
class Edge:
    """A moment at which the counter moved."""

    at: float
    """Middle of the two readings around it, by time.perf_counter."""
    joules: float
    slack: float
    """Half of the time between them."""


@dataclass(frozen=True)
class Stretch:
    """From one step of the counter to another."""

    joules: float
    seconds: float
    doubt: float
    """Share of it that quantisation makes uncertain."""

    @property
    def watts(self) -> float:
        return self.joules / self.seconds


@dataclass(frozen=True)
class Step:
    """How a counter moves."""

    seconds: float
    jitter: float
    """Median distance of a step's length from the usual one."""
    slack: float

    @property
    def window_seconds(self) -> float:
        """How long a window must be to be known to FINEST."""
        wanted = max(
            SHORTEST_SECONDS, _FEWEST_STEPS * self.seconds, _ROOM * 2 * (self.jitter + self.slack) / FINEST
        )
        if wanted > LONGEST_SECONDS:
            raise Unresolved(
                f"the counter moves every {self.seconds:.3g} s, give or take {self.jitter:.3g} s: windows of {wanted:.0f} s would "
                f"be needed to know their energy to {FINEST:.1%}, and {LONGEST_SECONDS:.0f} s is the most"
            )
        return wanted


@dataclass
class Track:
    """What was seen of a counter while it was watched."""

    edges: list[Edge] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    """Sensors, read just after a step, when the next one is furthest."""

    def step(self) -> Step:
        """How it moves; at least three steps must have been seen."""
        if len(self.edges) < 3:
            raise Unresolved(f"the counter moved {len(self.edges)} times while it was watched")
        lengths = [after.at - before.at for before, after in zip(self.edges, self.edges[1:], strict=False)]
        usual = statistics.median(lengths)
        jitter = statistics.median(abs(length - usual) for length in lengths)
        return Step(usual, jitter, statistics.median(edge.slack for edge in self.edges))

    def seen_seconds(self) -> float:
        return self.edges[-1].at - self.edges[0].at if self.edges else 0.0

    def stretch(self, jitter: float = 0.0) -> Stretch:
        """From one of the first steps to one of the last, with the least doubt: readings may be late under load."""
        if len(self.edges) < 2:
            raise Unresolved(f"the counter moved {len(self.edges)} times while it was watched")
        few = max(1, min(_CHOICE, len(self.edges) // 4))
        ends = product(self.edges[:few], self.edges[: -few - 1 : -1])
        return min((_between(first, last, jitter) for first, last in ends), key=lambda stretch: stretch.doubt)

    def is_known(self, jitter: float) -> bool:
        """Whether the energy of its stretch is, to FINEST."""
        return len(self.edges) >= 2 and self.stretch(jitter).doubt <= FINEST

    def held_back(self, reasons: int) -> float:
        """Share of the readings in which the device was, for any of these reasons (bits as in judge/gpu.py)."""
        known = [bits for state in self.states if (bits := state.get("throttle")) is not None]
        return sum(bool(bits & reasons) for bits in known) / len(known) if known else 0.0

    def median(self, name: str) -> float | None:
        values = [value for state in self.states if (value := state.get(name)) is not None]
        return statistics.median(values) if values else None


def _between(first: Edge, last: Edge, jitter: float) -> Stretch:
    seconds = last.at - first.at
    return Stretch(last.joules - first.joules, seconds, (first.slack + last.slack + 2 * jitter) / seconds)


def watch(counter: Counter, until: Callable[[Track, float], bool]) -> Track:
    """Read the counter until `until(track, seconds so far)`; it is asked after every reading and may do small things itself."""
    track = Track()
    begun = time.perf_counter()
    before, last = begun, counter.joules()
    while not until(track, time.perf_counter() - begun):
        time.sleep(max(0.0, _POLL_SECONDS - (time.perf_counter() - before)))
        value, now = counter.joules(), time.perf_counter()
        if value != last:
            track.edges.append(Edge((before + now) / 2, value, (now - before) / 2))
            track.states.append(counter.state())
            last, now = value, time.perf_counter()
        before = now
    return track


def at_rest(counter: Counter, seconds: float) -> Track:
    """The counter while nothing runs; longer than `seconds` where it moves slowly."""
    track = watch(
        counter, lambda seen, passed: passed > _STILL_SECONDS or (passed > seconds and len(seen.edges) >= 4)
    )
    if len(track.edges) < 3:
        raise Unresolved(
            f"the counter ({counter.name}) moved {len(track.edges)} times in {_STILL_SECONDS:.0f} s"
        )
    return track
