"""One window: one side called again and again while the counter is watched.

1. The parent writes fresh inputs into all buffer sets, warms the side up with the very load that is measured, and starts
   the loop: the child calls its model on the sets in turn.
2. From one step of the counter to another (track.py), the parent reads energy, clocks, temperature. Meanwhile, at random
   moments, it writes other inputs into the sets, one after the other.
3. At a random moment it says stop. The last call's output, and that of another set, must be right for what the parent last
   wrote there. J a call = watts between the steps x seconds a call, over the whole loop by the parent's clock.

The child knows neither how long a window lasts nor which output will be looked at. What it could still do is less work in
the loop than in judged calls, and it would have to be quiet about it:

- claim more calls than it made: seconds a call then fall short of the time that was judged (`Side.own_ms`), and the meter
  refuses;
- rest in place of calls, or answer from memory: outputs go wrong as soon as inputs have changed under it;
- do nothing until it is told to stop, then compute what may be looked at: stopping then takes as long as all sets' calls
  together, and a window in which it takes longer than two batches may last is dropped. Below about four milliseconds a
  call this cannot be seen;
- read its inputs in every call, and compute only where they have changed. Nothing here sees that, since inputs change a few
  times a window only; it pays where reading is cheap beside computing. A verdict's correctness and speed never rest on
  these calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from kernelpro.lab.energy.counter import Counter
from kernelpro.lab.energy.track import Step, Track, Unresolved, watch
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.sandbox.answers import CandidateRejected, Expected, Loop

_WARM_SECONDS = 0.5
"""Clocks and the sensor follow a new load within a few tenths of a second."""
_DWELL_SECONDS = 0.3
"""At most so much longer than needed, drawn for each window."""
_CYCLE_SECONDS = 0.25
"""All buffer sets are called once in this time; slow kernels get fewer sets."""
_BATCH_MS = 2.0
"""Work that is handed to the device at once; two batches may be under way."""
_LAG_SECONDS = 0.02
"""What stopping may take beyond the batches under way: the protocol, and a host that is late."""
_CHANGES = 3
"""Buffer sets that get other inputs during a window."""


class BaselineFailed(Exception):
    """The side that is trusted crashed, hung or gave up: nobody else's fault."""


@dataclass(frozen=True)
class Side:
    """Who is called."""

    name: str
    participant: Participant
    own_ms: float
    """Milliseconds a call, as judged."""
    prepare: dict[str, Any]
    """What it is told before it is called: which variant of the reference."""
    check: Callable[[list[torch.Tensor], int], None] | None = None
    """Whether outputs are right for the inputs of a seed; None: it is trusted."""

    @property
    def sets(self) -> int:
        return max(1, min(self.participant.sets, int(1e3 * _CYCLE_SECONDS / self.own_ms)))

    @property
    def batch(self) -> int:
        return max(1, int(_BATCH_MS / self.own_ms))


@dataclass(frozen=True)
class Window:
    side: str
    at: float
    """When the first step was seen, by time.perf_counter."""
    joules: float
    """Between the two steps."""
    seconds: float
    calls: int
    """In the whole loop."""
    call_seconds: float
    doubt: float
    sm_mhz: float | None
    memory_mhz: float | None
    temperature_c: float | None
    capped: float
    """Share of readings under the software power cap, which is normal for a busy board."""
    dropped: str
    """Why it does not count; empty where it does."""

    @property
    def watts(self) -> float:
        return self.joules / self.seconds

    @property
    def joules_a_call(self) -> float:
        return self.watts * self.call_seconds

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"watts": self.watts, "joules_a_call": self.joules_a_call}


class Windows:
    """Makes windows of both sides."""

    def __init__(
        self,
        counter: Counter,
        step: Step,
        expected: Expected,
        inputs: Callable[[int], list[torch.Tensor]],
        seeds: list[int],
        timeout: float,
    ):
        self._counter, self._step, self._expected = counter, step, expected
        self._inputs, self._seeds, self._timeout = inputs, seeds, timeout
        self._dice = random.Random()

    def of(self, side: Side) -> Window:
        try:
            return self._of(side)
        except CandidateRejected as error:
            if side.check:
                raise
            raise BaselineFailed(
                f"the baseline {side.name} failed while its energy was measured: {error.reason}"
            ) from None

    def _of(self, side: Side) -> Window:
        held = self._dice.sample(self._seeds, side.sets)
        for index, seed in enumerate(held):
            side.participant.write(index, self._inputs(seed))
        changes = [
            (self._dice.randrange(side.sets), seed) for seed in self._dice.sample(self._seeds, _CHANGES)
        ]
        later = [(index, seed, self._inputs(seed)) for index, seed in changes]
        side.participant.prepare(self._timeout, warm=True, **side.prepare)
        self._loop(side, lambda track, passed: passed >= _WARM_SECONDS)
        track, loop = self._loop(side, self._until(side, held, later))
        if side.check:
            self._verify(side, loop, held)
        return self._window(side, track, loop)

    def _loop(self, side: Side, until: Callable[[Track, float], bool]) -> tuple[Track, Loop]:
        side.participant.start_loop(side.sets, side.batch)
        track = watch(self._counter, until)
        return track, side.participant.stop_loop(self._expected, self._timeout)

    def _until(
        self, side: Side, held: list[int], later: list[tuple[int, int, list[torch.Tensor]]]
    ) -> Callable[[Track, float], bool]:
        """When a window is over; changes inputs on the way, the last time well before."""
        wanted = self._step.window_seconds
        enough = wanted + self._dice.random() * _DWELL_SECONDS
        moments = sorted(self._dice.uniform(0.1, 0.8) * wanted for _ in later)
        settled = 3 * side.sets * side.own_ms / 1e3 + _LAG_SECONDS
        changed = 0.0

        def over(track: Track, passed: float) -> bool:
            nonlocal changed
            if moments and passed >= moments[0]:
                moments.pop(0)
                index, seed, inputs = later.pop()
                side.participant.write(index, inputs)
                if inputs and inputs[0].is_cuda:
                    torch.cuda.synchronize()
                held[index], changed = seed, passed
            stuck = passed > 2 * enough + 5 * self._step.seconds
            seen = not moments and passed - changed > settled and track.seen_seconds() >= enough
            return stuck or (seen and track.is_known(self._step.jitter))

        return over

    def _verify(self, side: Side, loop: Loop, held: list[int]) -> None:
        """The last call, and a call on another set, if its output is still there."""
        assert side.check
        place = {(slot.offset, handle) for slot, handle in loop.claims[loop.last]}
        apart = [
            index
            for index, claim in enumerate(loop.claims)
            if not place & {(slot.offset, handle) for slot, handle in claim}
        ]
        for index in (loop.last, *self._dice.sample(apart, min(1, len(apart)))):
            outputs = side.participant.looped_output(loop, index, self._inputs(held[index]))
            side.check(outputs, held[index])

    def _window(self, side: Side, track: Track, loop: Loop) -> Window:
        dropped = ""
        try:
            stretch = track.stretch(self._step.jitter)
            joules, seconds, doubt = stretch.joules, stretch.seconds, stretch.doubt
        except Unresolved as error:
            joules, seconds, doubt, dropped = 0.0, 1.0, 1.0, str(error)
        lag = 2 * max(_BATCH_MS, side.own_ms) / 1e3 + _LAG_SECONDS
        if track.held_back(gpu.SLOWDOWN):
            dropped = "the device was throttled"
        elif not dropped and not track.is_known(self._step.jitter):
            dropped = f"the counter's steps were seen to {doubt:.1%} only"
        elif not dropped and loop.lag > lag:
            dropped = f"it took {1e3 * loop.lag:.0f} ms to stop"
        return Window(
            side.name,
            track.edges[0].at if track.edges else 0.0,
            joules,
            seconds,
            loop.calls,
            loop.seconds / loop.calls,
            doubt,
            track.median("sm_mhz"),
            track.median("memory_mhz"),
            track.median("temperature_c"),
            track.held_back(gpu.POWER_CAP),
            dropped,
        )
