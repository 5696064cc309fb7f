"""A race between points of a candidate's tunables, each timed against the default in one process.

A point and the default are called in turn, in rungs with more and more calls. A point that is far behind the
best point after a rung gets no further rung. The race verifies nothing: times are claims of the candidate's
process, and the judge judges only the winner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import Candidate, Status

_RUNGS = (3, 6, 12)
"""Calls of a point in each rung."""
_MAX_POINT_SECONDS = 1.0
"""After this time a point gets no further rung. Times of kernels of 50 ms and more vary little."""


@dataclass(frozen=True)
class RacedTime:
    """The outcome of a point's race."""

    status: Status
    """PASSED means only that it ran: the race does not check outputs."""
    reason: str = ""
    ratio: float = math.inf
    """Its time over that of the default, which ran in the same process at the same time."""


class Race:
    """The process in which points race. It starts with the first point; after a failure a new one starts."""

    def __init__(self, bench: Bench, default: Candidate, wait_for_teardown: Callable[[], None]):
        """`wait_for_teardown`: waits until the process of the last judgement has ended."""
        self._bench, self._default, self._wait_for_teardown = bench, default, wait_for_teardown
        self._participant: Participant | None = None
        self.seconds = 0.0
        """Time spent in the process."""

    def time(self, point: Candidate, give_up_ratio: float) -> RacedTime:
        """Race one point against the default. Give up after a rung if its time exceeds `give_up_ratio` times
        that of the default."""
        begin = time.monotonic()
        try:
            return self._time(point, give_up_ratio)
        except CandidateRejected as error:
            self.close()  # the process may be damaged; the next point gets a new one
            return RacedTime(error.status, error.reason)
        finally:
            self.seconds += time.monotonic() - begin

    def _time(self, point: Candidate, give_up_ratio: float) -> RacedTime:
        bench, options = self._bench, self._bench.options
        artifacts = bench.builds.get(point, bench.target, options, bench.task)
        participant = self._participant or self._start()
        with participant.may_compile(options.build_timeout):
            request = {"op": "add_variant", "source": point.source}
            number = participant.request(request, options.call_timeout, artifacts).get("variant")
            self._call(participant, number, 1)  # some kernels are compiled at their first call
        default_ms: list[float] = []
        point_ms: list[float] = []
        begin, ratio = time.monotonic(), math.inf
        for calls in _RUNGS:
            # on a CPU, the builds of the next points may run beside a race: both points are slowed
            with bench.quiet() if bench.target == "cuda" else nullcontext():
                times = self._call(participant, number, calls)
            default_ms += times[0]
            point_ms += times[1]
            ratio = median(point_ms) / median(default_ms)
            if ratio > give_up_ratio or time.monotonic() - begin > _MAX_POINT_SECONDS:
                break
        return RacedTime(Status.PASSED, "", ratio)

    def _start(self) -> Participant:
        self._participant = self._bench.start_candidate()
        self._wait_for_teardown()
        self._bench.load_candidate(self._participant, self._default)
        self._bench.turns.take(self._participant)
        return self._participant

    def _call(self, participant: Participant, number: Any, calls: int) -> list[list[float]]:
        """Call both in turn. Returns the milliseconds of the default's calls and of the point's."""
        request = {"op": "race", "variants": [0, number], "calls": calls, "flush": self._bench.flush_bytes}
        reply: Any = participant.request(request, self._bench.options.call_timeout).get("ms")
        if not are_times(reply, calls):
            raise CandidateRejected(Status.CHEATING, "the reply to 'race' was forged")
        return list(reply)

    def close(self) -> None:
        """End the process."""
        if self._participant:
            self._participant.close()
        self._participant = None


def are_times(reply: Any, calls: int) -> bool:
    """Whether a reply has a positive time for each call of two variants."""
    if not isinstance(reply, list) or len(reply) != 2:
        return False
    return all(
        isinstance(times, list)
        and len(times) == calls
        and all(isinstance(ms, float) and math.isfinite(ms) and ms > 0 for ms in times)
        for times in reply
    )
