"""Timed rounds: in each, every participant is called once, in random order, on the same fresh inputs.

On a GPU there are three kinds of calls:

 - A single call starts on an idle device, so that its time includes the launch by the host.
 - A queued call is launched before its inputs are written (sealed; see cuda_participant.py), so that its time
   is that of the device alone.
 - A burst is several queued calls in a row, each on its own inputs. The error of the parent's clock is
   divided by the number of calls.

If launching takes as long as the kernels, single and queued calls both matter. torch.compile's kernels of
0.19 ms on an H200 took between 0.19 and 0.29 ms in single calls, and kernels that were merely as fast seemed
1.4 times faster. But a kernel that is fast on the device and slow to launch is not fast. So a candidate has
to win in all kinds: the lowest ratio counts.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

import torch

from kernelpro.lab.measure.samples import KINDS, Kind, Sample
from kernelpro.lab.measure.statistics import lower_bound, median_interval
from kernelpro.records import Interval

NOISE_SHARE = 0.95
"""If a baseline's time alone is more than this share of its time in rounds, the difference is noise."""
_SETTLED, _SETTLED_FAR, _FAR = 0.004, 0.010, 0.05
"""Widths of a ratio's log-interval, before SYSTEMATIC widens it, below which no more rounds are needed. The
second applies if the whole interval is further than _FAR from a ratio of 1, so that it is clear who is
faster."""
_DISTURBED_MS, _MAX_DISTURBED_MS, _DISTURBED_SHARE = 0.05, 0.1, 0.05
"""Allowance for normal variation of the input-write time. A process that works while inputs are written takes
the device from the parent, and each context switch costs 0.14 ms on an H200, so smaller delays are not
disturbances. The time normally varies by 3 us. For gigabytes it varies by one or two percent between
processes (3.04 to 3.07 ms, sometimes more, for 6.5 GB), so the allowance is a share of it, but always less
than one switch."""


@dataclass
class Rounds:
    """Samples by participant, one per round."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    discarded: int = 0
    solo: dict[str, list[Sample]] = field(default_factory=dict)
    """By participant, solo calls: calls without calls of other participants in between."""
    usual_input_write_ms: float = math.inf
    """Median input-write time before the candidate was started, in ms."""
    denied_prelaunch: frozenset[str] = frozenset()
    """Baselines that could be prelaunched but were not, because the candidate cannot be. Only their solo
    times count."""

    def add(self, round_: dict[str, Sample]) -> None:
        """Add one sample of each participant."""
        for name, sample in round_.items():
            self.samples.setdefault(name, []).append(sample)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of calls that were made."""
        present = {sample.kind for samples in self.samples.values() for sample in samples}
        return tuple(kind for kind in KINDS if kind in present)

    @property
    def steadiest_kind(self) -> Kind:
        """`queued` if there are queued calls, which do not depend on the host; else `single`."""
        return "queued" if "queued" in self.kinds else "single"

    def drop(self, kind: Kind) -> None:
        """Forget all calls of a kind."""
        for name, samples in self.samples.items():
            self.samples[name] = [sample for sample in samples if sample.kind != kind]

    def calls(self, name: str, kind: Kind | None = None) -> list[Sample]:
        """A participant's calls of one kind, by default of the steadiest kind."""
        kind = kind or self.steadiest_kind
        return [sample for sample in self.samples[name] if sample.kind == kind]

    def are_proven(self, name: str, baseline: str, kind: Kind) -> bool:
        """Whether the ends of both sides' calls were proven (sandbox/completion.py)."""
        return all(sample.proven for side in (name, baseline) for sample in self.calls(side, kind))

    def own_ms(self, name: str, kind: Kind | None = None) -> torch.Tensor:
        """Per round, milliseconds per call by the participant's own clock."""
        return torch.tensor([sample.own_ms for sample in self.calls(name, kind)], dtype=torch.float64)

    def median_ms(self, name: str, kind: Kind | None = None) -> float:
        """The median of `own_ms`."""
        return float(self.own_ms(name, kind).median())

    def log_ratio(self, slow: str, fast: str, kind: Kind | None = None) -> torch.Tensor:
        """Per round, log of how many times faster `fast` was."""
        return (self.own_ms(slow, kind) / self.own_ms(fast, kind)).log()

    def log_link(self, steady: str, other: str, kind: Kind) -> torch.Tensor:
        """As `log_ratio`, where `steady` links two participants that were not timed in the same rounds.

        Single calls are linked by the queued calls of `steady`, because those do not depend on the host.
        """
        if kind == "single" and self.steadiest_kind != "single":
            return (self.own_ms(steady).median() / self.own_ms(other, kind)).log()
        return self.log_ratio(steady, other, kind)

    def deciding_kind(self, slow: str, fast: str) -> Kind:
        """The kind of calls in which `fast` gains less."""
        return min(self.kinds, key=lambda kind: float(self.log_ratio(slow, fast, kind).median()))

    def is_settled(self, slow: str, fast: str) -> bool:
        """Whether more rounds would not change the result."""
        if not self.samples:
            return False
        ratio = lower_bound([median_interval(self.log_ratio(slow, fast, kind)) for kind in self.kinds])
        far = ratio.low > _FAR or ratio.high < -_FAR
        return ratio.high - ratio.low <= (_SETTLED_FAR if far else _SETTLED)

    def hidden_ms(self, name: str, baseline: str, kind: Kind | None = None) -> torch.Tensor:
        """Per round, hidden milliseconds per call: the participant's difference between the two clocks minus
        the baseline's.

        The input-write time is subtracted first: all of it for the baseline, but only the usual time for the
        participant, which may have worked while its inputs were written.
        """
        kind = kind or self.steadiest_kind
        usual = self._usual_input_write_ms(name, baseline, kind)
        pairs = zip(self.calls(name, kind), self.calls(baseline, kind), strict=True)
        return torch.tensor(
            [
                (a.protocol_ms + _disturbance(a.input_write_ms, usual)) / a.calls - b.protocol_ms / b.calls
                for a, b in pairs
            ],
            dtype=torch.float64,
        )

    def disturbances_ms(self, name: str, baseline: str, kind: Kind = "queued") -> list[float]:
        """Per round, the input-write time beyond the usual one, in ms; 0 within normal variation."""
        usual = self._usual_input_write_ms(name, baseline, kind)
        return [_disturbance(call.input_write_ms, usual) for call in self.calls(name, kind)]

    def _usual_input_write_ms(self, name: str, baseline: str, kind: Kind) -> float:
        """The input-write time without disturbances. Bursts write more than single calls, and there were none
        before the candidate was started."""
        before = math.inf if kind == "burst" else self.usual_input_write_ms
        return min(before, self.input_write_ms(name, kind), self.input_write_ms(baseline, kind))

    def protocol_ms(self, name: str, kind: Kind) -> torch.Tensor:
        """Per round, the difference of the two clocks without the input-write time."""
        return torch.tensor([call.protocol_ms for call in self.calls(name, kind)], dtype=torch.float64)

    def input_write_ms(self, name: str, kind: Kind | None = None) -> float:
        """Median input-write time, in ms."""
        return statistics.median([call.input_write_ms for call in self.calls(name, kind)] or [0.0])


def _disturbance(input_write_ms: float, usual_ms: float) -> float:
    allowed = max(_DISTURBED_MS, min(_MAX_DISTURBED_MS, _DISTURBED_SHARE * usual_ms))
    excess = input_write_ms - usual_ms
    return excess if excess > allowed else 0.0


def was_slowed(rounds: Rounds, before: Rounds, slow: str, fast: str) -> bool:
    """Whether `slow` was slowed in these rounds: with its times from `before`, when `fast` had not started,
    the speed-up of `fast` would be lower by more than noise."""
    gains, gains_before = [], []
    for kind in (kind for kind in rounds.kinds if kind in before.kinds):
        gains.append(float(rounds.log_ratio(slow, fast, kind).median()))
        change = math.log(before.median_ms(slow, kind) / rounds.median_ms(slow, kind))
        gains_before.append(gains[-1] + change)
    return min(gains_before) < min(gains) + math.log(NOISE_SHARE)


def comparable_time(rounds: Rounds, slow: str, fast: str) -> Interval:
    """The time of `fast` on the scale of the baselines' queued times.

    If `fast` gains less in single calls, its time is scaled so that it has that ratio to the baseline's.
    """
    kind = rounds.deciding_kind(slow, fast)
    share = rounds.median_ms(slow) / rounds.median_ms(slow, kind)
    time = median_interval(rounds.own_ms(fast, kind))
    return Interval(share * time.value, share * time.low, share * time.high)
