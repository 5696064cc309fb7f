"""Tasks, candidates and verdicts."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from kernelpro.records.base import BadInput, Record, digest
from kernelpro.records.energy import Energy
from kernelpro.records.interval import Interval

Precision = Literal["fp32", "tf32", "native"]
Target = Literal["cuda", "cpu"]
Mode = Literal["train", "eval"]


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
    outputs: str = ""
    """Of a live object, as base64: a few elements of what it gave for the examples where it was given. No part of what it is."""

    @property
    def id(self) -> str:
        return digest(
            "task", self.source, self.form, self.entry, self.payload, self.mode, self.precision or "auto"
        )

    @classmethod
    def from_file(cls, path: str | Path, mode: Mode = "train", precision: Precision | None = None) -> Self:
        text = read_source(path, "task")
        stem = Path(path).stem
        name = Path(path).resolve().parent.name if stem == "task" else stem
        return cls(source=text, name=name, mode=mode, precision=precision)

    def for_target(self, target: Target) -> Self:
        """The task at the size meant for a target: another task where its file has sizes for both.

        Such a file has a line `TARGET = "cuda"` and chooses its constants by it; a file without that line is one size."""
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


Effort = Literal["quick", "normal", "full"]


@dataclass(frozen=True)
class Options(Record):
    """How a judgement is made. What is decided is the judge's; this is only how long and what is allowed."""

    effort: Effort = "normal"
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
    give_up_ms: float = 0.0
    """0: never; a candidate whose median after a few rounds is above this is timed no longer."""
    energy: bool = False
    """Whether a candidate that passes is also measured in joules, which takes half a minute."""
    energy_against: str = ""
    """The baseline beside which it is measured, since only ratios to the same one can be compared; empty: the fastest."""


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
    energy: Energy | None = None
    """None: not asked for."""
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
        measured = bool(self.times or self.speedup or self.faster or self.energy)
        if measured and self.status is not Status.PASSED:
            raise ValueError(f"a verdict with status {self.status} cannot carry times or energy")
        if self.status is Status.PASSED and not (self.times and self.speedup and self.faster):
            raise ValueError("a passed verdict must carry times, speed-ups and a decision")
        if not self.reason:
            raise ValueError("a verdict must say why")
