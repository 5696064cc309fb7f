"""Profiles (what was measured of a candidate) and findings (what that means)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelpro.records.base import Record
from kernelpro.records.judging import Target

Level = Literal["kernel", "instruction", "system"]


class Bound(enum.StrEnum):
    """What limits a kernel: the classes of stage 1."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LATENCY = "latency"
    LAUNCH = "launch"
    MIXED = "mixed"


class Severity(enum.StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True)
class ProfileRequest(Record):
    """What a profile job is asked to collect. Timeline and static facts are cheap and always there."""

    metrics: tuple[str, ...] = ()
    """Names of hardware counters for ncu; none: ncu does not run."""
    sample_lines: bool = False
    """Also sample stalls by source line (ncu)."""
    references: tuple[str, ...] = ()
    """Baselines to be profiled in the same way, for the side-by-side table."""
    tracer: Literal["auto", "nsys", "cupti"] = "auto"
    """Where the timeline comes from; auto is CUPTI, which is faster and needs nothing."""


@dataclass(frozen=True)
class Skipped(Record):
    """What could not be done, why, and what would enable it."""

    what: str
    why: str
    enable: str = ""


@dataclass(frozen=True)
class Line(Record):
    """One hot line: where it is, what it says, its machine code and why warps wait there."""

    where: str
    """`kernel.cu:12`, `candidate.py:30`; empty where the compiler left no line information."""
    text: str
    share: float
    """Of the kernel's stall samples."""
    stalls: dict[str, float] = field(default_factory=dict)
    """Share of this line's samples by reason."""
    sass: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kernel(Record):
    """One kernel of one call; its launches are merged, counters weighted by time."""

    name: str
    microseconds: float
    """Device time in one call, all launches together."""
    launches: float
    """In one call."""
    share: float
    """Of the device time of a call."""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int = 0
    static_shared: int = 0
    dynamic_shared: int = 0
    authored: bool = True
    """Whether the candidate brought it, or a library."""
    metrics: dict[str, float] = field(default_factory=dict)
    code: dict[str, Any] = field(default_factory=dict)
    """Static facts, see lab/profile/sass.py; without `mix` where only the compiler's report was found, empty where nothing was."""
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Copy(Record):
    """Copies of one kind in one call."""

    kind: str
    """HtoD, DtoH, DtoD, memset, ..."""
    count: float
    nbytes: float
    microseconds: float


@dataclass(frozen=True)
class Timeline(Record):
    """One call as the system sees it, averaged over the traced calls."""

    source: Literal["nsys", "cupti"]
    calls: int
    call_us: float
    """Host time of a call, until the device has finished it."""
    busy_us: float
    """Time in which at least one kernel or copy ran."""
    gaps_us: float
    """Idle time of the device between the first and the last thing it did in a call."""
    launches: float
    """Kernels started in a call (a graph counts once)."""
    copies: tuple[Copy, ...] = ()
    syncs: dict[str, float] = field(default_factory=dict)
    """Synchronising API calls inside a call, by name: how many."""
    apis: dict[str, dict[str, float]] = field(default_factory=dict)
    """Other API calls by name: `count` and `us` in a call."""


@dataclass(frozen=True)
class Profile(Record):
    """All that was measured of one candidate."""

    target: Target
    time_ms: float
    """A call, untraced: median of the events around it (CUDA) or of the clock (CPU)."""
    floor_ms: float
    work: dict[str, float]
    """`read_bytes`, `written_bytes`, `matrix_flops`, `vector_flops` of the reference."""
    ceilings: dict[str, Any]
    """`bandwidth`, `cached_bandwidth`, `cache_bytes`, `rates` (operations a second by unit; fp16 and fp64 where needed)."""
    device: dict[str, Any]
    """Properties of the device: see lab/profile/facts.py."""
    precision: str
    unit: str = ""
    """Of the ceilings' rates, the one that the task's matrix products may use at best; empty in old profiles."""
    language: str = ""
    source: str = ""
    kernels: tuple[Kernel, ...] = ()
    """By share, largest first."""
    timeline: Timeline | None = None
    compiler: dict[str, Any] = field(default_factory=dict)
    """`warnings` (list), `sources` (by name), `configuration` (what an autotuner chose)."""
    power: dict[str, float] = field(default_factory=dict)
    """In a sustained loop: `watts`, `limit_watts`, `sm_mhz`, `max_sm_mhz`, `capped` (share of samples under a power cap)."""
    cpu: dict[str, Any] = field(default_factory=dict)
    """CPU target: see lab/profile/cpu.py."""
    graph: tuple[dict[str, Any], ...] = ()
    """Operators of the reference: `name`, `flops`, `bytes` (read and written by it alone)."""
    references: dict[str, Profile] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def matrix_unit(self) -> str:
        return self.unit or ("bf16" if self.precision == "native" else self.precision)

    @property
    def in_double(self) -> bool:
        """The task is float64's, so that doubles are meant."""
        return self.unit == "fp64" or (
            not self.unit and self.precision == "native" and "float64" in self.source
        )


@dataclass(frozen=True)
class Evidence(Record):
    """One number that speaks."""

    metric: str
    """In words, as a person would say it."""
    value: float
    threshold: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Gain(Record):
    """How many times faster (or, of an energy finding, leaner) a call might become, and how that was computed."""

    factor: float
    basis: str


@dataclass(frozen=True)
class Finding(Record):
    """What one tool concluded."""

    diagnostic: str
    level: Level
    severity: Severity
    evidence: tuple[Evidence, ...]
    cause: str
    advice: tuple[str, ...]
    """Best first."""
    gain: Gain
    kernel: str = ""
    where: str = ""
    """Source line or anchor where known."""
    explained_by: str = ""
    """The tool whose finding is the cause of this one."""
    objective: Literal["speed", "energy"] = "speed"
    """What the gain is in: times as fast, or times less energy at the same speed."""


@dataclass(frozen=True)
class Diagnosis(Record):
    """The answer of `kernelpro profile`."""

    bound: Bound
    confidence: Literal["high", "medium", "low"]
    why: str
    roofline: dict[str, Any]
    findings: tuple[Finding, ...] = ()
    """By gain, symptoms after their causes, energy after time."""
    skipped: tuple[Skipped, ...] = ()
    energy: bool = False
    """Whether tools looked for energy as well."""
