"""Runs: configuration, steps, costs and outcome."""

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
"""What the author of a step does: write a new design, improve the parent, repair it, or combine it with a
second kernel."""
Stage = Literal["chosen", "drafted", "judged", "settled"]
"""How far a step has got. Each stage is on disk before the next one begins."""


@dataclass(frozen=True)
class Limits(Record):
    """What a run may spend; 0: no limit. The first limit that is reached ends the run."""

    candidates: int = 75
    """Candidates that the author writes. Points of the tuner do not count."""
    dollars: float = 0.0
    """US dollars for models."""
    tokens: int = 0
    """Input and output tokens of models."""
    wall_seconds: float = 0.0
    """Wall time, summed over all processes that worked on the run."""
    device_seconds: float = 0.0
    """Time for which jobs hold the device, or the cores of the CPU target."""
    stop_at_floor: float = 0.95
    """Stop when floor / time of the best kernel reaches this value, because little is left to gain."""

    def __post_init__(self) -> None:
        _require_numbers(self, ("candidates", "tokens"), whole=True)
        _require_numbers(self, ("dollars", "wall_seconds", "device_seconds", "stop_at_floor"))


@dataclass(frozen=True)
class Cost(Record):
    """What models cost."""

    dollars: float = 0.0
    """US dollars."""
    tokens_in: int = 0
    """Input tokens."""
    tokens_out: int = 0
    """Output tokens."""
    calls: int = 0
    """Number of requests."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.dollars + other.dollars,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.calls + other.calls,
        )


@dataclass(frozen=True)
class Role(Record):
    """Settings of the model of a role. None: the role's default."""

    temperature: float | None = None
    """Sampling temperature, 0 to 2."""
    effort: str | None = None
    """Reasoning effort: minimal, low, medium, high, xhigh or max."""
    max_output_tokens: int | None = None
    """Limit of one answer, reasoning included."""
    timeout: float | None = None
    """Seconds that one request may take."""

    def overrides(self) -> dict[str, Any]:
        """The settings that are not None, by name."""
        return {name: value for name, value in self.to_json().items() if value is not None}


@dataclass(frozen=True)
class RunConfig(Record):
    """The configuration of a run."""

    task: Task
    target: Target
    author: str
    """The author as named on the command line: `files:DIR`, `playbook`, `team`, ..."""
    models: dict[str, str] = field(default_factory=dict)
    """The model of each role (plan, code, debug), as named on the command line."""
    temperature: bool = True
    """Whether requests set each role's temperature. Many reasoning models reject it."""
    wait: bool = False
    """Whether a run with an inbox or a spool waits for answers and results. If not, it stops and is resumed
    later."""
    pool: str = "local"
    """Where jobs run, as given with --pool."""
    gpu_name: str = ""
    """Use only GPUs whose name contains this text."""
    policy: str = "mcts"
    """Name of the search policy."""
    constants: dict[str, float] = field(default_factory=dict)
    """Constants of the policy that differ from its defaults."""
    limits: Limits = field(default_factory=Limits)
    options: Options = field(default_factory=Options)
    """How candidates are judged."""
    concurrency: int = 2
    """Number of candidates that are written or judged at the same time."""
    seed: int = 0
    """Seed of the search's random choices."""
    tune_points: int = 12
    """Number of points that the tuner tries for a candidate; 0: tunables keep their defaults."""
    languages: tuple[str, ...] = ()
    """Languages that the author may use; empty: all languages of the target."""
    compile_seed: bool = True
    """Whether torch.compile's generated code is among the first candidates."""
    knowledge: bool = True
    """Whether the run reads what earlier runs learned, and adds to it."""
    race: int = 0
    """How many designs are judged after a race between the first designs, if the author's code may race; 0:
    no race."""
    finalists: int = 3
    """Number of best candidates that are judged again at the end, at full length; 0: none."""
    objective: Objective = "speed"
    speed_tolerance: float = 0.02
    """Objective energy-at-speed: candidates within this share of the fastest candidate's time count as
    equally fast."""
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
        """The author for display: the names of its models, or its own name if it has none."""
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
    """It has the same source or machine code as an earlier step."""
    LOST_RACE = "lost race"
    """Other designs were faster in the race."""
    NO_IDEA = "no idea"
    """The author has no proposal for this node."""
    OUT_OF_IDEAS = "out of ideas"
    """The author has no proposal for any node."""
    NO_ANSWER = "no answer"
    """The model gave no usable answer."""
    UNREACHABLE = "unreachable"
    """The model could not be reached."""
    INTERNAL_ERROR = "internal error"
    """A bug of KernelPro prevented the judgement."""

    @property
    def means_no_idea(self) -> bool:
        """Whether the author had no proposal."""
        return self in (NoVerdict.NO_IDEA, NoVerdict.OUT_OF_IDEAS)

    @property
    def means_no_answer(self) -> bool:
        """Whether the author's model gave no usable answer or no answer at all."""
        return self in (NoVerdict.NO_ANSWER, NoVerdict.UNREACHABLE)


@dataclass(frozen=True)
class StepDetails(Record):
    """Further data of a step, in addition to its verdict and diagnosis."""

    fingerprint: str = ""
    """Hash of the source without comments and layout. Steps with the same hash are duplicates."""
    diagnostic: str = ""
    """Name of the diagnostic whose advice the author followed."""
    expected_speedup: float = 0.0
    """Speed-up over the parent that the author expects; 0: not stated."""
    facts: tuple[str, ...] = ()
    """What the author learned while writing the candidate."""
    device_seconds: float = 0.0
    """Time for which the step's jobs held the device."""
    tuning: Tuning | None = None
    """The search over its tunables; None if it was not tuned."""
    guidance: str = ""
    """The diagnosis in words, for the author of the next step."""
    evidence: str = ""
    """The measured numbers behind the diagnosis, for the author of the next step."""
    profile_error: str = ""
    """Why the step could not be profiled."""
    compared_baseline: str = ""
    """Name of the baseline that is profiled together with this step; empty: none."""
    baseline_kernels: dict[str, Kernel] = field(default_factory=dict)
    """The largest kernel of that baseline with its counters, by the baseline's name."""


@dataclass(frozen=True)
class Step(Record):
    """One candidate of a run, in any stage."""

    number: int
    """Identifies the step and its node in the search tree; 0 is the reference."""
    parent: int
    """The step from which it was derived; 0: the reference."""
    action: Action
    stage: Stage = "chosen"
    source: str = ""
    """Content hash of the source that the author wrote; empty if there is none."""
    final_source: str = ""
    """Content hash of the source that was judged: the author's, or the same with tuned constants."""
    plan: str = ""
    """What the author changed or built, in words."""
    hypothesis: str = ""
    """Why the author expects this to be faster."""
    author: str = ""
    """The model, compiler or person that wrote it."""
    cost: Cost = field(default_factory=Cost)
    """What its models cost."""
    verdict: Verdict | None = None
    no_verdict: NoVerdict | None = None
    """Set as soon as it is clear that there will be no verdict."""
    note: str = ""
    """Why there is no verdict, or why tunables were not searched."""
    diagnosis: Diagnosis | None = None
    """None until the step is profiled."""
    details: StepDetails = field(default_factory=StepDetails)
    donor: int = 0
    """The second kernel of a combination, in addition to the parent; 0: none."""
    pasted: bool = False
    """Whether the user wrote it while the run was under way. Such a step does not count as a candidate in the
    budget."""

    @property
    def ms(self) -> float | None:
        """The candidate's time in ms; None if it did not pass."""
        return self.verdict.times["candidate"].value if self.verdict and self.verdict.times else None

    @property
    def state(self) -> str:
        """The status of the verdict, or the reason why there is none. While the step is open, its stage."""
        if self.verdict:
            return self.verdict.status.value
        return self.no_verdict.value if self.no_verdict else self.stage


@dataclass(frozen=True)
class Point(Record):
    """Time and energy of a candidate."""

    step: int
    """Number of its step."""
    ms: float
    """Comparable time of a call."""
    joules: float
    """Energy of a call."""
    energy: Interval
    """Energy of a call relative to the baseline's."""
    baseline: str
    """Name of that baseline."""
    best: bool = False
    """Whether it is on the Pareto front: no other candidate is faster and uses less energy."""


@dataclass(frozen=True)
class Outcome(Record):
    """How a run ended."""

    reason: str
    """Why the search ended."""
    best: int | None = None
    """The winner's step; None if no candidate passed."""
    verdict: Verdict | None = None
    """The winner's final verdict, at full length. With a kernel for each shape: the verdict on all of them
    together."""
    finalists: tuple[int, ...] = ()
    """Steps that were judged again at the end."""
    notes: tuple[str, ...] = ()
    """Remarks about the choice of the winner."""
    front: tuple[Point, ...] = ()
    """Time and energy of all measured candidates, fastest first; empty if no energy was measured."""
    unanswered: bool = False
    """Whether the run ended with budget left because its models could not be reached. It continues when it is
    resumed."""
    by_shape: tuple[int, ...] = ()
    """The winning step for each shape of the task, if one kernel for all shapes would be much slower; else
    empty."""
