"""Energy of a call: the record of a measurement, and its formatting."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Literal

from kernelpro.records.base import Record
from kernelpro.records.interval import Interval

Objective = Literal["speed", "energy-at-speed", "edp"]
"""What a run optimizes. `speed`: the shortest time. `energy-at-speed`: the lowest energy among kernels about
as fast as the fastest. `edp`: the lowest energy-delay product."""


@dataclass(frozen=True)
class EnergyWindow(Record):
    """A few seconds in which one side (the candidate or the baseline) is called in a loop while the energy
    counter is polled."""

    side: str
    """`candidate` or the name of the baseline."""
    started_at: float
    """Time of the first counter update in seconds, by the worker's time.perf_counter."""
    joules: float
    """Energy between the first and the last counter update that are used."""
    seconds: float
    """Time between these two updates."""
    calls: int
    """Number of calls in the whole loop."""
    call_seconds: float
    """Mean duration of a call in the loop."""
    uncertainty: float
    """Relative error of `joules` that the counter's quantization may cause."""
    sm_mhz: float | None = None
    """Median SM clock."""
    memory_mhz: float | None = None
    """Median memory clock."""
    temperature_c: float | None = None
    """Median temperature in degrees Celsius."""
    power_capped: float = 0.0
    """Share of readings, 0 to 1, in which the software power cap reduced the clock. This is normal for a busy
    board."""
    rejection: str = ""
    """Why the window is not used; empty if it is."""

    @property
    def watts(self) -> float:
        """Mean power in the window."""
        return self.joules / self.seconds

    @property
    def joules_per_call(self) -> float:
        """Energy of a call."""
        return self.watts * self.call_seconds


@dataclass(frozen=True)
class Energy(Record):
    """The energy of a candidate and a baseline, or `unavailable` with the reason why it was not measured."""

    counter: str = ""
    """Name of the energy counter: NVML's, or the RAPL zones."""
    baseline: str = ""
    """Name of the baseline, whose windows alternate with the candidate's."""
    joules: dict[str, Interval] = field(default_factory=dict)
    """Joules per call of `candidate` and of the baseline, idle power included."""
    watts: dict[str, Interval] = field(default_factory=dict)
    """Mean power of `candidate` and of the baseline."""
    edp: dict[str, Interval] = field(default_factory=dict)
    """Energy-delay product in joule-seconds: energy of a call times its duration in the loop."""
    ratio: dict[str, Interval] = field(default_factory=dict)
    """Candidate over baseline, by quantity: `energy`, `power` and `edp`. Below 1 is better."""
    lower: Literal["yes", "no", "unclear"] | None = None
    """Whether a call of the candidate takes less energy than one of the baseline."""
    idle_watts: dict[str, float] = field(default_factory=dict)
    """Power `before` and `after` the measurement, while both sides were stopped."""
    windows: tuple[EnergyWindow, ...] = ()
    """All windows in the order of measurement, rejected ones included."""
    unavailable: str = ""
    """Why energy was not measured; empty if it was."""

    def __post_init__(self) -> None:
        if bool(self.unavailable) == bool(self.joules):
            raise ValueError("an Energy record has either joules or a reason in `unavailable`")
        if self.joules and not (
            self.baseline in self.joules and "candidate" in self.joules and self.ratio and self.lower
        ):
            raise ValueError("measured energy needs a candidate, a baseline and their ratio")

    @property
    def is_power_limited(self) -> bool:
        """Whether the candidate ran at the board's power cap most of the time. Energy is then proportional to
        time."""
        capped = [w.power_capped for w in self.windows if w.side == "candidate" and not w.rejection]
        return bool(capped) and statistics.median(capped) > 0.5


ENERGY_COLUMNS = ("J per call", "energy vs baseline", "W")
"""Titles of a table's energy columns."""


def energy_cells(energy: Energy | None) -> tuple[str, str, str]:
    """The cells under `ENERGY_COLUMNS`; empty strings if energy was not measured."""
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
    """Format an energy ratio with its interval. It has three digits, one more than a ratio of times, because
    energies differ by less."""
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
