"""The meter: what a call of a candidate costs in joules, beside a baseline.

1. Both stand still: idle power before, and how the counter moves, which decides how long windows are (track.py).
2. Rounds of two windows, candidate and baseline in random order (window.py). A round with a window that does not count is
   made again.
3. Idle power after. Nothing is subtracted from anything.
4. Per round the ratios of energy, power and energy-delay; means of their logs with Student's intervals over rounds (few.py).

The number of rounds is fixed before the candidate is seen. The baseline runs in a cell of its own with as many buffer sets
as the candidate has, so that caches help both alike. No number is given where the counter cannot resolve it, where too few
windows were undisturbed, where a side took another time in the loop than it was judged to take, or where the baseline failed or
found no room beside the candidate: the reason is given instead. Joules, watts and their product are known no better than the
worst window's edges (track.py), whatever the windows agree on.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import torch

from kernelpro.lab.energy import few
from kernelpro.lab.energy.counter import Counter, NoCounter, find
from kernelpro.lab.energy.track import Unresolved, at_rest
from kernelpro.lab.energy.window import BaselineFailed, Side, Window, Windows
from kernelpro.lab.measure import timing
from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.sandbox.cell import CannotStart
from kernelpro.records import BadInput, Energy, Interval, Target

ROUNDS = {"quick": 3, "normal": 5, "full": 5}
"""Windows of the same kernel differ by 0.2 %: more would not narrow an interval that grants 0.75 % to what all windows share."""
_MOST_SPOILT = 1.0
"""Rounds that may be made again, as a share of those wanted."""
_IDLE_SECONDS = 1.5
_SHORTEST = {"cuda": 0.5, "cpu": 0.1}
"""A call in the loop takes at least this share of its judged time, which is with cold caches. Kernels that gain more by warm ones
are bound by memory; but where all buffer sets fit into an H200's L2, a call reads for 2 us only. A CPU's caches are ten times as
fast as its memory."""
_TINY_MS, _SHORTEST_TINY = 0.02, 0.2
"""Below, most of a judged call is the start of a kernel on an idle device, which calls in a row hide."""
_LONGEST = 1.5
"""A board at its power limit lowers its clocks in a loop, by up to a third."""
_HOST_MS = 0.1

Check = Callable[[list[torch.Tensor], int], None]


class Meter:
    """For one task, beside one baseline; both are kept for all candidates."""

    def __init__(self, bench: Bench, anchor: str, own_ms: float, report: Callable[[str], None]):
        """`anchor`: the baseline, which takes `own_ms` a call."""
        self._bench, self.anchor, self._own_ms, self._report = bench, anchor, own_ms, report
        self._reference: Baselines | None = None

    def measure(self, participant: Participant, own_ms: float, seeds: list[int], check: Check) -> Energy:
        """The candidate in this cell, judged to take `own_ms`. Its outputs are held against `check`, which raises the verdict."""
        try:
            counter = find(self._bench.target)
            participant.cell.freeze()
            baseline = Side(self.anchor, self._started(), self._own_ms, {"variant": self.anchor})
            return compare(
                self._bench,
                counter,
                Side("candidate", participant, own_ms, {}, check),
                baseline,
                seeds,
                self._report,
            )
        except (NoCounter, Unresolved) as reason:
            return Energy(refused=str(reason))
        except (BaselineFailed, BadInput, CannotStart, gpu.GpuError) as reason:
            self.close()
            return Energy(refused=str(reason))
        except torch.OutOfMemoryError:
            self.close()
            return Energy(
                refused="the device's memory is too small for the candidate, the baseline and what both are held against"
            )

    def _started(self) -> Participant:
        """The baseline in a cell of its own, loaded and called once."""
        if self._reference is None:
            bench, options = self._bench, self._bench.options
            self._report("starting the baseline for energy")
            self._reference = Baselines(
                bench.admit_reference([self.anchor], bench.most_calls),
                [self.anchor],
                bench.expected,
                bench.inputs,
                options.build_timeout,
                options.call_timeout,
            )
            self._reference.begin(bench.start_request(), bench.task, bench.seed)
            self._reference.warm_up(bench.new_seed())
        return self._reference.participant

    def close(self) -> None:
        """The baseline's cell; the next candidate gets a new one."""
        if self._reference:
            self._reference.close()
            self._bench.release(self._reference.participant.regions)
            self._reference = None


def compare(
    bench: Bench,
    counter: Counter,
    candidate: Side,
    other: Side,
    seeds: list[int],
    report: Callable[[str], None],
) -> Energy:
    """Two sides that stand still, measured in turn. Raises Unresolved."""
    with bench.quiet():
        report("measuring energy at rest")
        before = at_rest(counter, _IDLE_SECONDS)
        timeout = max(bench.options.call_timeout, bench.options.build_timeout)
        windows = Windows(counter, before.step(), bench.expected, bench.inputs, seeds, timeout)
        wanted = ROUNDS[bench.options.effort]
        rounds: list[dict[str, Window]] = []
        every: list[Window] = []
        while len(rounds) < wanted and len(every) < 2 * wanted * (1 + _MOST_SPOILT):
            report(f"measuring energy, round {len(rounds) + 1} of {wanted}")
            made = {side.name: windows.of(side) for side in random.sample([candidate, other], 2)}
            every += made.values()
            if not any(window.dropped for window in made.values()):
                rounds.append(made)
        after = at_rest(counter, _IDLE_SECONDS)
    if len(rounds) < wanted:
        reasons = statistics.multimode(window.dropped for window in every if window.dropped)
        raise Unresolved(f"{len(rounds)} of {wanted} rounds were undisturbed: {reasons[0]}")
    for side in (candidate, other):
        _agree(bench.target, side, [made[side.name] for made in rounds])
    idle = {"before": before.stretch().watts, "after": after.stretch().watts}
    return _told(counter.name, other.name, rounds, every, idle)


def _agree(target: Target, side: Side, windows: list[Window]) -> None:
    """The loop's calls must be the calls that were judged, as far as the clock tells."""
    loop = 1e3 * statistics.median(window.call_seconds for window in windows)
    least = min(_SHORTEST[target], _SHORTEST_TINY if side.own_ms < _TINY_MS else 1.0)
    if not least * side.own_ms <= loop <= _LONGEST * side.own_ms + _HOST_MS:
        who = "the candidate" if side.check else f"the baseline {side.name}"
        raise Unresolved(
            f"{who} takes {loop:.4f} ms a call where calls follow each other, but {side.own_ms:.4f} ms where they were judged: "
            "they cannot be the same work, so their energy says nothing"
        )


def _told(
    source: str, against: str, rounds: list[dict[str, Window]], every: list[Window], idle: dict[str, float]
) -> Energy:
    names = ("candidate", against)

    def values(read: Callable[[Window], float], name: str) -> list[float]:
        return [read(made[name]) for made in rounds]

    quantities: dict[str, Callable[[Window], float]] = {
        "energy": lambda window: window.joules_a_call,
        "power": lambda window: window.watts,
        "edp": lambda window: window.joules_a_call * window.call_seconds,
    }
    doubt = max(window.doubt for made in rounds for window in made.values())
    told = {
        quantity: {name: _doubted(few.interval(values(read, name)), doubt) for name in names}
        for quantity, read in quantities.items()
    }
    ratio = {
        quantity: few.ratio_interval([read(made["candidate"]) / read(made[against]) for made in rounds])
        for quantity, read in quantities.items()
    }
    less = {"yes": "no", "no": "yes"}.get(timing.decide(ratio["energy"]), "unclear")
    return Energy(
        source=source,
        against=against,
        joules=told["energy"],
        watts=told["power"],
        edp=told["edp"],
        ratio=ratio,
        less=less,  # type: ignore[arg-type]
        idle_watts=idle,
        windows=tuple(window.to_json() for window in every),
    )


def _doubted(found: Interval, doubt: float) -> Interval:
    return Interval(found.value, found.low * (1 - doubt), found.high * (1 + doubt))
