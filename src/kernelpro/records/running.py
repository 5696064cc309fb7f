"""Runs: what was asked for, what was tried, what it cost, how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from kernelpro.records.base import Record
from kernelpro.records.energy import Objective
from kernelpro.records.interval import Interval
from kernelpro.records.judging import Options, Target, Task, Verdict
from kernelpro.records.profiling import Diagnosis

Action = Literal["seed", "improve", "debug", "combine"]
Stage = Literal["chosen", "drafted", "judged", "settled"]


@dataclass(frozen=True)
class Limits(Record):
    """What may be spent; 0: no limit. Whichever ends first ends the run."""

    candidates: int = 75
    """Candidates that authors write; points of a tuning are not among them."""
    dollars: float = 0.0
    """US dollars."""
    tokens: int = 0
    wall_seconds: float = 0.0
    device_seconds: float = 0.0
    """Time in which candidates held the device, or the cores of the CPU target."""
    stop_at_floor: float = 0.95
    """Stop when the best kernel is this near to the floor: nothing is left to win."""


@dataclass(frozen=True)
class Cost(Record):
    dollars: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    calls: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.dollars + other.dollars,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.calls + other.calls,
        )


@dataclass(frozen=True)
class Role(Record):
    """How a role's model is asked, where that was said; None: as usual."""

    temperature: float | None = None
    effort: str | None = None
    """How much it thinks first: minimal, low, medium, high, xhigh or max."""
    max_output_tokens: int | None = None
    """Of one answer, thinking included."""
    timeout: float | None = None
    """Seconds one request may take."""

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_json().items() if value is not None}


@dataclass(frozen=True)
class RunConfig(Record):
    """Everything that decides a run."""

    task: Task
    target: Target
    author: str
    """How the author was named on the command line: `files:DIR`, `playbook`, `team`, ..."""
    models: dict[str, str] = field(default_factory=dict)
    """Who answers for each role (plan, code, debug), as the command line names models."""
    temperature: bool = True
    """Whether roles are asked with temperatures of their own; many reasoning models accept none."""
    wait: bool = False
    """Whether a run whose model is an inbox, or whose pool is a spool, waits for answers and results, or stops and is resumed."""
    pool: str = "local"
    """Where jobs are done, as the command line names it."""
    gpu_name: str = ""
    """Only hardware whose name contains this."""
    policy: str = "mcts"
    constants: dict[str, float] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    options: Options = field(default_factory=Options)
    concurrency: int = 2
    """Candidates being written or judged at the same time."""
    seed: int = 0
    tune_points: int = 12
    """Points of a candidate's tunables that are judged; 0: tunables are left as they are."""
    languages: tuple[str, ...] = ()
    """What authors may write in; empty: whatever suits the target."""
    compile_seed: bool = True
    """Whether the compiler's own code is among the first candidates."""
    knowledge: bool = True
    """Read what earlier runs learnt, and add to it."""
    finalists: int = 3
    """Best candidates that are judged again, at full length, before the final word; 0: their first verdict is the last."""
    objective: Objective = "speed"
    speed_tolerance: float = 0.02
    """energy-at-speed: candidates within this share of the fastest one's time count as equally fast."""
    roles: dict[str, Role] = field(default_factory=dict)
    """How design, plan, code and debug are asked for, where that was said."""
    prices: dict[str, str] = field(default_factory=dict)
    """INPUT/OUTPUT in dollars per million tokens, by a model's name; they go before the library's table."""


@dataclass(frozen=True)
class Step(Record):
    """One candidate of a run, as far as it has come. Its number is its place in the tree; 0 is the reference."""

    number: int
    parent: int
    action: Action
    stage: Stage = "chosen"
    source: str = ""
    """Content hash of what the author wrote."""
    final_source: str = ""
    """Content hash of what was judged: the same, or with tuned constants."""
    plan: str = ""
    hypothesis: str = ""
    author: str = ""
    cost: Cost = field(default_factory=Cost)
    verdict: Verdict | None = None
    note: str = ""
    """Why there is no verdict of its own (a duplicate, an author without an idea or an answer), or what tuning found."""
    diagnosis: Diagnosis | None = None
    details: dict[str, Any] = field(default_factory=dict)
    second: int = 0
    """The step that a combination borrows from, beside its parent; 0: none."""

    @property
    def ms(self) -> float | None:
        """Its time, where it passed."""
        return self.verdict.times["candidate"].value if self.verdict and self.verdict.times else None

    @property
    def state(self) -> str:
        """How it ended in a word or two: the verdict's status, duplicate, no idea, no answer; while it is on its way, its stage."""
        if self.verdict:
            return self.verdict.status.value
        if self.note.startswith("a duplicate"):
            return "duplicate"
        return "no answer" if self.note.startswith("no answer") else "no idea" if self.note else self.stage


@dataclass(frozen=True)
class Point(Record):
    """A candidate between speed and energy."""

    step: int
    ms: float
    joules: float
    """A call."""
    energy: Interval
    """Of the energy of a baseline's call, measured in turn with it."""
    against: str
    best: bool = False
    """On the Pareto front: no other is faster and takes less energy."""


@dataclass(frozen=True)
class Outcome(Record):
    """How a run ended."""

    reason: str
    best: int | None = None
    """The winner's step; None where nothing passed."""
    verdict: Verdict | None = None
    """The winner's last judgement, at full length."""
    finalists: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    front: tuple[Point, ...] = ()
    """Speed against energy, fastest first; empty where no energy was measured."""
    unanswered: bool = False
    """It ended with budget left, because nobody could be reached who answers: called again, it goes on."""
