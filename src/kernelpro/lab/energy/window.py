"""One window: the energy of one side, which runs in a loop while the energy counter is polled.

1. The parent writes fresh inputs into all buffer sets and warms the side up with the load to be measured. It
   then starts the loop: the child calls its model on the buffer sets in turn.
2. Between two counter updates (updates.py) the parent reads energy, clocks and temperature. Meanwhile, at
   random times, it writes other inputs into some buffer sets.
3. At a random time the parent stops the loop. The output of the last call, and that of another buffer set,
   must be correct for the inputs that the parent last wrote there. Joules per call = watts between the
   updates x seconds per call, which the parent's clock averages over the whole loop.

The child knows neither how long a window lasts nor which output will be checked. To do less work in the loop
than in judged calls, it could

- report more calls than it made. Then the seconds per call fall below the judged time (`Side.judged_ms`), and
  the meter reports no energy.
- sleep instead of computing, or return cached results. Then outputs become wrong as soon as inputs change.
- do nothing until it is told to stop, and then compute the outputs that may be checked. Then stopping takes
  as long as the calls of all buffer sets, and a window that takes longer to stop than two batches is
  rejected. Below about 4 ms per call this cannot be detected.
- read its inputs in every call, and compute only when they have changed. This is not detected, because inputs
  change only a few times per window. It pays if reading is cheap compared with computing.

The correctness and speed in a verdict never depend on these calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernelpro.lab.energy.counter import EnergyCounter
from kernelpro.lab.energy.updates import CounterTrace, StopCondition, UnresolvedEnergy, UpdatePeriod, poll
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.samples import LoopResult
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.sandbox.outputs import CandidateRejected, OutputSpec
from kernelpro.records import EnergyWindow

_WARM_SECONDS = 0.5
"""Duration of the warm-up. Clocks and the sensor follow a new load within a few tenths of a second."""
_MAX_EXTRA_SECONDS = 0.3
"""Each window is extended by a random time up to this, so that the child cannot predict its end."""
_CYCLE_SECONDS = 0.25
"""All buffer sets are called once within this time; slow kernels get fewer sets."""
_BATCH_MS = 2.0
"""Milliseconds of work that are submitted to the device at once. Two batches may be in flight."""
_STOP_SLACK_SECONDS = 0.02
"""Time that stopping may take beyond the batches in flight, for the protocol and a slow host."""
_INPUT_CHANGES = 3
"""How many times during a window one of the buffer sets gets other inputs."""

OutputCheck = Callable[[list[torch.Tensor], int], None]
"""Raises CandidateRejected if outputs are wrong for the inputs of a seed."""


class BaselineFailed(Exception):
    """The baseline crashed, hung or failed during the energy measurement. The candidate is not to blame."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the candidate or a baseline."""

    name: str
    """`candidate`, or the name of the baseline."""
    participant: Participant
    judged_ms: float
    """Milliseconds per call in the judge's timing."""
    check: OutputCheck | None = None
    """None for a baseline, whose outputs are trusted."""

    @property
    def buffer_sets(self) -> int:
        """How many buffer sets the loop uses."""
        return max(1, min(self.participant.buffer_sets, int(1e3 * _CYCLE_SECONDS / self.judged_ms)))

    @property
    def batch_calls(self) -> int:
        """How many calls are submitted at once."""
        return max(1, int(_BATCH_MS / self.judged_ms))


class WindowRecorder:
    """Measures windows of both sides."""

    def __init__(
        self,
        counter: EnergyCounter,
        period: UpdatePeriod,
        expected: OutputSpec,
        inputs: Callable[[int], list[torch.Tensor]],
        seeds: list[int],
        timeout: float,
    ):
        self._counter, self._period, self._expected = counter, period, expected
        self._inputs, self._seeds, self._timeout = inputs, seeds, timeout
        self._rng = random.Random()

    def measure(self, side: Side) -> EnergyWindow:
        """Measure one window. Raises CandidateRejected or BaselineFailed if the side fails."""
        try:
            return self._measure(side)
        except CandidateRejected as error:
            if side.check:
                raise
            raise BaselineFailed(
                f"the baseline {side.name} failed while its energy was measured: {error.reason}"
            ) from None

    def _measure(self, side: Side) -> EnergyWindow:
        set_seeds = self._rng.sample(self._seeds, side.buffer_sets)
        for index, seed in enumerate(set_seeds):
            side.participant.write_inputs(index, self._inputs(seed))
        pending_changes = [
            (self._rng.randrange(side.buffer_sets), seed, self._inputs(seed))
            for seed in self._rng.sample(self._seeds, _INPUT_CHANGES)
        ]
        variant = {} if side.check else {"variant": side.name}
        side.participant.prepare(self._timeout, warm=True, **variant)
        self._run_loop(side, lambda trace, elapsed: elapsed >= _WARM_SECONDS)
        trace, loop = self._run_loop(side, self._stop_condition(side, set_seeds, pending_changes))
        if side.check:
            self._verify(side, loop, set_seeds)
        return self._summarize(side, trace, loop)

    def _run_loop(self, side: Side, until: StopCondition) -> tuple[CounterTrace, LoopResult]:
        side.participant.start_loop(side.buffer_sets, side.batch_calls)
        trace = poll(self._counter, until)
        return trace, side.participant.stop_loop(self._expected, self._timeout)

    def _stop_condition(
        self, side: Side, set_seeds: list[int], pending_changes: list[tuple[int, int, list[torch.Tensor]]]
    ) -> StopCondition:
        """Return the condition that ends a window. It also writes the pending inputs, the last ones well
        before the end."""
        min_seconds = self._period.window_seconds
        window_seconds = min_seconds + self._rng.random() * _MAX_EXTRA_SECONDS
        change_times = sorted(self._rng.uniform(0.1, 0.8) * min_seconds for _ in pending_changes)
        settle_seconds = 3 * side.buffer_sets * side.judged_ms / 1e3 + _STOP_SLACK_SECONDS
        last_change = 0.0

        def is_over(trace: CounterTrace, elapsed: float) -> bool:
            nonlocal last_change
            if change_times and elapsed >= change_times[0]:
                change_times.pop(0)
                index, seed, inputs = pending_changes.pop()
                side.participant.write_inputs(index, inputs)
                if inputs and inputs[0].is_cuda:
                    torch.cuda.synchronize()
                set_seeds[index], last_change = seed, elapsed
            if elapsed > 2 * window_seconds + 5 * self._period.seconds:
                return True  # the counter is stuck
            settled = not change_times and elapsed - last_change > settle_seconds
            return settled and trace.duration() >= window_seconds and trace.is_resolved(self._period.jitter)

        return is_over

    def _verify(self, side: Side, loop: LoopResult, set_seeds: list[int]) -> None:
        """Check the output of the last call, and that of one other buffer set if it was not overwritten."""
        assert side.check
        last_outputs = {(slot.offset, handle) for slot, handle in loop.claims[loop.last_set]}
        intact_sets = [
            index
            for index, claim in enumerate(loop.claims)
            if not last_outputs & {(slot.offset, handle) for slot, handle in claim}
        ]
        for index in (loop.last_set, *self._rng.sample(intact_sets, min(1, len(intact_sets)))):
            outputs = side.participant.loop_output(loop, index, self._inputs(set_seeds[index]))
            side.check(outputs, set_seeds[index])

    def _summarize(self, side: Side, trace: CounterTrace, loop: LoopResult) -> EnergyWindow:
        rejection = ""
        try:
            span = trace.span(self._period.jitter)
            joules, seconds, uncertainty = span.joules, span.seconds, span.uncertainty
        except UnresolvedEnergy as error:
            joules, seconds, uncertainty, rejection = 0.0, 1.0, 1.0, str(error)
        max_stop_seconds = 2 * max(_BATCH_MS, side.judged_ms) / 1e3 + _STOP_SLACK_SECONDS
        if trace.throttled_share(gpu.SLOWDOWN):
            rejection = "the device was throttled"
        elif not rejection and not trace.is_resolved(self._period.jitter):
            rejection = f"the counter's updates left an uncertainty of {uncertainty:.1%}"
        elif not rejection and loop.stop_seconds > max_stop_seconds:
            rejection = f"the loop took {1e3 * loop.stop_seconds:.0f} ms to stop"
        return EnergyWindow(
            side.name,
            trace.updates[0].time if trace.updates else 0.0,
            joules,
            seconds,
            loop.calls,
            loop.seconds / loop.calls,
            uncertainty,
            trace.median("sm_mhz"),
            trace.median("memory_mhz"),
            trace.median("temperature_c"),
            trace.throttled_share(gpu.POWER_CAP),
            rejection,
        )
