"""What a run measures of its task before the first candidate: work, hardware, operator graph, seeds."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelpro.records.base import Record
from kernelpro.records.graph import Graph
from kernelpro.records.judging import Status
from kernelpro.records.shapes import ShapeTimes


@dataclass(frozen=True)
class Work(Record):
    """The least work that one call of a task needs."""

    read_bytes: int
    """Bytes of inputs and parameters that the reference reads, each counted once. Zeros in an input do not
    count."""
    written_bytes: int
    """Bytes of all outputs. Of an output that aliases an input or parameter, only the bytes that the call
    writes count."""
    matrix_flops: float
    """Operations of matrix products: two for each multiply-add on non-zero operands."""
    vector_flops: float = 0.0
    """Operations of all other operators: one for each output element."""

    @property
    def total_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class Hardware(Record):
    """The device, for authors: measured peak rates and properties."""

    name: str = ""
    """Name of the GPU or CPU."""
    bandwidth: float = 0.0
    """Bytes per second, read plus written, of a copy far larger than any cache; 0: unknown."""
    cached_bandwidth: float = 0.0
    """Bytes per second, read plus written, of a copy that fits into the last-level cache."""
    rates: dict[str, float] = field(default_factory=dict)
    """Operations per second of large matrix products, by unit: fp32, tf32, bf16, ..."""
    facts: dict[str, str] = field(default_factory=dict)
    """Properties of the device and versions of its software, by name, as text."""

    @property
    def capability(self) -> str:
        """The CUDA compute capability, such as `9.0`; empty if unknown."""
        return self.facts.get("capability", "")


@dataclass(frozen=True)
class BaselineSeed(Record):
    """A baseline as a candidate: torch.compile's generated code, or the reference unchanged."""

    baseline: str
    """Name of the baseline: `compile`, `max_autotune`, `eager_fp32`, ..."""
    name: str
    """Author of the code, for display: torch.compile, PyTorch, ..."""
    source: str
    """The candidate's source."""


@dataclass(frozen=True)
class RacedDesign(Record):
    """The result of one design in a race."""

    status: Status
    """`passed`: it ran, and one output was correct. The judge has not verified it."""
    reason: str = ""
    """Why it failed; empty if it ran."""
    ratio: float | None = None
    """Its time divided by the time of the fastest design; None if it failed."""
    seconds: float = 0.0
    """Duration of its part of the race."""


@dataclass(frozen=True)
class TaskFacts(Record):
    """Everything a run measures of its task before the first candidate: the results of a probe and of a
    study, and of a race between the first designs."""

    baselines: dict[str, float]
    """Median milliseconds per call, by baseline; for several shapes, the mean over all calls."""
    floor_ms: float
    """Shortest time in ms that the task allows on this device; for several shapes, the mean over all
    calls."""
    precision: str
    """Precision that kernels may use: fp32, tf32 or native."""
    unit: str = ""
    """The arithmetic unit that bounds the task: a key of `Hardware.rates`."""
    tolerance: dict[str, float] = field(default_factory=dict)
    """Largest allowed error ||output - oracle|| / ||oracle||, by input distribution."""
    hardware: Hardware = field(default_factory=Hardware)
    work: Work | None = None
    """The least work of a call; None if unknown."""
    graph: Graph | None = None
    """The operator graph for the task's first shape."""
    graph_error: str = ""
    """Why there is no operator graph."""
    seeds: tuple[BaselineSeed, ...] = ()
    """The baselines that become the first steps of the run."""
    seed_errors: str = ""
    """Which baselines could not be made candidates, and why."""
    shapes: tuple[ShapeTimes, ...] = ()
    """Times of the baselines and the floor for each shape of the task."""
    other_graphs: tuple[Graph, ...] = ()
    """See `StudyData.other_graphs`."""
    race: dict[str, RacedDesign] = field(default_factory=dict)
    """Results of the race, by the hash of the design's code (`StepDetails.fingerprint`) and in the order of
    the steps; empty without a race."""

    @property
    def baseline_ms(self) -> float:
        """The time of the fastest baseline in ms."""
        return min(self.baselines.values())
