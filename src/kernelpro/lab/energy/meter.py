"""The energy meter: joules per call of a candidate, compared with a baseline.

1. While both sides are stopped, measure idle power and the counter's update period. The period determines how
   long windows are (updates.py).
2. Run rounds of two windows: candidate and baseline in random order (window.py). A round with a rejected
   window is repeated.
3. Measure idle power again. It is reported, not subtracted.
4. Take the ratios of energy, power and energy-delay product of each round. Report their geometric means with
   Student's intervals over rounds (student.py).

The number of rounds is fixed before the candidate is seen. The baseline runs in a sandboxed process of its
own with as many buffer sets as the candidate, so that caches help both equally.

The meter reports a reason instead of a number if the counter cannot resolve the energy, if too many windows
were rejected, if the time of a call in the loop does not match the judged time, or if the baseline failed or
did not fit into memory beside the candidate.

The intervals of joules, watts and energy-delay product are widened by the largest uncertainty of a window
(updates.py), however well the windows agree."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import torch

from kernelpro.lab.energy import student
from kernelpro.lab.energy.counter import EnergyCounter, NoEnergyCounter, find_counter
from kernelpro.lab.energy.updates import UnresolvedEnergy, poll_idle
from kernelpro.lab.energy.window import BaselineFailed, OutputCheck, Side, WindowRecorder
from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.statistics import above_one
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.sandbox.process import CannotStart
from kernelpro.records import BadInput, Energy, EnergyWindow, Interval, Target

ROUNDS = {"quick": 3, "normal": 5, "full": 5}
"""Number of rounds by effort. Windows of the same kernel differ by 0.2 %: more rounds would hardly narrow an
interval that includes a systematic error of 0.75 %."""
_MAX_REPEATED_ROUNDS = 1.0
"""How many rounds may be repeated, as a share of `ROUNDS`."""
_IDLE_SECONDS = 1.5
_MIN_LOOP_TIME = {"cuda": 0.5, "cpu": 0.1}
"""A call in the loop must take at least this share of its judged time, which is measured with cold caches.
Only a memory-bound kernel could gain more from warm caches; but if all buffer sets fit into the L2 of an
H200, a call spends only 2 us on reading. A CPU's caches are ten times as fast as its memory."""
_TINY_MS, _MIN_LOOP_TIME_TINY = 0.02, 0.2
"""The time in ms below which a smaller share suffices: most of such a call is launch latency on an idle
device, which back-to-back calls hide."""
_MAX_LOOP_TIME = 1.5
"""A call in the loop may take this multiple of its judged time: at its power limit, a board lowers its clocks
by up to a third."""
_LOOP_OVERHEAD_MS = 0.1


Round = dict[str, EnergyWindow]
"""One window of each side, by name."""


class EnergyMeter:
    """Compares the energy of one task's candidates with that of one baseline, whose process is reused."""

    def __init__(self, bench: Bench, baseline: str, baseline_ms: float, report: Callable[[str], None]):
        """`baseline_ms`: the judged time of the baseline."""
        self._bench, self.baseline, self._baseline_ms, self._report = bench, baseline, baseline_ms, report
        self._baselines: Baselines | None = None

    def measure(
        self, participant: Participant, judged_ms: float, seeds: list[int], check: OutputCheck
    ) -> Energy:
        """Measure the candidate that is loaded in `participant`. `check` verifies its outputs."""
        if self._bench.plan.layout.takes_turns:
            return Energy(unavailable="candidate and baseline together do not fit into the device's memory")
        try:
            counter = find_counter(self._bench.target)
            participant.process.freeze()
            candidate = Side("candidate", participant, judged_ms, check)
            baseline = Side(self.baseline, self._start_baseline(), self._baseline_ms)
            return compare(self._bench, counter, candidate, baseline, seeds, self._report)
        except (NoEnergyCounter, UnresolvedEnergy) as reason:
            return Energy(unavailable=str(reason))
        except (BaselineFailed, BadInput, CannotStart, gpu.GpuError) as reason:
            self.close()
            return Energy(unavailable=str(reason))
        except torch.OutOfMemoryError:
            self.close()
            return Energy(
                unavailable="out of device memory: candidate, baseline and expected outputs do not fit"
            )

    def _start_baseline(self) -> Participant:
        """Return the baseline in its own sandboxed process, loaded and called once."""
        if self._baselines is None:
            bench, options = self._bench, self._bench.options
            self._report("starting the baseline for energy")
            self._baselines = Baselines(
                bench.start_reference([self.baseline], bench.candidate_buffer_sets),
                [self.baseline],
                bench.output_spec,
                bench.inputs,
                options.build_timeout,
                options.call_timeout,
            )
            self._baselines.start_compiling(bench.start_request(), *bench.loader.reference_request())
            self._baselines.finish_compiling()
            self._baselines.warm_up(bench.new_seed())
        return self._baselines.participant

    def close(self) -> None:
        """Stop the baseline's process; the next candidate gets a new one."""
        if self._baselines:
            self._baselines.close()
            self._bench.release_regions(self._baselines.participant.regions)
            self._baselines = None


def compare(
    bench: Bench,
    counter: EnergyCounter,
    candidate: Side,
    baseline: Side,
    seeds: list[int],
    report: Callable[[str], None],
) -> Energy:
    """Measure two stopped sides in alternation. Raises UnresolvedEnergy."""
    with bench.quiet():
        report("measuring idle power")
        idle_before = poll_idle(counter, _IDLE_SECONDS)
        timeout = bench.options.call_timeout
        recorder = WindowRecorder(
            counter, idle_before.period(), bench.output_spec, bench.inputs, seeds, timeout
        )
        round_count = ROUNDS[bench.options.effort]
        max_windows = 2 * round_count * (1 + _MAX_REPEATED_ROUNDS)
        rounds: list[Round] = []
        all_windows: list[EnergyWindow] = []
        while len(rounds) < round_count and len(all_windows) < max_windows:
            report(f"measuring energy, round {len(rounds) + 1} of {round_count}")
            sides = random.sample([candidate, baseline], 2)
            windows = {side.name: recorder.measure(side) for side in sides}
            all_windows += windows.values()
            if not any(window.rejection for window in windows.values()):
                rounds.append(windows)
        idle_after = poll_idle(counter, _IDLE_SECONDS)
    if len(rounds) < round_count:
        reason = statistics.mode(window.rejection for window in all_windows if window.rejection)
        raise UnresolvedEnergy(f"only {len(rounds)} of {round_count} rounds were usable: {reason}")
    for side in (candidate, baseline):
        _require_judged_time(bench.target, side, [windows[side.name] for windows in rounds])
    idle_watts = {"before": idle_before.span().watts, "after": idle_after.span().watts}
    return _summarize(counter.name, baseline.name, rounds, all_windows, idle_watts)


def _require_judged_time(target: Target, side: Side, windows: list[EnergyWindow]) -> None:
    """Raise UnresolvedEnergy if calls in the loop take a different time than judged calls."""
    loop_ms = 1e3 * statistics.median(window.call_seconds for window in windows)
    min_share = min(_MIN_LOOP_TIME[target], _MIN_LOOP_TIME_TINY if side.judged_ms < _TINY_MS else 1.0)
    if not min_share * side.judged_ms <= loop_ms <= _MAX_LOOP_TIME * side.judged_ms + _LOOP_OVERHEAD_MS:
        label = "the candidate" if side.check else f"the baseline {side.name}"
        raise UnresolvedEnergy(
            f"{label} takes {loop_ms:.4f} ms per call in a loop but {side.judged_ms:.4f} ms as judged: "
            "this cannot be the same work, so the energy of the loop is not that of a judged call"
        )


def _summarize(
    counter: str,
    baseline: str,
    rounds: list[Round],
    all_windows: list[EnergyWindow],
    idle_watts: dict[str, float],
) -> Energy:
    quantities: dict[str, Callable[[EnergyWindow], float]] = {
        "energy": lambda window: window.joules_per_call,
        "power": lambda window: window.watts,
        "edp": lambda window: window.joules_per_call * window.call_seconds,
    }
    uncertainty = max(window.uncertainty for windows in rounds for window in windows.values())
    intervals: dict[str, dict[str, Interval]] = {}
    ratio: dict[str, Interval] = {}
    for quantity, read in quantities.items():
        values = {name: [read(windows[name]) for windows in rounds] for name in ("candidate", baseline)}
        intervals[quantity] = {
            name: _widen(student.mean_interval(v), uncertainty) for name, v in values.items()
        }
        ratio[quantity] = student.ratio_interval(
            [ours / theirs for ours, theirs in zip(*values.values(), strict=True)]
        )
    lower = {"yes": "no", "no": "yes"}.get(above_one(ratio["energy"]), "unclear")
    return Energy(
        counter=counter,
        baseline=baseline,
        joules=intervals["energy"],
        watts=intervals["power"],
        edp=intervals["edp"],
        ratio=ratio,
        lower=lower,  # type: ignore[arg-type]
        idle_watts=idle_watts,
        windows=tuple(all_windows),
    )


def _widen(interval: Interval, uncertainty: float) -> Interval:
    return Interval(interval.value, interval.low * (1 - uncertainty), interval.high * (1 + uncertainty))
