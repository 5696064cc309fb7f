"""Tasks, candidates and verdicts."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from kernelpro.records.base import BadInput, Record, digest
from kernelpro.records.energy import Energy
from kernelpro.records.interval import Interval
from kernelpro.records.shapes import Shape, ShapeTimes, UnseenShape, shapes_in_source

Precision = Literal["fp32", "tf32", "native"]
Target = Literal["cuda", "cpu"]
Mode = Literal["train", "eval"]


@dataclass(frozen=True)
class Task(Record):
    """What a kernel must compute: a reference, its inputs and the allowed precision."""

    source: str
    """Python source that defines the entry point."""
    name: str = "task"
    form: Literal["kernelbench", "module", "function"] = "kernelbench"
    entry: str = "Model"
    """Class (kernelbench, module) or function name in `source`."""
    payload: str = ""
    """Base64 of the pickled module and example inputs of each shape (forms module and function)."""
    mode: Mode = "train"
    """KernelBench never calls `.eval()`, so train is the default."""
    precision: Precision | None = None
    """None: tf32 for float32 tasks on CUDA, fp32 on the CPU (which has no TF32), native otherwise."""
    outputs: str = ""
    """For a live object: a few elements of its outputs for the first example inputs, as base64. Not part of
    the identity."""
    files: dict[str, str] = field(default_factory=dict)
    """Modules of the user's project that `source` imports: text by path, such as `package/layers.py`."""
    shapes: tuple[Shape, ...] = (Shape(),)
    """The sets of inputs that a kernel must be right for; most tasks have one."""

    @property
    def id(self) -> str:
        """Content hash: equal tasks have equal ids."""
        files = [part for name in sorted(self.files) for part in (name, self.files[name])]
        shapes = [shape.nondefault_json() for shape in self.shapes] if self.shapes != (Shape(),) else []
        return digest(
            "task",
            self.source,
            self.form,
            self.entry,
            self.payload,
            self.mode,
            self.precision or "auto",
            *files,
            *shapes,
        )

    def at(self, number: int) -> Self:
        """The task with one of its shapes alone."""
        return replace(self, shapes=(replace(self.shapes[number], weight=1.0),))

    @classmethod
    def from_file(cls, path: str | Path, mode: Mode = "train", precision: Precision | None = None) -> Self:
        """Read a KernelBench file. The task is named after the file, or after its folder if it is called
        task.py."""
        text = read_source(path, "task")
        stem = Path(path).stem
        name = Path(path).resolve().parent.name if stem == "task" else stem
        return cls(text, name, mode=mode, precision=precision, shapes=shapes_in_source(text, name))

    def for_target(self, target: Target) -> Self:
        """The task at its size for a target.

        A file with sizes for both targets has a line `TARGET = "cuda"` and chooses its constants by it."""
        if self.form != "kernelbench":
            return self
        return replace(self, source=_TARGET.sub(f'TARGET = "{target}"', self.source, count=1))


_TARGET = re.compile(r'^TARGET = "(cuda|cpu)"$', re.MULTILINE)


@dataclass(frozen=True)
class Candidate(Record):
    """One Python file with `class ModelNew`."""

    source: str
    name: str = "candidate"

    @property
    def id(self) -> str:
        """Content hash of the source."""
        return digest("candidate", self.source)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a candidate; it is named after the file."""
        return cls(source=read_source(path, "candidate"), name=Path(path).name)


def read_source(path: str | Path, what: str) -> str:
    """The text of a file. Raises BadInput if it cannot be read; `what` names its role in the message."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(f"{what} file not found: {path}") from None
    except IsADirectoryError:
        raise BadInput(f"{what} is a directory, not a Python file: {path}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{what} file is not UTF-8 text: {path}") from None
    except OSError as error:
        raise BadInput(f"{what} file cannot be read: {path} ({error.strerror})") from None


class Status(enum.StrEnum):
    """The result of a judgement."""

    PASSED = "passed"
    WRONG = "wrong"
    CHEATING = "cheating"
    BUILD_FAILED = "build_failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    NOT_SCORABLE = "not_scorable"
    REFUSED = "refused"
    INTERNAL_ERROR = "internal_error"
    """A bug of KernelPro prevented the judgement; it says nothing about the candidate."""


Effort = Literal["quick", "normal", "full"]
PER_CANDIDATE = {"per": "candidate"}
"""Marks options that may differ between candidates of a prepared task."""


@dataclass(frozen=True)
class Options(Record):
    """How a judgement is made: how long it takes, and what it allows.

    A worker prepares a task again if options change that concern its preparation: mark a new option
    `PER_CANDIDATE` unless it does."""

    effort: Effort = field(default="normal", metadata=PER_CANDIDATE)
    baselines: tuple[str, ...] = ("eager_fp32", "eager_tf32", "compile")
    """Names from BASELINES. Those that the target does not have are left out."""
    disabled_tripwires: tuple[str, ...] = field(default=(), metadata=PER_CANDIDATE)
    """Names of tripwires to disable; `all` disables every one."""
    min_own_share: float = field(default=0.0, metadata=PER_CANDIDATE)
    """Smallest share of device time that the candidate's own kernels must take."""
    sandbox: Literal["auto", "namespaces", "landlock", "process"] = "auto"
    build_timeout: float = 300.0
    """Seconds that compilers may run: in the build, and just in time while the candidate is loaded and first
    called."""
    call_timeout: float = 60.0
    """Seconds that a call, importing the candidate or constructing it may take, without compilers."""
    memory_gib: float = 0.0
    """Host memory that a candidate may use; 0: three quarters of the machine's."""
    give_up_ratio: float = field(default=0.0, metadata=PER_CANDIDATE)
    """Stop timing a candidate that after a few rounds takes this many times as long as the fastest baseline;
    0: never."""
    guards: bool = field(default=True, metadata=PER_CANDIDATE)
    """Whether to look for writes out of bounds of a candidate that passes."""
    energy: bool = field(default=False, metadata=PER_CANDIDATE)
    """Whether to measure the energy of a candidate that passes, which takes half a minute."""
    energy_baseline: str = field(default="", metadata=PER_CANDIDATE)
    """The baseline to measure in alternation with it; empty: the fastest. Only ratios to the same baseline
    can be compared."""

    def __post_init__(self) -> None:
        for name in self.disabled_tripwires:
            if name != "all" and name not in TRIPWIRES:
                raise BadInput(f"unknown tripwire {name!r}: choose from all, {', '.join(TRIPWIRES)}")
        for name, option in (
            ("call_timeout", "--timeout"),
            ("build_timeout", "--build-timeout"),
            ("memory_gib", "--memory"),
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(f"{name} ({option}) {getattr(self, name)}: give a finite number")

    def for_preparation(self) -> Self:
        """These options, with those that are marked `PER_CANDIDATE` at their defaults."""
        defaults: dict[str, Any] = {f.name: f.default for f in fields(self) if f.metadata == PER_CANDIDATE}
        return replace(self, **defaults)


TRIPWIRES = (
    "gc",
    "frames",
    "modules",
    "exec",
    "processes",
    "exit",
    "network",
    "harness",
    "descriptors",
    "memory",
    "proc",
    "python",
    "libraries",
    "install",
    "patching",
)
"""Names of the checks in lab/judge/tripwires.py."""
BASELINES = ("eager_fp32", "eager_tf32", "compile", "max_autotune")


@dataclass(frozen=True)
class Environment(Record):
    """The hardware and software that a verdict was made with."""

    kernelpro: str = ""
    python: str = ""
    torch: str = ""
    system: str = ""
    cpu: str = ""
    threads: int = 0
    gpu: str | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    driver: str | None = None
    cuda: str | None = None
    nvcc: str | None = None
    triton: str | None = None
    precision: str = ""
    mode: str = ""

    @property
    def device(self) -> str:
        """The name of the GPU, else of the CPU."""
        return self.gpu or self.cpu

    def known(self) -> dict[str, str | int]:
        """The values that are known, by name."""
        return {name: value for name, value in self.to_json().items() if value}


@dataclass(frozen=True)
class Measurement(Record):
    """How a verdict was measured. All times but those in seconds are milliseconds."""

    rounds: int = 0
    discarded_rounds: int = 0
    against: str = ""
    """The baseline that decides `faster`."""
    own_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    """Median of each side's own clock, by kind of call."""
    input_write_ms: dict[str, float] = field(default_factory=dict)
    hidden_ms: Interval | None = None
    """Time between the candidate's clock and the judge's."""
    hidden_sealed_ms: Interval | None = None
    """The same in sealed calls."""
    hidden_burst_ms: Interval | None = None
    """The same in a call of a burst."""
    burst_ms: Interval | None = None
    """Time of a call in bursts, by the judge's clock."""
    wall_ms: Interval | None = None
    a_a: Interval | None = None
    """A/A control: the same code timed against itself."""
    verified_calls: int = 0
    distributions: tuple[str, ...] = ()
    sensors: dict[str, int | None] = field(default_factory=dict)
    """Clocks, temperature, power and throttle reasons of the GPU."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each stage."""
    preparation_seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each stage of the task's preparation."""
    machine_code: str = ""
    """Fingerprint of the candidate's machine code."""


@dataclass(frozen=True)
class Verdict(Record):
    """The judge's decision on one candidate for one task. It cannot contradict itself: times, speed-ups and
    energy exist only if the candidate passed."""

    candidate: str
    """The candidate's name, usually its file name."""
    status: Status
    reason: str
    """Why, in one line."""
    error: float | None = None
    """Largest ||output - oracle|| / ||oracle|| over all calls."""
    error_of_limit: float | None = None
    """Largest error relative to its limit: 1 is at the limit."""
    tolerance: float | None = None
    """Limit of `error` on inputs as given."""
    times: dict[str, Interval] = field(default_factory=dict)
    """Milliseconds per call, of `candidate` and each baseline; the mean over all calls of a task with several
    shapes."""
    speedup: dict[str, Interval] = field(default_factory=dict)
    """Over each baseline."""
    shapes: tuple[ShapeTimes, ...] = ()
    """The same for each shape of the task."""
    unseen_shape: UnseenShape | None = None
    """Whether it is right for another batch size too; None: not tried, or the reference accepts no other."""
    faster: Literal["yes", "no", "unclear"] | None = None
    """Whether it is faster than the fastest baseline."""
    floor_ms: float | None = None
    """The shortest time that the task allows on this device."""
    energy: Energy | None = None
    """None: not requested."""
    own_share: float | None = None
    """Share of device time in the candidate's own kernels, 0 to 1."""
    peak_bytes: int | None = None
    """Memory that the candidate added: device memory on a GPU, resident memory on a CPU."""
    parameters: Literal["by name", "by seed", "none"] | None = None
    """How the candidate's parameters got the reference's values."""
    sandbox: str = ""
    """namespaces, landlock or process."""
    language: str = ""
    notes: tuple[str, ...] = ()
    """What a reader should know about this verdict."""
    measurement: Measurement = field(default_factory=Measurement)
    environment: Environment = field(default_factory=Environment)
    task: str = ""
    """The name of the task."""
    candidate_id: str = ""
    """Content hash of the candidate's source."""

    @property
    def of_floor(self) -> float | None:
        """The share of the floor's speed that the candidate reaches; None without times or a floor."""
        if not (self.times and self.floor_ms):
            return None
        return self.floor_ms / self.times["candidate"].value

    def __post_init__(self) -> None:
        measured = bool(self.times or self.speedup or self.faster or self.energy or self.shapes)
        if measured and self.status is not Status.PASSED:
            raise ValueError(f"a verdict with status {self.status} cannot carry times or energy")
        if self.status is Status.PASSED and not (self.times and self.speedup and self.faster):
            raise ValueError("a passed verdict must carry times, speed-ups and a decision")
        if not self.reason:
            raise ValueError("a verdict must state its reason")
