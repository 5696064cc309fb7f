"""The nouns that cross a process or are stored: plain dataclasses, JSON both ways.

Standard library only: the lab reads and writes these on hosts where nothing but torch is installed.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

R = TypeVar("R", bound="Record")

Precision = Literal["fp32", "tf32", "native"]
Target = Literal["cuda", "cpu"]
Mode = Literal["train", "eval"]


class BadInput(Exception):
    """What a person gave us cannot be used. The message is one line: what, where, what to do."""


def digest(*parts: str | bytes) -> str:
    """Content hash of a sequence of strings; the sequence, not its concatenation, is what is hashed."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()[:24]


def _decode(kind: Any, value: Any) -> Any:
    """Build `kind` (a type annotation) from plain JSON data."""
    if value is None or kind is Any:
        return value
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [arm for arm in typing.get_args(kind) if arm is not type(None)]
        return _decode(inner[0], value) if len(inner) == 1 else value
    if origin in (list, tuple):
        return origin(_decode(typing.get_args(kind)[0], item) for item in value)
    if origin is dict:
        return {k: _decode(typing.get_args(kind)[1], v) for k, v in value.items()}
    if isinstance(kind, type) and issubclass(kind, Record):
        return kind.from_json(value)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    return value


def _encode(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {k: _encode(v) for k, v in value.items()}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None if value != value else (1e308 if value > 0 else -1e308)
    return value


class Record:
    """Base of all records: `to_json` gives plain data, `from_json` takes it back and ignores unknown keys."""

    def to_json(self) -> dict[str, Any]:
        return {f.name: _encode(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls: type[R], data: dict[str, Any]) -> R:
        hints = typing.get_type_hints(cls)
        known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return cls(**{k: _decode(hints[k], v) for k, v in data.items() if k in known})

    def dumps(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))


@dataclass(frozen=True)
class Task(Record):
    """What is to be computed: a reference, its inputs and the precision that is allowed."""

    source: str
    """Python text that defines the entry point."""
    name: str = "task"
    form: Literal["kernelbench", "module", "function"] = "kernelbench"
    entry: str = "Model"
    """Class (kernelbench, module) or function name in `source`."""
    payload: str = ""
    """Base64 of the pickled module and example inputs (forms module and function)."""
    mode: Mode = "train"
    """KernelBench never calls `.eval()`, so train is the default."""
    precision: Precision | None = None
    """None: tf32 for float32 tasks on CUDA, fp32 on the CPU (which has no TF32), native otherwise."""

    @property
    def id(self) -> str:
        return digest("task", self.source, self.form, self.entry, self.payload, self.mode, self.precision or "auto")

    @classmethod
    def from_file(cls, path: str | Path, mode: Mode = "train", precision: Precision | None = None) -> Self:
        text = read_source(path, "task")
        stem = Path(path).stem
        name = Path(path).resolve().parent.name if stem == "task" else stem
        return cls(source=text, name=name, mode=mode, precision=precision)


@dataclass(frozen=True)
class Candidate(Record):
    """One Python file with `class ModelNew`."""

    source: str
    name: str = "candidate"

    @property
    def id(self) -> str:
        return digest("candidate", self.source)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        return cls(source=read_source(path, "candidate"), name=Path(path).name)


def read_source(path: str | Path, what: str) -> str:
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
    """The single vocabulary of outcomes."""

    PASSED = "passed"
    WRONG = "wrong"
    CHEATING = "cheating"
    BUILD_FAILED = "build_failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    NOT_SCORABLE = "not_scorable"
    REFUSED = "refused"


@dataclass(frozen=True)
class Interval(Record):
    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval is not ordered: {self.low} <= {self.value} <= {self.high}")


@dataclass(frozen=True)
class Options(Record):
    """How a judgement is made. What is decided is the judge's; this is only how long and what is allowed."""

    effort: Literal["quick", "normal", "full"] = "normal"
    baselines: tuple[str, ...] = ("eager_fp32", "eager_tf32", "compile")
    """Of BASELINES; those that the target lacks are left out."""
    allow: tuple[str, ...] = ()
    """Tripwires switched off by name; `all` switches off every one."""
    min_authored: float = 0.0
    """Least share of device time that must be spent in kernels of the candidate's own."""
    sandbox: Literal["auto", "namespaces", "landlock", "process"] = "auto"
    build_timeout: float = 300.0
    call_timeout: float = 60.0
    """Seconds one call may take; the first one, which may compile and tune, gets `build_timeout`."""
    memory_gib: float = 0.0
    """Host memory a candidate may hold; 0: three quarters of the machine's."""


BASELINES = ("eager_fp32", "eager_tf32", "compile", "max_autotune")


@dataclass(frozen=True)
class Verdict(Record):
    """What the judge says of one candidate on one task. It cannot contradict itself: see `__post_init__`."""

    candidate: str
    status: Status
    reason: str
    error: float | None = None
    """Worst ||output - oracle|| / ||oracle|| over all calls."""
    error_of_limit: float | None = None
    """Worst error over its own limit: 1 is at the limit."""
    tolerance: float | None = None
    times: dict[str, Interval] = field(default_factory=dict)
    """Milliseconds a call: `candidate` and each baseline."""
    speedup: dict[str, Interval] = field(default_factory=dict)
    faster: Literal["yes", "no", "unclear"] | None = None
    """Against the fastest baseline."""
    floor_ms: float | None = None
    authored_share: float | None = None
    peak_bytes: int | None = None
    parameters: Literal["by name", "by seed", "none"] | None = None
    sandbox: str = ""
    language: str = ""
    notes: tuple[str, ...] = ()
    measurement: dict[str, Any] = field(default_factory=dict)
    """Rounds, clocks, A/A control, throttling, where the seconds went."""
    environment: dict[str, Any] = field(default_factory=dict)
    task: str = ""
    candidate_id: str = ""

    def __post_init__(self) -> None:
        measured = bool(self.times or self.speedup or self.faster)
        if measured and self.status is not Status.PASSED:
            raise ValueError(f"a verdict with status {self.status} cannot carry times")
        if self.status is Status.PASSED and not (self.times and self.speedup and self.faster):
            raise ValueError("a passed verdict must carry times, speed-ups and a decision")
        if not self.reason:
            raise ValueError("a verdict must say why")


@dataclass(frozen=True)
class Job(Record):
    """One line of a worker's input."""

    id: str
    kind: Literal["judge", "build", "probe", "environment"]
    task: Task | None = None
    candidate: Candidate | None = None
    target: Target | None = None
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Progress(Record):
    """What a job is doing now."""

    job: str
    stage: str


@dataclass(frozen=True)
class Result(Record):
    """One line of a worker's output: exactly one of verdict, data and error is set."""

    job: str
    verdict: Verdict | None = None
    data: dict[str, Any] | None = None
    error: str | None = None
