"""What goes to a worker and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kernelpro.records.base import BadInput, InternalError, Record
from kernelpro.records.graph import Graph
from kernelpro.records.interval import Interval
from kernelpro.records.judging import Candidate, Effort, Environment, Options, Status, Target, Task, Verdict
from kernelpro.records.profiling import Profile, ProfileRequest
from kernelpro.records.shapes import ShapeTimes
from kernelpro.records.study import BaselineSeed, Hardware, RacedDesign, Work

JobKind = Literal["judge", "build", "probe", "study", "race", "profile", "environment", "energy", "compile"]


@dataclass(frozen=True)
class Job(Record):
    """One line of a worker's input."""

    id: str
    kind: JobKind
    """`probe`: can the task be scored, and how fast are its baselines? `study`: its operator graph and its
    baselines as candidates. `race`: which of several designs is the fastest? `energy`: calibrate the
    machine's energy counter. `compile`: compile the reference, or candidates, ahead, while other jobs run; a
    reference that could be traced has its study, without seeds, as the result."""
    task: Task | None = None
    candidate: Candidate | None = None
    target: Target | None = None
    options: Options = field(default_factory=Options)
    profile_request: ProfileRequest = field(default_factory=ProfileRequest)
    """What a profile job collects."""
    judged_code: tuple[str, ...] = ()
    """Hashes of machine code that was judged before. If the candidate of a judge job compiles to one of them,
    the worker returns `JudgeData.same_as` and no verdict."""
    seed_baselines: tuple[str, ...] = ()
    """Baselines that a study job returns as candidates."""
    tune_points: int = 0
    """How many points of its tunables a judge job may try once the candidate has passed."""
    tune_above_speedup: float = 0.0
    """Candidates with a smaller speed-up over the fastest baseline are not tuned; 0: all are."""
    sanitize: bool = False
    """Whether a judge job runs a candidate with an illegal memory access again under compute-sanitizer, if
    that is installed, to report the line."""
    candidates: tuple[Candidate, ...] = ()
    """The designs of a race, or those to compile ahead."""


@dataclass(frozen=True)
class Progress(Record):
    """What a job is doing now."""

    job: str
    stage: str


@dataclass(frozen=True)
class TuningPoint(Record):
    """One judged point of a candidate's tunables."""

    point: dict[str, int | float | str | bool]
    status: Status
    ms: float | None
    effort: Effort


@dataclass(frozen=True)
class Tuning(Record):
    """The search over a candidate's tunables: the chosen point, why, and all points in the order of
    judging."""

    point: dict[str, int | float | str | bool]
    reason: str
    points: tuple[TuningPoint, ...]


@dataclass(frozen=True)
class JudgeData(Record):
    """What a judge job reports beside the verdict."""

    same_as: str = ""
    """The entry of `Job.judged_code` that the candidate compiles to; then there is no verdict."""
    tuning: Tuning | None = None
    tuned_source: str = ""
    """The candidate at its best point, if that is not the default."""
    tuning_error: str = ""
    """Why the declared tunables were not searched."""
    kind: Literal["judge"] = "judge"


@dataclass(frozen=True)
class BuildData(Record):
    """The result of a build job."""

    failure: Status | None = None
    """None: the candidate was built."""
    reason: str = ""
    artifact_bytes: int = 0
    kind: Literal["build"] = "build"


@dataclass(frozen=True)
class ProbeData(Record):
    """The result of a probe job."""

    scorable: bool
    reason: str
    """Why the task cannot be scored; empty if it can."""
    precision: str
    unit: str
    """See `TaskFacts.unit`."""
    hardware: Hardware
    work: Work
    tolerance: dict[str, float]
    """Largest allowed relative error (norm), by input distribution."""
    dropped: dict[str, str]
    """Input distributions on which the reference gives no usable output, and why."""
    baselines: dict[str, Interval]
    """Milliseconds per call. Empty if the task cannot be scored or the job asked for no baselines."""
    floor_ms: float | None
    stage_seconds: dict[str, float]
    """How long each stage of the preparation took."""
    shapes: tuple[ShapeTimes, ...] = ()
    """Baselines and floor of each shape of the task."""
    kind: Literal["probe"] = "probe"


@dataclass(frozen=True)
class StudyData(Record):
    """The result of a study job."""

    graph: Graph | None = None
    """For the task's first shape."""
    graph_error: str = ""
    """Why there is no operator graph."""
    seeds: tuple[BaselineSeed, ...] = ()
    seed_errors: str = ""
    """Why some baselines gave no seed."""
    other_graphs: tuple[Graph, ...] = ()
    """The graph for each further shape of the task; of a task with one shape, for another batch size."""
    precision: str = ""
    """See `TaskFacts.precision`."""
    kind: Literal["study"] = "study"


@dataclass(frozen=True)
class RaceData(Record):
    """The result of a race job."""

    designs: tuple[RacedDesign, ...]
    """In the order of `Job.candidates`."""
    kind: Literal["race"] = "race"


@dataclass(frozen=True)
class EnvironmentData(Record):
    """The result of an environment job."""

    environment: Environment
    sandbox: str = ""
    """The sandbox level that this machine supports."""
    energy_counter: str = ""
    energy_error: str = ""
    """Why energy cannot be measured here."""
    kind: Literal["environment"] = "environment"


@dataclass(frozen=True)
class CounterStatistics(Record):
    """An energy counter watched for some seconds, idle or under load."""

    watts: float
    period_s: float
    """Seconds between two updates of the counter, median."""
    jitter_s: float
    joules_per_update: float
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True)
class EnergyData(Record):
    """The result of an energy job: what the machine's energy counter can resolve."""

    target: Target
    error: str = ""
    """Why energy cannot be measured; then the other fields are empty."""
    counter: str = ""
    read_us: float = 0.0
    """Microseconds that one reading takes."""
    idle: CounterStatistics | None = None
    load: CounterStatistics | None = None
    latency_s: float | None = None
    """Seconds from the start of a load until the counter shows it; None: not seen."""
    window_s: float = 0.0
    quantization: float = 0.0
    """Largest relative error of a window that the counter's steps cause."""
    joules_per_product: float = 0.0
    spread: float = 0.0
    """Standard deviation over windows of the same load, relative to their median."""
    range: float = 0.0
    """Largest minus smallest window, relative to their median."""
    control: Interval | None = None
    """Ratio of one half of the windows to the other (A/A control): it should contain 1."""
    windows: int = 0
    kind: Literal["energy"] = "energy"


JobData = JudgeData | BuildData | ProbeData | StudyData | RaceData | EnvironmentData | EnergyData


@dataclass(frozen=True)
class Result(Record):
    """One line of a worker's output: verdict, profile, data or error.

    If tunables were searched, the verdict is that of the best point, and the data describes the search.
    """

    job: str
    verdict: Verdict | None = None
    profile: Profile | None = None
    data: JobData | None = None
    error: str | None = None
    lost: str = ""
    """Why no worker finished the job: it was killed, its device failed, or KernelPro has a bug. The verdict
    then says `crashed` or `internal_error`, and the job can be submitted again."""
    internal_error: bool = False
    """Whether a bug of KernelPro prevented the job; the error or the verdict describes it."""
    device_seconds: float = 0.0
    """Seconds for which the job held the device, including the preparation of its task."""

    def exception(self, missing: str) -> BadInput:
        """The error of a result that lacks what it should carry: InternalError if KernelPro is at fault."""
        kind = InternalError if self.internal_error else BadInput
        return kind(self.error or f"the worker returned no {missing}")
