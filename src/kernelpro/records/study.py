"""What is measured of a task before anyone optimizes it: its work, the hardware, the operator graph, the
seeds."""

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
    """Bytes of inputs and parameters that the reference reads, each byte once. Zeros in an input do not
    count."""
    written_bytes: int
    """Bytes of all outputs; of an output that aliases an input or parameter, the bytes that the call
    writes."""
    matrix_flops: float
    """Multiply-adds on non-zero operands of matrix products, times two."""
    vector_flops: float = 0.0
    """One operation for each output element of every other operator."""

    @property
    def total_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class Hardware(Record):
    """The device, as measured: what an author should know of it."""

    name: str = ""
    bandwidth: float = 0.0
    """Bytes per second (read plus written) of a copy far larger than any cache; 0: unknown."""
    cached_bandwidth: float = 0.0
    """The same for a copy that fits into the last-level cache."""
    rates: dict[str, float] = field(default_factory=dict)
    """Operations per second of large matrix products, by unit: fp32, tf32, bf16, ..."""
    facts: dict[str, str] = field(default_factory=dict)
    """Properties of the device and versions of its software, in words."""

    @property
    def capability(self) -> str:
        """The CUDA compute capability, such as `9.0`; empty if unknown."""
        return self.facts.get("capability", "")


@dataclass(frozen=True)
class BaselineSeed(Record):
    """A baseline as a candidate: torch.compile's own generated code, or the reference as it is."""

    baseline: str
    """The name of the baseline: `compile`, `max_autotune`, `eager_fp32`, ..."""
    name: str
    """Who wrote the code: torch.compile, PyTorch, ..."""
    source: str


@dataclass(frozen=True)
class RacedDesign(Record):
    """How a design did in a race."""

    status: Status
    """PASSED: it ran, and one output was right. The judge has not seen it."""
    reason: str = ""
    """Why it left the race."""
    ratio: float | None = None
    """Its time over that of the fastest design; None if it failed."""
    seconds: float = 0.0
    """Device time."""


@dataclass(frozen=True)
class TaskFacts(Record):
    """Everything a run measures of its task before the first candidate: the results of a probe and a
    study, and of a race between the first designs."""

    baselines: dict[str, float]
    """Median milliseconds per call, by baseline."""
    floor_ms: float
    precision: str
    """fp32, tf32 or native."""
    unit: str = ""
    """The arithmetic unit that bounds the task: a key of `Hardware.rates`."""
    tolerance: dict[str, float] = field(default_factory=dict)
    """Largest allowed relative error (norm), by input distribution."""
    hardware: Hardware = field(default_factory=Hardware)
    work: Work | None = None
    graph: Graph | None = None
    graph_error: str = ""
    """Why there is no operator graph."""
    seeds: tuple[BaselineSeed, ...] = ()
    seed_errors: str = ""
    """Why some baselines gave no seed."""
    shapes: tuple[ShapeTimes, ...] = ()
    """Baselines and floor of each shape of the task; `baselines` and `floor_ms` are means over all calls."""
    other_graphs: tuple[Graph, ...] = ()
    """See `StudyData.other_graphs`."""
    race: dict[str, RacedDesign] = field(default_factory=dict)
    """The first designs by the hash of their code (`StepDetails.fingerprint`), in the order of their steps;
    empty without a race."""

    @property
    def baseline_ms(self) -> float:
        """The time of the fastest baseline."""
        return min(self.baselines.values())
