"""Profiles (what was measured of a candidate) and diagnoses (what the measurements mean)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Literal

from kernelpro.records.account import AccountPart, PartKind
from kernelpro.records.base import Record
from kernelpro.records.cpu_profile import CpuProfile
from kernelpro.records.judging import Target
from kernelpro.records.machine_code import KernelCode
from kernelpro.records.study import Work

Level = Literal["kernel", "instruction", "system"]
FindingObjective = Literal["speed", "energy"]


class Bound(enum.StrEnum):
    """The class of a bottleneck: what limits a call."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LATENCY = "latency"
    LAUNCH = "launch"
    MIXED = "mixed"


class Severity(enum.StrEnum):
    """How much a finding is worth."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True)
class ProfileRequest(Record):
    """What a profile job collects beyond the timeline and the static facts, which are always collected."""

    metrics: tuple[str, ...] = ()
    """Hardware counters for ncu; empty: ncu does not run."""
    sample_lines: bool = False
    """Also sample warp stalls by source line (ncu)."""
    references: tuple[str, ...] = ()
    """Baselines to profile in the same way, for the comparison table."""
    tracer: Literal["auto", "nsys", "cupti"] = "auto"
    """The source of the timeline; auto is CUPTI, which is faster and needs no installation."""


@dataclass(frozen=True)
class Skipped(Record):
    """A step that could not be done, the reason, and what would enable it."""

    what: str
    why: str
    enable: str = ""


@dataclass(frozen=True)
class Line(Record):
    """A hot source line: its text, its SASS, and the stall reasons of the warps sampled there."""

    where: str
    """`kernel.cu:12`, `candidate.py:30`; empty without line information."""
    text: str
    share: float
    """Of the kernel's stall samples."""
    stalls: dict[str, float] = field(default_factory=dict)
    """Share of this line's samples by stall reason."""
    sass: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kernel(Record):
    """One kernel of a call; its launches are merged, and counters are weighted by time."""

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
    """The candidate defines the kernel; False: a library does."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Hardware counters by ncu's names."""
    code: KernelCode | None = None
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Copy(Record):
    """Memory copies of one kind in one call."""

    kind: str
    """HtoD, DtoH, DtoD, memset, ..."""
    count: float
    nbytes: float
    microseconds: float


@dataclass(frozen=True)
class Timeline(Record):
    """Device and host activity of one call, averaged over the traced calls."""

    source: Literal["nsys", "cupti"]
    calls: int
    call_us: float
    """Host time of a call, until the device has finished it."""
    busy_us: float
    """Time in which at least one kernel or copy ran."""
    gaps_us: float
    """Idle time of the device between its first and last activity in a call."""
    launches: float
    """Kernel launches in a call (a CUDA graph counts once)."""
    copies: tuple[Copy, ...] = ()
    syncs: dict[str, float] = field(default_factory=dict)
    """Synchronizing API calls in a call: count by name."""
    apis: dict[str, dict[str, float]] = field(default_factory=dict)
    """Other API calls by name: `count` and `us` in a call."""


MAX_CPU_FLUSH = 128 << 20
"""Bytes that are written, at most, to empty a CPU's cache before a timed call."""


@dataclass(frozen=True)
class Ceilings(Record):
    """Measured peak rates of a device."""

    bandwidth: float
    """Bytes per second, read plus written, of a copy far larger than any cache."""
    cached_bandwidth: float
    """The same for copies that fit into the last-level cache."""
    cache_bytes: int
    rates: dict[str, float]
    """Operations per second of square matrix products by unit; fp64 and fp16 where a task has needed them."""
    loop_share: float = 0.0
    """Bandwidth of a vector loop that reads one array and writes another, in that of a copy (CPU); 0: not
    measured."""

    def with_best_of(self, other: Ceilings) -> Ceilings:
        """The higher of both in each rate."""
        return replace(
            self,
            bandwidth=max(self.bandwidth, other.bandwidth),
            cached_bandwidth=max(self.cached_bandwidth, other.cached_bandwidth),
            rates={
                unit: max(self.rates.get(unit, 0.0), other.rates.get(unit, 0.0))
                for unit in self.rates | other.rates
            },
            loop_share=self.loop_share or other.loop_share,
        )

    def bandwidth_for(self, nbytes: float) -> float:
        """The bandwidth for a task's bytes: that of the cache where its data survive there between calls.

        Some CPUs have hundreds of megabytes of cache, more than is emptied.
        """
        cached = nbytes <= self.cache_bytes - MAX_CPU_FLUSH
        return max(self.cached_bandwidth, self.bandwidth) if cached else self.bandwidth

    def rate(self, unit: str) -> float:
        """Operations per second of a unit; that of fp32 where the unit was not measured."""
        return self.rates.get(unit, self.rates["fp32"])


@dataclass(frozen=True)
class DeviceProperties(Record):
    """Properties that thresholds derive from; None: not known, or not a property of this kind of device."""

    name: str = ""
    capability: str | None = None
    """CUDA compute capability: `9.0`."""
    sms: int | None = None
    warp: int | None = None
    sector: int | None = None
    max_threads_per_sm: int | None = None
    max_warps_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    registers_per_sm: int | None = None
    shared_per_sm: int | None = None
    shared_per_block_max: int | None = None
    l2_bytes: int | None = None
    fp32_to_fp64: float | None = None
    """FP32 rate over FP64 rate."""
    dram_bandwidth: float | None = None
    cores: int | None = None
    """CPU cores, OpenMP threads and vector width of a CPU."""
    threads: int | None = None
    vector_bits: int | None = None
    vector_extensions: str | None = None
    caches: str | None = None
    clock_mhz: float | None = None

    @property
    def warp_size(self) -> int:
        """Threads per warp; 32 where it is not known."""
        return self.warp or 32

    @property
    def fp64_slowdown(self) -> float:
        """How many times slower FP64 is than FP32; 2 where it is not known."""
        return self.fp32_to_fp64 or 2.0


@dataclass(frozen=True)
class CompilerReport(Record):
    """What the compilers of a candidate reported."""

    warnings: tuple[str, ...] = ()
    """Warnings that belong to no kernel."""
    sources: dict[str, str] = field(default_factory=dict)
    """Compiled source text by file name."""
    configuration: dict[str, str] = field(default_factory=dict)
    """By kernel, the configuration that an autotuner chose."""


@dataclass(frozen=True)
class PowerReadings(Record):
    """Clock and power while calls follow each other; None: no reading."""

    watts: float | None = None
    limit_watts: float | None = None
    sm_mhz: float | None = None
    max_sm_mhz: float | None = None
    capped: float | None = None
    """Share of the samples with the clock reduced by the power cap."""


@dataclass(frozen=True)
class Profile(Record):
    """All that was measured of one candidate."""

    target: Target
    time_ms: float
    """An untraced call: median of CUDA events, or of the clock on the CPU."""
    floor_ms: float
    work: Work
    ceilings: Ceilings
    device: DeviceProperties
    precision: str
    unit: str = ""
    """The key of `ceilings.rates` that the task's matrix products may use at best; empty: unknown."""
    language: str = ""
    source: str = ""
    kernels: tuple[Kernel, ...] = ()
    """By share, largest first."""
    timeline: Timeline | None = None
    compiler: CompilerReport = field(default_factory=CompilerReport)
    power: PowerReadings | None = None
    cpu: CpuProfile | None = None
    """Of the CPU target."""
    references: dict[str, Profile] = field(default_factory=dict)
    """Baselines, by name."""
    skipped: tuple[Skipped, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each step of the profiling."""

    @property
    def matrix_unit(self) -> str:
        """The unit for matrix products."""
        return self.unit or ("bf16" if self.precision == "native" else self.precision)

    @property
    def is_double(self) -> bool:
        """Whether the task computes in float64, so that FP64 instructions are intended."""
        return self.unit == "fp64" or (
            not self.unit and self.precision == "native" and "float64" in self.source
        )


@dataclass(frozen=True)
class Evidence(Record):
    """One number that supports a finding."""

    metric: str
    """A description, in words."""
    value: float
    threshold: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Gain(Record):
    """The estimated improvement of a call."""

    factor: float
    """Times as fast, or for an energy finding times less energy."""
    basis: str
    """How the factor was estimated."""


@dataclass(frozen=True)
class Finding(Record):
    """The conclusion of one diagnostic."""

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
    """The source line, where known."""
    explained_by: str = ""
    """The diagnostic whose finding is the root cause of this one."""
    objective: FindingObjective = "speed"
    """The unit of the gain: speed, or energy at the same speed."""
    claims: tuple[PartKind, ...] = ()
    """Parts of the time account that the remedy reduces; for ranked causes, those that this call has."""
    claims_of: tuple[str, ...] = ()
    """The kernels whose parts it claims, beside those of no kernel; empty: of `kernel`, or of all kernels."""
    saves_ms: float = 0.0
    """What the remedy removes of a call's time once the findings before this one are fixed: these times add
    up."""


@dataclass(frozen=True)
class LeastTimes(Record):
    """Lower bounds of a call's time at the measured ceilings, in milliseconds."""

    memory: float
    matrix: float
    vector: float

    @property
    def arithmetic(self) -> float:
        """The longer of matrix and other operations."""
        return max(self.matrix, self.vector)


@dataclass(frozen=True)
class RooflinePosition(Record):
    """Where a candidate lies under the roofline."""

    intensity: float
    """Operations per byte of the task."""
    ridge: float
    """The intensity at which both roofs meet."""
    flops_per_second: float
    bytes_per_second: float
    roof_flops: float
    roof_bandwidth: float
    time_ms: float
    floor_ms: float
    of_floor: float
    """Floor over time: 1 is the floor."""
    least_ms: LeastTimes


@dataclass(frozen=True)
class Diagnosis(Record):
    """The result of `kernelpro profile`."""

    bound: Bound
    confidence: Literal["high", "medium", "low"]
    why: str
    roofline: RooflinePosition
    findings: tuple[Finding, ...] = ()
    """By gain; symptoms after their root causes, energy after speed."""
    skipped: tuple[Skipped, ...] = ()
    energy: bool = False
    """Whether the energy diagnostics ran."""
    account: tuple[AccountPart, ...] = ()
    """The parts of a call's time; they add up to the measured time. The floor first, then by size."""
