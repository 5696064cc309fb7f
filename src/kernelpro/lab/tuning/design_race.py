"""A race between several designs for a task, in one process, to find the designs that are worth a judgement.

Race only code that KernelPro itself or a compiler wrote: designs in one process could tamper with each other.

1. Each design is loaded with the reference's parameters, as the judge loads a candidate, and called once. Its
   output must be correct within the judge's tolerance.
2. It then alternates with the leader, the fastest design so far, and becomes the leader if it is faster. Only
   these two are in memory.
3. The number of calls grows from rung to rung. A design that is far behind after a rung gets no further rung.
4. After a failure, a new process starts with the leader.

The race gives no verdict: only one output is checked, and the times are claims of the process. Only the
judge's verdict counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.tuning.race import are_times
from kernelpro.records import Candidate, RacedDesign, Status

_RUNGS = ((1, 2.0), (2, 1.15), (6, 1.15), (12, 1.15))
"""For each rung, the calls of a design, and the multiple of the leader's time above which the design gets no
further rung. Single calls of the same kernel differ by less than a factor of 2."""
_MAX_SECONDS = 0.5
"""After this time a design gets no further rung. The times of slow kernels vary little."""
_MAX_COMPILE_SECONDS = 20.0
"""Time limit for what a design compiles at its first call. Most of it was compiled ahead of time."""
_LEADER, _CHALLENGER = 1, 0
"""The numbers of the two models in requests to the process."""

CheckOutputs = Callable[[list[torch.Tensor], int], None]
"""Raises CandidateRejected if outputs are wrong for the inputs of a seed."""


class DesignRace:
    """Races designs on a bench, one after the other."""

    def __init__(
        self,
        bench: Bench,
        seed: int,
        check: CheckOutputs,
        wait_for_teardown: Callable[[], None],
        close_in_background: Callable[[Participant], None],
    ):
        """`seed`: the seed of the inputs. `wait_for_teardown`: waits until processes that are closed in the
        background have ended."""
        self._bench, self._seed, self._check = bench, seed, check
        self._wait_for_teardown, self._close_in_background = wait_for_teardown, close_in_background
        self._participant: Participant | None = None
        self._leader: Candidate | None = None

    def run(self, designs: Sequence[Candidate], report: Callable[[str], None]) -> tuple[RacedDesign, ...]:
        """Race the designs. The results have the same order, and ratios to the time of the final leader."""
        results: list[RacedDesign] = []
        leader_time = 1.0
        """The leader's time over that of the first design. All ratios have this unit until the end."""
        for number, design in enumerate(designs, 1):
            report(f"racing, design {number} of {len(designs)}")
            begin = time.monotonic()
            try:
                had_leader = self._leader is not None
                ratio = self._race(design)
                result = RacedDesign(Status.PASSED, ratio=leader_time * ratio)
                if ratio < 1 or not had_leader:
                    leader_time *= ratio
            except CandidateRejected as error:
                self._stop()  # the process may be damaged
                result = RacedDesign(error.status, error.reason)
            results.append(replace(result, seconds=round(time.monotonic() - begin, 3)))
        return tuple(
            replace(result, ratio=result.ratio / leader_time) if result.ratio else result
            for result in results
        )

    def _race(self, design: Candidate) -> float:
        """The time of a design over that of the leader. If it is below 1, the design becomes the leader."""
        participant = self._participant or self._start()
        self._load(participant, design)
        if self._leader is None:
            self._lead(participant, design)
            return 1.0
        self._bench.await_spares()
        with self._bench.quiet():
            ratio = self._time(participant)
        if ratio < 1:
            self._lead(participant, design)
        return ratio

    def _start(self) -> Participant:
        """Start a process, and load the leader if there is one."""
        participant = self._participant = self._bench.start_candidate()
        if not self._bench.plan.layout.takes_turns:
            self._bench.start_spares(("candidate",))  # for the next process here, or for the judge
        self._wait_for_teardown()
        if self._leader:
            self._load(participant, self._leader)
            self._lead(participant, self._leader)
        return participant

    def _lead(self, participant: Participant, design: Candidate) -> None:
        participant.request({"op": "keep_model"}, self._bench.options.call_timeout)
        self._leader = design

    def _load(self, participant: Participant, design: Candidate) -> None:
        """Load a design beside the leader and check one output."""
        bench, options = self._bench, self._bench.options
        if participant.is_mapped:
            participant.release_memory(options.call_timeout)
            participant.process.thaw()
            bench.loader.load(participant, design, options)
        else:
            bench.load_candidate(participant, design)
        bench.turns.take(participant)
        inputs = bench.inputs(self._seed)
        participant.prepare(options.call_timeout)
        # it may compile at the first call
        with participant.may_compile(min(options.build_timeout, _MAX_COMPILE_SECONDS)):
            result = participant.call(inputs, bench.output_spec, options.call_timeout)
        self._check(result.outputs, self._seed)
        participant.prepare(options.call_timeout)

    def _time(self, participant: Participant) -> float:
        begin, leader_ms, own_ms, ratio = time.monotonic(), list[float](), list[float](), math.inf
        for calls, give_up_ratio in _RUNGS:
            times = self._call(participant, calls)
            leader_ms += times[0]
            own_ms += times[1]
            ratio = median(own_ms) / median(leader_ms)
            if ratio > give_up_ratio or time.monotonic() - begin > _MAX_SECONDS:
                break
        return ratio

    def _call(self, participant: Participant, calls: int) -> list[list[float]]:
        """Call both models in turn. Returns the milliseconds of the leader and of the challenger."""
        order = [_LEADER, _CHALLENGER]
        request = {"op": "race", "variants": order, "calls": calls, "flush": self._bench.flush_bytes}
        reply: Any = participant.request(request, self._bench.options.call_timeout).get("ms")
        if not are_times(reply, calls):
            raise CandidateRejected(Status.CHEATING, "the reply to 'race' was forged")
        return list(reply)

    def _stop(self) -> None:
        if self._participant:
            self._participant.close()
        self._participant = None

    def close(self) -> None:
        """End the process, in the background."""
        if self._participant:
            self._close_in_background(self._participant)
        self._participant = None
