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
    """Where the task comes from: a KernelBench file, a live nn.Module, or a live function."""
    entry: str = "Model"
    """Name of the class (forms kernelbench and module) or function in `source`."""
    payload: str = ""
    """Forms module and function: the pickled module and the example inputs of each shape, as base64."""
    mode: Mode = "train"
    """Mode of the module. KernelBench never calls `.eval()`, so train is the default."""
    precision: Precision | None = None
    """Precision that a kernel may use. None: tf32 for float32 tasks on CUDA, fp32 for float32 tasks on the
    CPU (which has no TF32), native for all other tasks."""
    outputs: str = ""
    """Forms module and function: a few elements of the outputs for the first example inputs, as base64. Not
    part of the id."""
    files: dict[str, str] = field(default_factory=dict)
    """Modules of the user's project that `source` imports: text by path, such as `package/layers.py`."""
    shapes: tuple[Shape, ...] = (Shape(),)
    """The sets of inputs for which a kernel must be correct. Most tasks have one."""

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
        """The task with only the shape of this number."""
        return replace(self, shapes=(replace(self.shapes[number], weight=1.0),))

    @classmethod
    def from_file(cls, path: str | Path, mode: Mode = "train", precision: Precision | None = None) -> Self:
        """Read a KernelBench file. The task gets the name of the file, or of its folder if the file is called
        task.py."""
        text = read_source(path, "task")
        stem = Path(path).stem
        name = Path(path).resolve().parent.name if stem == "task" else stem
        return cls(text, name, mode=mode, precision=precision, shapes=shapes_in_source(text, name))

    def for_target(self, target: Target) -> Self:
        """The task with its sizes for a target.

        A file with different sizes for the two targets contains the line `TARGET = "cuda"` and chooses its
        constants by it. This method sets the target in that line."""
        if self.form != "kernelbench":
            return self
        return replace(self, source=_TARGET.sub(f'TARGET = "{target}"', self.source, count=1))


_TARGET = re.compile(r'^TARGET = "(cuda|cpu)"$', re.MULTILINE)


@dataclass(frozen=True)
class Candidate(Record):
    """A kernel to judge: one Python file with `class ModelNew`."""

    source: str
    """The text of the file."""
    name: str = "candidate"

    @property
    def id(self) -> str:
        """Content hash of the source."""
        return digest("candidate", self.source)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a candidate. It gets the name of the file. Of an exported file, read the kernel in it."""
        text = read_source(path, "candidate")
        return cls(source=_kernel_in_export(text, path) or text, name=Path(path).name)


_EXPORT = re.compile(
    r'\A"""[^\n]*, judged by KernelPro, as a drop-in module\.\n.*?'
    r"(?P<future>(?:^from __future__ [^\n]*\n)*)\s*(?:^# --- modules .*?)?"
    r"^# --- the winner: [^\n]*\n(?P<kernel>.*?)^# --- the reference -[^\n]*\n(?P<rest>.*)",
    re.DOTALL | re.MULTILINE,
)
"""A file that `kernelpro export` has written (`engine/export.py`)."""


def _kernel_in_export(text: str, path: str | Path) -> str:
    """The source of the kernel in an exported file, on the same lines; empty for other files."""
    match = _EXPORT.match(text)
    if match is None:
        return ""
    if "\n_EXPORT_OTHER_KERNELS = {}\n" not in match["rest"]:
        raise BadInput(
            f"candidate {path}: an export with one kernel for each shape; copy the one to judge to a file"
        )
    future = "; ".join(match["future"].splitlines())
    return future + "\n" * text.count("\n", 0, match.start("kernel")) + match["kernel"]


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
    """All outputs are correct, and the candidate was timed."""
    WRONG = "wrong"
    """An output is wrong, an input was modified, or memory was accessed out of bounds."""
    CHEATING = "cheating"
    """Time was hidden from the clock, a reply was forged, or its own kernels are a decoy."""
    BUILD_FAILED = "build_failed"
    """The source does not parse or compile, or defines no `ModelNew`."""
    CRASHED = "crashed"
    """It raised an exception, died, or ran out of memory."""
    TIMED_OUT = "timed_out"
    """It exceeded a time limit."""
    NOT_SCORABLE = "not_scorable"
    """The task cannot expose a wrong kernel, so candidates are not judged."""
    REFUSED = "refused"
    """A tripwire matched, its own kernels do too little of the work, or it is faster than the hardware
    allows."""
    INTERNAL_ERROR = "internal_error"
    """A bug of KernelPro prevented the judgement. It says nothing about the candidate."""


Effort = Literal["quick", "normal", "full"]
"""How long a candidate is measured."""
PER_CANDIDATE = {"per": "candidate"}
"""Marks options that may differ between candidates of a prepared task. If another option differs, a worker
prepares the task again."""


@dataclass(frozen=True)
class Options(Record):
    """How a candidate is judged: how long it takes, and what is allowed."""

    effort: Effort = field(default="normal", metadata=PER_CANDIDATE)
    """How long a candidate is measured. `quick`: seconds. `full`: more rounds, all baselines in each, and
    compute-sanitizer."""
    baselines: tuple[str, ...] = ("eager_fp32", "eager_tf32", "compile")
    """What candidates are compared with: `eager_fp32`, `eager_tf32`, `compile` and `max_autotune`. Baselines
    that the target does not have are left out."""
    disabled_tripwires: tuple[str, ...] = field(default=(), metadata=PER_CANDIDATE)
    """Names of tripwires to disable; `all` disables all of them."""
    min_own_share: float = field(default=0.0, metadata=PER_CANDIDATE)
    """Smallest share of device time, 0 to 1, that the candidate's own kernels must take."""
    sandbox: Literal["auto", "namespaces", "landlock", "process"] = "auto"
    """How candidates are isolated; `auto` selects the strongest level that works."""
    build_timeout: float = 300.0
    """Seconds that compilers may run, both in the build and just in time while the candidate is loaded and
    first called."""
    call_timeout: float = 60.0
    """Seconds that a call, the import or the constructor of the candidate may take, compilers excluded."""
    memory_gib: float = 0.0
    """Host memory in GiB that a candidate may use; 0: three quarters of the machine's."""
    give_up_ratio: float = field(default=0.0, metadata=PER_CANDIDATE)
    """Stop timing a candidate after a few rounds if it takes this many times as long as the fastest baseline;
    0: never."""
    guards: bool = field(default=True, metadata=PER_CANDIDATE)
    """Whether to check a candidate that passes for writes out of bounds."""
    energy: bool = field(default=False, metadata=PER_CANDIDATE)
    """Whether to measure the energy of a candidate that passes. It takes half a minute."""
    energy_baseline: str = field(default="", metadata=PER_CANDIDATE)
    """The baseline for the energy ratio; empty: the fastest. Only ratios to the same baseline can be
    compared."""

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
        """These options with the default of each option that is marked `PER_CANDIDATE`."""
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
    """The hardware and software on which a verdict was measured. None: not installed, or no GPU target."""

    kernelpro: str = ""
    """Version of KernelPro."""
    python: str = ""
    """Version of Python."""
    torch: str = ""
    """Version of torch."""
    system: str = ""
    """Operating system, its release, and the architecture."""
    cpu: str = ""
    """Name of the CPU."""
    threads: int = 0
    """torch's number of CPU threads."""
    gpu: str | None = None
    """Name of the GPU; None for the CPU target."""
    compute_capability: str | None = None
    """CUDA compute capability: `9.0`."""
    multiprocessors: int | None = None
    """Number of streaming multiprocessors."""
    driver: str | None = None
    """Version of the NVIDIA driver."""
    cuda: str | None = None
    """CUDA version of torch."""
    nvcc: str | None = None
    """Release of nvcc."""
    triton: str | None = None
    """Version of Triton."""
    precision: str = ""
    """Precision that kernels may use: fp32, tf32 or native."""
    mode: str = ""
    """Mode of the reference: train or eval."""

    @property
    def device(self) -> str:
        """The name of the GPU, else of the CPU."""
        return self.gpu or self.cpu

    def known(self) -> dict[str, str | int]:
        """All values that are not empty, by name."""
        return {name: value for name, value in self.to_json().items() if value}


@dataclass(frozen=True)
class Measurement(Record):
    """How a verdict was measured. Times are milliseconds unless a name says `seconds`."""

    rounds: int = 0
    """Number of timed rounds. In a round, candidate and baselines are called in turn."""
    discarded_rounds: int = 0
    """Number of rounds that were discarded because the GPU was throttled."""
    against: str = ""
    """Name of the baseline that was timed beside the candidate in every round."""
    own_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    """Median time of a call by each process's own clock. The first key is the kind of call (`single`,
    `queued` for sealed calls, `burst`), the second is `candidate` or a baseline."""
    input_write_ms: dict[str, float] = field(default_factory=dict)
    """Median time in which the judge wrote the inputs of a sealed call, for `candidate` and each baseline."""
    hidden_ms: Interval | None = None
    """Time of a single call that the candidate's own clock does not show: the difference between the judge's
    clock and the candidate's, minus the same difference for the baseline."""
    hidden_sealed_ms: Interval | None = None
    """The same for a sealed call."""
    hidden_burst_ms: Interval | None = None
    """The same for a call of a burst."""
    burst_ms: Interval | None = None
    """Time of a call in bursts by the judge's clock."""
    wall_ms: Interval | None = None
    """Time of a single call by the judge's clock, protocol included."""
    a_a: Interval | None = None
    """A/A control: ratio of a baseline's time to itself. Its distance from 1 shows the noise."""
    verified_calls: int = 0
    """Number of calls whose outputs were checked."""
    distributions: tuple[str, ...] = ()
    """Names of the input distributions that were checked."""
    sensors: dict[str, int | None] = field(default_factory=dict)
    """The GPU after the measurement: `sm_mhz`, `memory_mhz`, `temperature_c`, `power_mw` and `throttle`
    (NVML's bit mask of throttle reasons)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each stage of the judgement, and in `total`. Stages: `build`, `start`, `load`, `verify`,
    `time`, `profile`, `energy`, `guards` and `sanitizer`. `build` is only the time that the judge waited:
    builds run ahead of it."""
    preparation_seconds: dict[str, float] = field(default_factory=dict)
    """The same for the preparation of the task: `load`, `oracle`, `ceilings`, `tolerance`, `probe`, and the
    start and compilation of baselines."""
    machine_code: str = ""
    """Hash of the candidate's machine code."""


@dataclass(frozen=True)
class Verdict(Record):
    """The judge's decision on one candidate for one task. It cannot contradict itself: times, speed-ups and
    energy exist only if the candidate passed."""

    candidate: str
    """Name of the candidate, usually its file."""
    status: Status
    """The decision."""
    reason: str
    """Why the status was given, in one line."""
    error: float | None = None
    """Largest ||output - oracle|| / ||oracle|| over all checked calls."""
    error_of_limit: float | None = None
    """Largest error relative to its limit; 1 is at the limit."""
    tolerance: float | None = None
    """Limit of `error` for inputs as the task gives them."""
    times: dict[str, Interval] = field(default_factory=dict)
    """Milliseconds per call of `candidate` and of each baseline. For several shapes: the mean over all
    calls."""
    speedup: dict[str, Interval] = field(default_factory=dict)
    """Speed-up over each baseline: its time divided by the candidate's."""
    shapes: tuple[ShapeTimes, ...] = ()
    """Times and speed-ups for each shape of the task."""
    unseen_shape: UnseenShape | None = None
    """Whether the candidate is also correct for another batch size. None: not tried, or the reference accepts
    no other."""
    faster: Literal["yes", "no", "unclear"] | None = None
    """Whether it is faster than every baseline: `yes` if the 95 % intervals of all speed-ups lie above 1,
    `no` if one of them lies below 1."""
    floor_ms: float | None = None
    """Shortest time in ms that the task allows on this device."""
    energy: Energy | None = None
    """None if energy was not requested."""
    own_share: float | None = None
    """Share of device time in the candidate's own kernels, 0 to 1."""
    peak_bytes: int | None = None
    """Memory that the candidate added: device memory on a GPU, resident memory on a CPU."""
    parameters: Literal["by name", "by seed", "none"] | None = None
    """How the candidate's parameters got the reference's values: copied by name, or created from the same
    random seed."""
    sandbox: str = ""
    """Isolation of the candidate: namespaces, landlock or process."""
    language: str = ""
    """Language of the kernel: triton, cuda, cute, cpp or torch."""
    notes: tuple[str, ...] = ()
    """Remarks that a reader of this verdict should know."""
    measurement: Measurement = field(default_factory=Measurement)
    """How the candidate was measured."""
    environment: Environment = field(default_factory=Environment)
    """Where it was measured."""
    task: str = ""
    """Name of the task."""
    candidate_id: str = ""
    """Content hash of the candidate's source."""

    @property
    def of_floor(self) -> float | None:
        """Floor over the candidate's time: 1 is the floor. None without times or a floor."""
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
