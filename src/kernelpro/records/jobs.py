"""The jobs that are sent to workers, and the results that workers return."""

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
    """A job for a worker: one line of its input."""

    id: str
    """Chosen by the caller; the result carries it."""
    kind: JobKind
    """`judge`, `build` and `profile`: verify and time, compile, or profile a candidate. `probe`: find out
    whether the task can be scored, and time its baselines. `study`: return the operator graph of the task,
    and its baselines as candidates. `race`: find the fastest of several designs. `environment`: describe the
    machine. `energy`: calibrate its energy counter. `compile`: compile the reference or candidates ahead of
    time, while other jobs run; the result for a reference that could be traced is its study, without
    seeds; that for candidates says only that all builds have ended."""
    task: Task | None = None
    """None for `environment` and `energy`."""
    candidate: Candidate | None = None
    """The candidate to judge, build or profile."""
    target: Target | None = None
    """None: a GPU if the worker has one, else the CPU."""
    options: Options = field(default_factory=Options)
    profile_request: ProfileRequest = field(default_factory=ProfileRequest)
    """What a profile job collects."""
    judged_code: tuple[str, ...] = ()
    """Hashes of machine code that was judged before. If the candidate of a judge job compiles to one of them,
    the worker returns `JudgeData.same_as` instead of a verdict."""
    seed_baselines: tuple[str, ...] = ()
    """Names of the baselines that a study job returns as candidates."""
    tune_points: int = 0
    """Maximum number of points (sets of values of the tunables) that a judge job tries after the candidate
    has passed."""
    tune_above_speedup: float = 0.0
    """Tune only candidates with at least this speed-up over the fastest baseline; 0: tune all."""
    sanitize: bool = False
    """Whether a judge job runs a candidate with an illegal memory access again under compute-sanitizer (if it
    is installed), to report the source line."""
    candidates: tuple[Candidate, ...] = ()
    """The designs of a race, or the candidates to compile ahead of time."""


@dataclass(frozen=True)
class Progress(Record):
    """The current stage of a job."""

    job: str
    """The job's id."""
    stage: str
    """What the worker is doing, in words."""
    preparing: bool = False
    """The worker prepares the job's task, and no process holds the candidate yet."""


WAITING_FOR_DEVICE = "waiting: another process is timing on this device"
"""The stage of a job until another process releases the device. It is reported every few seconds."""


@dataclass(frozen=True)
class TuningPoint(Record):
    """One point that the tuner tried: a value for each tunable of a candidate."""

    point: dict[str, int | float | str | bool]
    """Value by the name of the tunable."""
    status: Status
    """`passed`, or how the point failed."""
    ms: float | None
    """Time of a call in ms; None if the point failed."""
    effort: Effort
    """`quick`: the point was timed in a race only. `normal`: the judge verified it."""


@dataclass(frozen=True)
class Tuning(Record):
    """The search over a candidate's tunables."""

    point: dict[str, int | float | str | bool]
    """The chosen value of each tunable."""
    reason: str
    """Why this point was chosen."""
    points: tuple[TuningPoint, ...]
    """All points in the order in which they were tried."""


@dataclass(frozen=True)
class JudgeData(Record):
    """What a judge job returns in addition to the verdict."""

    same_as: str = ""
    """The entry of `Job.judged_code` to which the candidate compiles. If set, there is no verdict."""
    tuning: Tuning | None = None
    """None if the candidate was not tuned."""
    tuned_source: str = ""
    """The candidate's source with its best point; empty if the default values are the best."""
    tuning_error: str = ""
    """Why the candidate's tunables were not searched; empty if they were, or if it declares none."""
    kind: Literal["judge"] = "judge"


@dataclass(frozen=True)
class BuildData(Record):
    """The result of a build job."""

    failure: Status | None = None
    """None if the candidate was built."""
    reason: str = ""
    """Why the build failed."""
    artifact_bytes: int = 0
    """Size of the build's output files, archived."""
    kind: Literal["build"] = "build"


@dataclass(frozen=True)
class ProbeData(Record):
    """The result of a probe job."""

    scorable: bool
    """Whether the judge can tell right from wrong answers to the task."""
    reason: str
    """Why the task cannot be scored; empty if it can."""
    precision: str
    """See `TaskFacts.precision`."""
    unit: str
    """See `TaskFacts.unit`."""
    hardware: Hardware
    work: Work
    tolerance: dict[str, float]
    """Largest allowed error ||output - oracle|| / ||oracle||, by input distribution."""
    dropped: dict[str, str]
    """Input distributions on which the reference gives no usable output, with the reason."""
    baselines: dict[str, Interval]
    """Milliseconds per call, by baseline. Empty if the task cannot be scored or the job asked for no
    baselines."""
    floor_ms: float | None
    """Shortest time that the task allows on this device, in ms; None if it cannot be scored."""
    stage_seconds: dict[str, float]
    """Duration of each stage of the preparation."""
    shapes: tuple[ShapeTimes, ...] = ()
    """Times of the baselines and the floor for each shape of the task."""
    kind: Literal["probe"] = "probe"


@dataclass(frozen=True)
class StudyData(Record):
    """The result of a study job."""

    graph: Graph | None = None
    """The operator graph for the task's first shape."""
    graph_error: str = ""
    """Why there is no operator graph."""
    seeds: tuple[BaselineSeed, ...] = ()
    """The baselines named in `Job.seed_baselines` as candidates."""
    seed_errors: str = ""
    """Which baselines could not be made candidates, and why."""
    other_graphs: tuple[Graph, ...] = ()
    """The graphs for the other shapes of the task; if the task has one shape, the graph for another batch
    size."""
    precision: str = ""
    """See `TaskFacts.precision`."""
    capability: str = ""
    """The GPU's CUDA compute capability, such as `9.0`, if the study was made ahead of the probe, which
    reports the hardware."""
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
    """The strongest sandbox level that this machine supports."""
    energy_counter: str = ""
    """Name of the energy counter; empty if there is none."""
    energy_error: str = ""
    """Why energy cannot be measured; empty if it can."""
    kind: Literal["environment"] = "environment"


@dataclass(frozen=True)
class CounterStatistics(Record):
    """An energy counter, polled for some seconds while the device is idle or under load."""

    watts: float
    """Mean power."""
    period_s: float
    """Median seconds between two updates of the counter."""
    jitter_s: float
    """Median absolute deviation from that period, in seconds."""
    joules_per_update: float
    """`watts` times `period_s`."""
    sm_mhz: float | None = None
    """Median SM clock."""
    memory_mhz: float | None = None
    """Median memory clock."""
    temperature_c: float | None = None
    """Median temperature in degrees Celsius."""


@dataclass(frozen=True)
class EnergyData(Record):
    """The result of an energy job: the resolution of the machine's energy counter."""

    target: Target
    error: str = ""
    """Why energy cannot be measured. If set, the fields below are empty."""
    counter: str = ""
    """Name of the energy counter."""
    read_us: float = 0.0
    """Duration of one reading in microseconds."""
    idle: CounterStatistics | None = None
    """The counter while the device is idle."""
    load: CounterStatistics | None = None
    """The counter while the device multiplies matrices."""
    latency_s: float | None = None
    """Seconds from the start of a load until the counter shows it; None if it did not."""
    window_s: float = 0.0
    """Length of a window in seconds that the counter resolves."""
    quantization: float = 0.0
    """Largest relative error of a window's energy that the counter's quantization may cause."""
    joules_per_product: float = 0.0
    """Median energy of one matrix product of the load."""
    spread: float = 0.0
    """Standard deviation over windows of the same load, relative to their median."""
    range: float = 0.0
    """Largest minus smallest window, relative to their median."""
    control: Interval | None = None
    """A/A control: ratio of one half of the windows to the other. It should contain 1."""
    windows: int = 0
    """Number of windows of the same load."""
    kind: Literal["energy"] = "energy"


JobData = JudgeData | BuildData | ProbeData | StudyData | RaceData | EnvironmentData | EnergyData


@dataclass(frozen=True)
class Result(Record):
    """The result of a job, one line of a worker's output: verdict, profile, data or error.

    If tunables were searched, the verdict is that of the best point, and the data describes the search.
    """

    job: str
    """The job's id."""
    verdict: Verdict | None = None
    """The result of a judge job."""
    profile: Profile | None = None
    """The result of a profile job."""
    data: JobData | None = None
    """The result of any other job; for a judge job, what it returns in addition to the verdict."""
    error: str | None = None
    """Why the job has no result; None if it has one."""
    lost: str = ""
    """Why no worker finished the job: the worker was killed, its device failed, or KernelPro has a bug. A
    judge job then has a verdict with status `crashed` or `internal_error`. The job can be submitted again."""
    internal_error: bool = False
    """Whether a bug of KernelPro prevented the job. `error` or the verdict describes the bug."""
    device_seconds: float = 0.0
    """Seconds for which the job held the device, including the preparation of its task."""

    def exception(self, missing: str) -> BadInput:
        """The exception for a result that lacks `missing`: InternalError if KernelPro has a bug."""
        kind = InternalError if self.internal_error else BadInput
        return kind(self.error or f"the worker returned no {missing}")
