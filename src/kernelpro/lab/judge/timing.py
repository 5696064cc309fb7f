"""Statistics of timed rounds, and the agreement of the two clocks.

In a round every participant is called once, in random order, on the same fresh inputs. Of each call
there are two times: `own`, the child's claim (device events or its own counter, free of protocol), and
`wall`, the parent's, from before the inputs can be seen until the output has been read. What `wall`
holds beyond `own` is the protocol's. Before a candidate is loaded, its own process is called under the
same protocol with a model that only waits and returns an output of the right shape; so

    hidden = (wall - own) of the candidate - (wall - own) of that null model in the same process

less what a real model costs beyond a null one (known from the baseline's process) is the time that the
candidate's clock did not show. It is noise around zero for an honest kernel. Where it is certainly above
the slack, the clock lies and the candidate is cheating; where it may be a noticeable share of the
candidate's time, the interval of the result is widened by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from kernelpro.records import Interval

RESAMPLES = 2000
LEVEL = 0.95
CERTAIN = 0.998
"""Level of the interval that convicts."""
SLACK_MS = {"cuda": 0.030, "cpu": 0.050}
"""Below the spread of one round trip (45 us on an H200 host, about 90 us on a two-core machine)."""
SLACK_SHARE = 0.05
RESOLVED = 0.10
"""A clock whose doubt is below this share of the candidate's time resolves it."""
SYSTEMATIC = 0.0075
"""Two processes that run the same code differ by up to 0.6 % on an H200, however long they are timed (where
their memory lies; benchmarks/judge_noise.py): every interval of a ratio is widened by this."""


@dataclass(frozen=True)
class Sample:
    own: float
    wall: float
    sealed: bool
    """Inputs became visible only after the clock had started."""


@dataclass
class Rounds:
    """Samples by participant, one a round."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    discarded: int = 0

    def add(self, round_: dict[str, Sample]) -> None:
        for name, sample in round_.items():
            self.samples.setdefault(name, []).append(sample)

    def own(self, name: str) -> torch.Tensor:
        return torch.tensor([sample.own for sample in self.samples[name]], dtype=torch.float64)

    def log_ratio(self, slow: str, fast: str) -> torch.Tensor:
        """Per round, log of how many times faster `fast` was."""
        return (self.own(slow) / self.own(fast)).log()

    def overhead(self, name: str, sealed: bool = False) -> torch.Tensor:
        """Per call, what the parent's clock shows beyond the participant's own."""
        return overhead(self.samples[name], sealed)


def overhead(samples: list[Sample], sealed: bool = False) -> torch.Tensor:
    return torch.tensor([s.wall - s.own for s in samples if s.sealed == sealed], dtype=torch.float64)


def bootstrap_medians(values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    return values[picks].median(dim=1).values


def interval(medians: torch.Tensor, value: float, level: float = LEVEL) -> Interval:
    tail = (1 - level) / 2
    low, high = torch.quantile(medians, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(value, min(low, value), max(high, value))


def median_interval(values: torch.Tensor, level: float = LEVEL) -> Interval:
    return interval(bootstrap_medians(values), float(values.median()), level)


def ratio_interval(log_ratios: torch.Tensor, link: torch.Tensor | None = None) -> Interval:
    """Interval of a ratio from per-round logs; `link` adds a second, independently measured log-ratio."""
    medians, value = bootstrap_medians(log_ratios), float(log_ratios.median())
    if link is not None:
        medians, value = medians + bootstrap_medians(link, seed=1), value + float(link.median())
    found = interval(medians, value)
    return Interval(math.exp(found.value), math.exp(found.low - SYSTEMATIC), math.exp(found.high + SYSTEMATIC))


@dataclass(frozen=True)
class Clocks:
    """What the parent's clock says of the candidate's."""

    hidden: Interval
    hidden_sealed: Interval | None
    own_ms: float
    lie: str
    """Why the candidate's clock is not believed; empty when it is."""
    widen_ms: float
    """What may be hidden, where the parent's clock cannot resolve the candidate's time."""


def compare_clocks(samples: list[Sample], null: list[Sample], real_ms: float, device: str) -> Clocks:
    """`null`: calls of the null model in the same process; `real_ms`: what a real model's protocol costs beyond it."""
    own = float(torch.tensor([sample.own for sample in samples]).median())
    slack = SLACK_MS[device] + SLACK_SHARE * own
    hidden, certain = _hidden(samples, null, real_ms, sealed=False)
    lie = ""
    if certain.low > slack:
        lie = f"its own clock shows {own:.4f} ms, but {hidden.value:.4f} ms more pass until its output is there"
    sealed = None
    if any(sample.sealed for sample in samples):
        sealed, certain = _hidden(samples, null, real_ms, sealed=True)
        if not lie and certain.low > slack:
            lie = f"calls take {sealed.value:.4f} ms longer when inputs are shown only after the clock has started"
    return Clocks(hidden, sealed, own, lie, _doubt(hidden, own))


def _hidden(samples: list[Sample], null: list[Sample], real_ms: float, sealed: bool) -> tuple[Interval, Interval]:
    """The hidden time with its ordinary interval, and with the one that convicts."""
    shown, expected = overhead(samples, sealed), overhead(null, sealed)
    medians = bootstrap_medians(shown) - bootstrap_medians(expected, seed=1) - real_ms
    value = float(shown.median()) - float(expected.median()) - real_ms
    return interval(medians, value), interval(medians, value, CERTAIN)


def _doubt(hidden: Interval, own: float) -> float:
    """What the result must be widened by: hidden time that is there, or that could not be seen if it were."""
    resolved = hidden.high - hidden.value <= RESOLVED * own
    if resolved:
        return max(0.0, hidden.value) if hidden.low > RESOLVED * own / 2 else 0.0
    return max(0.0, hidden.high)


def widened(speedup: Interval, own_ms: float, extra_ms: float) -> Interval:
    """The interval if the candidate really took `extra_ms` longer than it shows."""
    return Interval(speedup.value, speedup.low * own_ms / (own_ms + extra_ms), speedup.high)


def decide(speedup: Interval) -> str:
    return "yes" if speedup.low > 1 else "no" if speedup.high < 1 else "unclear"
