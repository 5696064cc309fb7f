"""Profiles (measurements of a candidate) and diagnoses (what the measurements mean)."""

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
    """Arithmetic throughput."""
    MEMORY = "memory"
    """Memory bandwidth."""
    LATENCY = "latency"
    """Waiting: neither arithmetic nor memory bandwidth is near its peak."""
    LAUNCH = "launch"
    """Host time or launch overhead: the device is idle for much of the call."""
    MIXED = "mixed"
    """Arithmetic and memory alike."""

    @property
    def phrase(self) -> str:
        """In a sentence: `memory-bound`."""
        return "bound by compute and memory alike" if self is Bound.MIXED else f"{self}-bound"


class Severity(enum.StrEnum):
    """The expected gain of a finding's remedy, in three steps."""

    HIGH = "high"
    """At least 1.25x."""
    MEDIUM = "medium"
    """At least 1.08x."""
    LOW = "low"
    """Less."""


@dataclass(frozen=True)
class ProfileRequest(Record):
    """What a profile job collects beyond the timeline and the static facts, which are always collected."""

    metrics: tuple[str, ...] = ()
    """Names of the hardware counters that ncu collects; empty: ncu does not run."""
    sample_lines: bool = False
    """Whether ncu also samples warp stalls by source line."""
    references: tuple[str, ...] = ()
    """Baselines to profile in the same way, for the comparison table."""
    tracer: Literal["auto", "nsys", "cupti"] = "auto"
    """The source of the timeline; auto is CUPTI, which is faster and needs no installation."""


@dataclass(frozen=True)
class Skipped(Record):
    """An examination that was not done."""

    what: str
    """What was not examined."""
    why: str
    """The reason."""
    enable: str = ""
    """What the user can do to enable it; empty if nothing helps."""


@dataclass(frozen=True)
class Line(Record):
    """A hot source line and the stall reasons of the warps sampled there."""

    where: str
    """Source location, such as `kernel.cu:12`; empty without line information."""
    text: str
    """Text of the line."""
    share: float
    """Share of the kernel's stall samples, 0 to 1."""
    stalls: dict[str, float] = field(default_factory=dict)
    """Share of this line's samples by stall reason."""
    sass: tuple[str, ...] = ()
    """Its SASS instructions with the most samples."""


@dataclass(frozen=True)
class Kernel(Record):
    """One GPU kernel of a call. Its launches are merged; counters are averages weighted by time."""

    name: str
    microseconds: float
    """Device time per call, all launches together."""
    launches: float
    """Number of launches per call."""
    share: float
    """Share of the device time of a call, 0 to 1."""
    grid: tuple[int, ...] = ()
    """Blocks in x, y and z, of the launch configuration that takes the most time."""
    block: tuple[int, ...] = ()
    """Threads per block in x, y and z."""
    registers: int = 0
    """Registers per thread."""
    static_shared: int = 0
    """Static shared memory per block, in bytes."""
    dynamic_shared: int = 0
    """Dynamic shared memory per block, in bytes."""
    authored: bool = True
    """Whether the candidate defines the kernel; False: a library does."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Hardware counters by ncu's names."""
    code: KernelCode | None = None
    """Its machine code; None if it was not disassembled."""
    lines: tuple[Line, ...] = ()
    """Its hottest source lines, hottest first."""


@dataclass(frozen=True)
class Copy(Record):
    """All memory copies of one kind, per call."""

    kind: str
    """HtoD, DtoH, DtoD, memset, ..."""
    count: float
    """Number of copies per call."""
    nbytes: float
    """Bytes per call."""
    microseconds: float
    """Device time per call."""


@dataclass(frozen=True)
class Timeline(Record):
    """Device and host activity of a call: medians of times and means of counts over the traced calls."""

    source: Literal["nsys", "cupti"]
    """The tracer."""
    calls: int
    """Number of traced calls."""
    call_us: float
    """Host time of a call until the device has finished it, in microseconds."""
    busy_us: float
    """Time in which at least one kernel or copy ran, in microseconds."""
    gaps_us: float
    """Idle time of the device between its first and last activity in a call, in microseconds."""
    launches: float
    """Kernel launches per call (a CUDA graph counts once)."""
    copies: tuple[Copy, ...] = ()
    """Memory copies by kind, longest first."""
    syncs: dict[str, float] = field(default_factory=dict)
    """Number of synchronizing API calls per call, by name."""
    apis: dict[str, dict[str, float]] = field(default_factory=dict)
    """Other API calls by name: `count` and `us` (microseconds) per call."""


MAX_CPU_FLUSH = 128 << 20
"""Maximum number of bytes written before a timed call to flush a CPU's cache."""


@dataclass(frozen=True)
class Ceilings(Record):
    """Measured peak rates of a device."""

    bandwidth: float
    """Bytes per second, read plus written, of a copy far larger than any cache."""
    cached_bandwidth: float
    """Bytes per second, read plus written, of a copy that fits into the last-level cache."""
    cache_bytes: int
    """Size of the last-level cache."""
    rates: dict[str, float]
    """Operations per second of square matrix products by unit (fp32, tf32, bf16, ...). fp64 and fp16 are
    measured only if a task needs them."""
    loop_share: float = 0.0
    """CPU: bandwidth of a vector loop that reads one array and writes another, as a share of the copy's; 0 if
    not measured."""

    def with_best_of(self, other: Ceilings) -> Ceilings:
        """The higher of the two values of each rate."""
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
        """The bandwidth that bounds a task with this many bytes: the cache's if the data stay there between
        calls, else main memory's.

        Some CPUs have hundreds of megabytes of cache, more than the judge flushes (`MAX_CPU_FLUSH`).
        """
        cached = nbytes <= self.cache_bytes - MAX_CPU_FLUSH
        return max(self.cached_bandwidth, self.bandwidth) if cached else self.bandwidth

    def rate(self, unit: str) -> float:
        """Operations per second of a unit; the rate of fp32 if the unit was not measured."""
        return self.rates.get(unit, self.rates["fp32"])


@dataclass(frozen=True)
class DeviceProperties(Record):
    """Device properties that the diagnostics' thresholds depend on. None: unknown, or a property of the other
    kind of device (GPU or CPU)."""

    name: str = ""
    capability: str | None = None
    """CUDA compute capability: `9.0`."""
    sms: int | None = None
    """Number of streaming multiprocessors (SMs)."""
    warp: int | None = None
    """Threads per warp."""
    sector: int | None = None
    """Bytes of a memory sector."""
    max_threads_per_sm: int | None = None
    max_warps_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    registers_per_sm: int | None = None
    """Number of 32-bit registers."""
    shared_per_sm: int | None = None
    """Bytes of shared memory of an SM."""
    shared_per_block_max: int | None = None
    """Bytes of shared memory that a block can use at most."""
    l2_bytes: int | None = None
    """Size of the L2 cache."""
    fp32_to_fp64: float | None = None
    """FP32 rate over FP64 rate."""
    dram_bandwidth: float | None = None
    """Measured bandwidth of device memory in bytes per second."""
    cores: int | None = None
    """CPU cores that the process may use."""
    threads: int | None = None
    """torch's number of CPU threads."""
    vector_bits: int | None = None
    """Width of the CPU's widest vectors."""
    vector_extensions: str | None = None
    """Names of the CPU's vector instruction sets."""
    caches: str | None = None
    """The CPU's caches, in words."""
    clock_mhz: float | None = None
    """Highest clock of the GPU or CPU."""

    @property
    def warp_size(self) -> int:
        """Threads per warp; 32 if unknown."""
        return self.warp or 32

    @property
    def fp64_slowdown(self) -> float:
        """FP32 rate over FP64 rate; 2 if unknown."""
        return self.fp32_to_fp64 or 2.0


@dataclass(frozen=True)
class CompilerReport(Record):
    """The output of a candidate's compilers."""

    warnings: tuple[str, ...] = ()
    """Warnings that belong to no kernel."""
    sources: dict[str, str] = field(default_factory=dict)
    """Compiled source text by file name."""
    configuration: dict[str, str] = field(default_factory=dict)
    """The configuration that an autotuner chose, by kernel."""


@dataclass(frozen=True)
class PowerReadings(Record):
    """Power and clock of the GPU while calls follow each other without pause. None: not available."""

    watts: float | None = None
    """Median power."""
    limit_watts: float | None = None
    """The board's power limit."""
    sm_mhz: float | None = None
    """Median SM clock."""
    max_sm_mhz: float | None = None
    """Highest SM clock."""
    capped: float | None = None
    """Share of the samples, 0 to 1, in which the power cap reduced the clock."""


@dataclass(frozen=True)
class Profile(Record):
    """All measurements of one candidate."""

    target: Target
    time_ms: float
    """Median time of an untraced call: by CUDA events on a GPU, by the process's clock on a CPU."""
    floor_ms: float
    """Shortest time that the task allows on this device."""
    work: Work
    """The least work of a call."""
    ceilings: Ceilings
    """Measured peak rates of the device."""
    device: DeviceProperties
    precision: str
    """Precision that kernels may use: fp32, tf32 or native."""
    unit: str = ""
    """The key of `ceilings.rates` for the fastest unit that the task's matrix products may use; empty:
    unknown."""
    language: str = ""
    """Language of the candidate."""
    source: str = ""
    """Source of the candidate."""
    kernels: tuple[Kernel, ...] = ()
    """GPU kernels of a call, by share, largest first."""
    timeline: Timeline | None = None
    """None on a CPU, or without a tracer."""
    compiler: CompilerReport = field(default_factory=CompilerReport)
    power: PowerReadings | None = None
    """None on a CPU, or without NVML."""
    cpu: CpuProfile | None = None
    """None on a GPU."""
    references: dict[str, Profile] = field(default_factory=dict)
    """Profiles of baselines, by name."""
    skipped: tuple[Skipped, ...] = ()
    """What was not measured, and why."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each step of the profiling."""

    @property
    def matrix_unit(self) -> str:
        """The unit for matrix products; if unknown, one that fits the precision."""
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
    """What was measured, in words."""
    value: float
    """The measured value."""
    threshold: float | None = None
    """The limit of `value` that triggers the diagnostic; None if there is none."""
    unit: str = ""
    """Unit of `value` and `threshold`."""


@dataclass(frozen=True)
class Gain(Record):
    """The expected gain of a remedy, for a whole call."""

    factor: float
    """Speed-up; for an energy finding, the energy before divided by the energy after."""
    basis: str
    """How the factor was estimated."""


@dataclass(frozen=True)
class Finding(Record):
    """The conclusion of one diagnostic."""

    diagnostic: str
    """Name of the diagnostic."""
    level: Level
    """What the diagnostic examines: a kernel, its instructions, or the whole system."""
    severity: Severity
    """Derived from the expected gain."""
    evidence: tuple[Evidence, ...]
    """The numbers that support the finding."""
    cause: str
    """What costs time or energy, in words."""
    advice: tuple[str, ...]
    """What to change, best first."""
    gain: Gain
    """Expected gain of following the advice."""
    kernel: str = ""
    """The GPU kernel; empty if the finding is about the whole call, and on the CPU."""
    where: str = ""
    """The source line, if known."""
    explained_by: str = ""
    """The diagnostic whose finding is the root cause of this one; empty if this is a root cause."""
    objective: FindingObjective = "speed"
    """What the gain is measured in: speed, or energy at the same speed."""
    claims: tuple[PartKind, ...] = ()
    """Parts of the time account that the remedy reduces."""
    claims_of: tuple[str, ...] = ()
    """The kernels whose parts are claimed, in addition to parts of no kernel. Empty: the parts of `kernel`;
    of all kernels if that is empty too."""
    saves_ms: float = 0.0
    """Milliseconds per call that the remedy saves after all findings before this one are fixed, so that these
    times add up."""


@dataclass(frozen=True)
class LeastTimes(Record):
    """Lower bounds of a call's time in ms, from the task's work and the measured ceilings."""

    memory: float
    """All bytes at the measured bandwidth."""
    matrix: float
    """Operations of matrix products at the unit's measured rate."""
    vector: float
    """All other operations at the FP32 rate."""

    @property
    def arithmetic(self) -> float:
        """The longer of `matrix` and `vector`."""
        return max(self.matrix, self.vector)


@dataclass(frozen=True)
class RooflinePosition(Record):
    """Position of a candidate under the roofline. Operations and bytes are the task's least work."""

    intensity: float
    """Operations per byte."""
    ridge: float
    """The intensity at which both roofs meet."""
    flops_per_second: float
    """Operations over the candidate's time."""
    bytes_per_second: float
    """Bytes over the candidate's time."""
    roof_flops: float
    """Measured peak of operations per second."""
    roof_bandwidth: float
    """Measured peak of bytes per second."""
    time_ms: float
    """Time of a call."""
    floor_ms: float
    """Shortest time that the task allows on this device."""
    of_floor: float
    """Floor over time: 1 is the floor."""
    least_ms: LeastTimes
    """Lower bounds of the time by resource."""


@dataclass(frozen=True)
class Diagnosis(Record):
    """The result of `kernelpro profile`."""

    bound: Bound
    """What limits a call."""
    confidence: Literal["high", "medium", "low"]
    """Confidence in `bound`."""
    why: str
    """The reason for `bound`, in words."""
    roofline: RooflinePosition
    """Measured rates beside the peak rates of the device."""
    findings: tuple[Finding, ...] = ()
    """By expected gain; symptoms after their root causes, energy after speed."""
    skipped: tuple[Skipped, ...] = ()
    """What was not examined, and why."""
    energy: bool = False
    """Whether the energy diagnostics ran."""
    account: tuple[AccountPart, ...] = ()
    """The parts of a call's time, which add up to the measured time. The floor comes first, then by size."""
