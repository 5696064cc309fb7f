"""Energy of a call: the record of a measurement, and its formatting wherever a verdict is shown."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Literal

from kernelpro.records.base import Record
from kernelpro.records.interval import Interval

Objective = Literal["speed", "energy-at-speed", "edp"]
"""What a run optimizes: `speed` finds the fastest kernel; `energy-at-speed` the one with the lowest energy
among those about as fast as the fastest; `edp` the lowest energy-delay product."""


@dataclass(frozen=True)
class EnergyWindow(Record):
    """One side called in a loop for a few seconds while the energy counter was read."""

    side: str
    """`candidate` or the name of the baseline."""
    started_at: float
    """Time of the first counter update, by time.perf_counter."""
    joules: float
    """Energy between two counter updates."""
    seconds: float
    """Time between these two updates."""
    calls: int
    """Calls in the whole loop."""
    call_seconds: float
    uncertainty: float
    """Relative error of the energy that the counter's quantization causes."""
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    power_capped: float = 0.0
    """Share of readings under the software power cap, which is normal for a busy board."""
    rejection: str = ""
    """Why the window does not count; empty if it does."""

    @property
    def watts(self) -> float:
        """Mean power."""
        return self.joules / self.seconds

    @property
    def joules_per_call(self) -> float:
        """Energy of a call."""
        return self.watts * self.call_seconds


@dataclass(frozen=True)
class Energy(Record):
    """The energy of a candidate and a baseline, or `unavailable` with the reason why it was not measured."""

    counter: str = ""
    """NVML's counter, or the RAPL zones."""
    baseline: str = ""
    """The baseline that was measured in alternation with the candidate."""
    joules: dict[str, Interval] = field(default_factory=dict)
    """Per call, for `candidate` and the baseline. Idle power is included."""
    watts: dict[str, Interval] = field(default_factory=dict)
    edp: dict[str, Interval] = field(default_factory=dict)
    """Energy-delay product in joule-seconds: energy of a call times its duration in the loop."""
    ratio: dict[str, Interval] = field(default_factory=dict)
    """Candidate over baseline for `energy`, `power` and `edp`; below 1 is better."""
    lower: Literal["yes", "no", "unclear"] | None = None
    """Whether a call of the candidate takes less energy than one of the baseline."""
    idle_watts: dict[str, float] = field(default_factory=dict)
    """`before` and `after` the measurement, while both sides were stopped."""
    windows: tuple[EnergyWindow, ...] = ()
    unavailable: str = ""
    """Why there is no measurement; empty if there is one."""

    def __post_init__(self) -> None:
        if bool(self.unavailable) == bool(self.joules):
            raise ValueError("an Energy record has either joules or a reason in `unavailable`")
        if self.joules and not (
            self.baseline in self.joules and "candidate" in self.joules and self.ratio and self.lower
        ):
            raise ValueError("measured energy needs a candidate, a baseline and their ratio")

    @property
    def is_power_limited(self) -> bool:
        """Whether the candidate ran mostly at the board's power cap: then energy is proportional to time."""
        capped = [w.power_capped for w in self.windows if w.side == "candidate" and not w.rejection]
        return bool(capped) and statistics.median(capped) > 0.5


ENERGY_COLUMNS = ("J per call", "energy vs baseline", "W")
"""Energy columns of a table."""


def energy_cells(energy: Energy | None) -> tuple[str, str, str]:
    """Return the cells under `ENERGY_COLUMNS`; empty strings without a measurement."""
    if energy is None or energy.unavailable:
        return "", "", ""
    return (
        format_joules(energy.joules["candidate"].value),
        format_ratio(energy.ratio["energy"]),
        f"{energy.watts['candidate'].value:.0f}",
    )


def format_joules(joules: float) -> str:
    """Format joules with an SI prefix: `12.3 mJ`."""
    for size, prefix in ((1.0, ""), (1e-3, "m"), (1e-6, "u")):
        if abs(joules) >= size:
            return f"{joules / size:.3g} {prefix}J"
    return f"{joules / 1e-9:.3g} nJ"


def format_ratio(ratio: Interval) -> str:
    """Format an energy ratio with its interval. Three digits, one more than for times: energies differ by
    less."""
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
