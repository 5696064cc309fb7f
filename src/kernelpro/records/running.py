"""Runs: their configuration, their steps, what they cost and how they ended."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from kernelpro.records.base import BadInput, Record
from kernelpro.records.energy import Objective
from kernelpro.records.interval import Interval
from kernelpro.records.jobs import Tuning
from kernelpro.records.judging import Options, Target, Task, Verdict
from kernelpro.records.profiling import Diagnosis, Kernel

Action = Literal["seed", "improve", "debug", "combine"]
Stage = Literal["chosen", "drafted", "judged", "settled"]


@dataclass(frozen=True)
class Limits(Record):
    """What a run may spend; 0: no limit. The first limit that is reached ends the run."""

    candidates: int = 75
    """Candidates that authors write. Points of a tuning do not count."""
    dollars: float = 0.0
    """US dollars."""
    tokens: int = 0
    wall_seconds: float = 0.0
    device_seconds: float = 0.0
    """Time for which jobs hold the device, or the cores of the CPU target."""
    stop_at_floor: float = 0.95
    """Stop when floor / time of the best kernel reaches this share: little is left to gain."""

    def __post_init__(self) -> None:
        _require_numbers(self, ("candidates", "tokens"), whole=True)
        _require_numbers(self, ("dollars", "wall_seconds", "device_seconds", "stop_at_floor"))


@dataclass(frozen=True)
class Cost(Record):
    """What models were paid, in US dollars, tokens and calls."""

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
    """Settings for the model of a role. None: the role's default."""

    temperature: float | None = None
    effort: str | None = None
    """How much the model reasons first: minimal, low, medium, high, xhigh or max."""
    max_output_tokens: int | None = None
    """For one answer, reasoning included."""
    timeout: float | None = None
    """Seconds that one request may take."""

    def overrides(self) -> dict[str, Any]:
        """The settings that are not left at their default."""
        return {name: value for name, value in self.to_json().items() if value is not None}


@dataclass(frozen=True)
class RunConfig(Record):
    """Everything that decides a run."""

    task: Task
    target: Target
    author: str
    """The author as the command line names it: `files:DIR`, `playbook`, `team`, ..."""
    models: dict[str, str] = field(default_factory=dict)
    """The model of each role (plan, code, debug), as the command line names models."""
    temperature: bool = True
    """Whether each role has its own temperature. Many reasoning models accept none."""
    wait: bool = False
    """Whether a run whose model is an inbox, or whose pool is a spool, waits for answers and results. If not,
    it stops and is resumed later."""
    pool: str = "local"
    """Where jobs run, as the command line names it."""
    gpu_name: str = ""
    """Use only GPUs whose name contains this text."""
    policy: str = "mcts"
    constants: dict[str, float] = field(default_factory=dict)
    """Constants of the policy that differ from its defaults."""
    limits: Limits = field(default_factory=Limits)
    options: Options = field(default_factory=Options)
    concurrency: int = 2
    """How many candidates are written or judged at the same time."""
    seed: int = 0
    tune_points: int = 12
    """How many points of a candidate's tunables are judged; 0: tunables keep their defaults."""
    languages: tuple[str, ...] = ()
    """Languages that authors may use; empty: all languages of the target."""
    compile_seed: bool = True
    """Whether torch.compile's own code is among the first candidates."""
    knowledge: bool = True
    """Whether the run reads what earlier runs learned, and adds to it."""
    race: int = 0
    """How many of the first designs are judged after a race between all of them, if the author's code may
    race. 0: no race."""
    finalists: int = 3
    """How many of the best candidates are judged again at the end, at full length. 0: no second judgement."""
    objective: Objective = "speed"
    speed_tolerance: float = 0.02
    """energy-at-speed: candidates within this share of the fastest candidate's time count as equally fast."""
    roles: dict[str, Role] = field(default_factory=dict)
    """Model settings for design, plan, code and debug."""
    prices: dict[str, str] = field(default_factory=dict)
    """INPUT/OUTPUT in dollars per million tokens, by model name. They override the built-in price table."""

    def __post_init__(self) -> None:
        _require_numbers(self, ("tune_points", "race", "finalists"), whole=True)
        _require_numbers(self, ("concurrency",), whole=True, least=1)
        _require_numbers(self, ("speed_tolerance",))
        if self.objective not in get_args(Objective):
            raise BadInput(f"objective {self.objective!r}: use {', '.join(get_args(Objective))}")

    @property
    def author_name(self) -> str:
        """The author for people: its models, or its name if it has none."""
        return ", ".join(dict.fromkeys(self.models.values())) or self.author


def _require_numbers(record: Record, names: tuple[str, ...], whole: bool = False, least: int = 0) -> None:
    """Raise BadInput unless these fields are finite numbers from `least` on."""
    for name in names:
        value = getattr(record, name)
        fits = isinstance(value, int) or (isinstance(value, float) and not whole)
        if not fits or not least <= value < math.inf:
            what = "a whole number" if whole else "a number"
            raise BadInput(f"{name.removesuffix('_seconds')} {value!r}: give {what} from {least} on")


class NoVerdict(enum.StrEnum):
    """Why a step has no verdict of its own."""

    DUPLICATE = "duplicate"
    LOST_RACE = "lost race"
    """Another design was faster when they raced."""
    NO_IDEA = "no idea"
    """The author has nothing to offer for this node."""
    OUT_OF_IDEAS = "out of ideas"
    """The author has nothing to offer for any node."""
    NO_ANSWER = "no answer"
    """The model gave no usable answer."""
    UNREACHABLE = "unreachable"
    """The model could not be reached."""
    INTERNAL_ERROR = "internal error"
    """A bug of KernelPro prevented the judgement."""

    @property
    def means_no_idea(self) -> bool:
        """Whether the author had nothing to offer."""
        return self in (NoVerdict.NO_IDEA, NoVerdict.OUT_OF_IDEAS)

    @property
    def means_no_answer(self) -> bool:
        """Whether the author's model gave no usable answer, or none at all."""
        return self in (NoVerdict.NO_ANSWER, NoVerdict.UNREACHABLE)


@dataclass(frozen=True)
class StepDetails(Record):
    """What is known of a step beside its verdict and diagnosis."""

    fingerprint: str = ""
    """Hash of the source without comments and layout. Two steps with the same hash are duplicates."""
    diagnostic: str = ""
    """The diagnostic whose advice the author followed."""
    expected_speedup: float = 0.0
    """Speed-up over the parent that the author expected; 0: not stated."""
    facts: tuple[str, ...] = ()
    """What the author learned on the way."""
    device_seconds: float = 0.0
    tuning: Tuning | None = None
    guidance: str = ""
    """The diagnosis in words, for the author of the next step."""
    evidence: str = ""
    """The measured numbers behind the diagnosis, for the author of the next step."""
    profile_error: str = ""
    """Why the step could not be profiled."""
    compared_baseline: str = ""
    """The baseline that is profiled together with this step."""
    baseline_kernels: dict[str, Kernel] = field(default_factory=dict)
    """The largest kernel of that baseline, with its counters."""


@dataclass(frozen=True)
class Step(Record):
    """One candidate of a run, in any stage. Its number is its node in the tree; 0 is the reference."""

    number: int
    parent: int
    action: Action
    stage: Stage = "chosen"
    source: str = ""
    """Content hash of what the author wrote."""
    final_source: str = ""
    """Content hash of what was judged: the same, or the source with tuned constants."""
    plan: str = ""
    hypothesis: str = ""
    author: str = ""
    cost: Cost = field(default_factory=Cost)
    verdict: Verdict | None = None
    no_verdict: NoVerdict | None = None
    """Set once it is known that there will be no verdict."""
    note: str = ""
    """Why there is no verdict, or why tunables were not searched."""
    diagnosis: Diagnosis | None = None
    details: StepDetails = field(default_factory=StepDetails)
    donor: int = 0
    """The step that a combination borrows from, beside its parent; 0: none."""
    pasted: bool = False
    """The user wrote it while the run was under way. It uses up no candidate of the budget."""

    @property
    def ms(self) -> float | None:
        """Its time, if it passed."""
        return self.verdict.times["candidate"].value if self.verdict and self.verdict.times else None

    @property
    def state(self) -> str:
        """The status of the verdict, or why there is none; while the step is open, its stage."""
        if self.verdict:
            return self.verdict.status.value
        return self.no_verdict.value if self.no_verdict else self.stage


@dataclass(frozen=True)
class Point(Record):
    """A candidate between speed and energy."""

    step: int
    ms: float
    joules: float
    """Per call."""
    energy: Interval
    """Ratio to the energy of a call of the baseline, measured in alternation with it."""
    baseline: str
    """The name of that baseline."""
    best: bool = False
    """On the Pareto front: no other candidate is faster and uses less energy."""


@dataclass(frozen=True)
class Outcome(Record):
    """How a run ended."""

    reason: str
    best: int | None = None
    """The winner's step; None if no candidate passed."""
    verdict: Verdict | None = None
    """The winner's final verdict, at full length; of several winners, that of all of them together."""
    finalists: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    front: tuple[Point, ...] = ()
    """Speed against energy, fastest first; empty if no energy was measured."""
    unanswered: bool = False
    """The run ended with budget left because its models could not be reached. Resumed, it continues."""
    by_shape: tuple[int, ...] = ()
    """The winner's step for each shape of the task, where one kernel for all shapes would be much slower."""
