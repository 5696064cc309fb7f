"""What a micro-profiling tool is: trigger -> analysis -> recommendation, over a scene.

A tool is one small file with `TOOL = Tool(...)`. Its `look` gets a `Scene` (the profile, one kernel of it,
the class of the bottleneck) and returns what it found, or None where its trigger is not met. It says by
which share of the kernel's time a remedy would shorten it (`saved`); the scene turns that into the gain of
a whole call, by Amdahl's law and never beyond the floor.

`scene.metric` and `scene.code` raise Missing where the profile lacks what was asked for: the tool then
counts as skipped, with the reason. A tool that can do with less asks with `scene.get` first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kernelpro.diagnose.kernel_names import display_name
from kernelpro.records import (
    Bound,
    Evidence,
    Finding,
    Gain,
    Kernel,
    Level,
    Profile,
    Severity,
    Target,
    Timeline,
)

ALL_BOUNDS = frozenset(Bound)
HIGH, MEDIUM = 1.25, 1.08
"""Gains from which a finding is severe or noticeable: a quarter is worth a rewrite, less than 8 % is within reach of tuning."""
_MOST_SAVED = 0.98
ANY = "*"
"""In `symptom_of`: whatever a tool that looks into the kernel has found there."""
FLOOR_HOLDS = 1.05
"""Times as fast as the floor: beyond, the floor is wrong. Ceilings are known to a few percent."""
REPLACE = "this kernel is a library's and cannot be changed: replace it by one of your own that also does the steps beside it"


class MissingData(Exception):
    """A fact that a tool needs is not in the profile; the text names it: `a timeline`."""


@dataclass(frozen=True)
class Match:
    """What a tool returns."""

    evidence: tuple[Evidence, ...]
    cause: str
    advice: tuple[str, ...]
    saved_share: float
    """Share of the subject's time (the kernel's; for system tools the call's) that a remedy would save, 0 to 1."""
    basis: str
    """How `saved` was derived, in words with numbers."""
    where: str = ""
    kernel: str = ""
    """Of which kernel a system tool speaks, where it is one."""


@dataclass(frozen=True)
class Diagnostic:
    name: str
    level: Level
    target: Target
    analyze: Callable[[DiagnosticContext], Match | None]
    trigger: str
    """When it speaks, with the threshold and why it is there. For the reference page."""
    remedy: str
    """What it recommends, in a sentence. For the reference page."""
    gain_basis: str
    """How the expected gain is derived. For the reference page."""
    bounds: frozenset[Bound] = ALL_BOUNDS
    metrics: tuple[str, ...] = ()
    """Hardware counters that it asks ncu for."""
    sample_lines: bool = False
    """Whether it wants stalls by source line."""
    symptom_of: tuple[str, ...] = ()
    """Tools whose finding on the same kernel explains this one's, or ANY: it then ranks after them."""
    objective: Literal["speed", "energy"] = "speed"
    """What `saved` is a share of: the subject's time, or its energy. Energy tools are asked only where energy is an objective."""


@dataclass(frozen=True)
class DiagnosticContext:
    """What a tool looks at."""

    profile: Profile
    bound: Bound
    subject: Kernel | None = None
    """The kernel in question; None for system tools."""
    device: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", self.profile.device)
        if (
            self.subject is not None and "mix" not in self.subject.code
        ):  # the compiler's report alone is no machine code
            object.__setattr__(self, "kernel", replace(self.subject, code={}))

    @property
    def kernel(self) -> Kernel:
        if self.subject is None:
            raise MissingData("a kernel")
        return self.subject

    @property
    def timeline(self) -> Timeline:
        if self.profile.timeline is None:
            raise MissingData("a timeline")
        return self.profile.timeline

    @property
    def code(self) -> dict[str, Any]:
        if not self.kernel.code:
            raise MissingData("machine code of this kernel")
        return self.kernel.code

    @property
    def cpu(self) -> dict[str, Any]:
        if not self.profile.cpu:
            raise MissingData("a profile of the CPU")
        return self.profile.cpu

    def metric(self, name: str) -> float:
        if name not in self.kernel.metrics:
            raise MissingData(f"counter {name}")
        return self.kernel.metrics[name]

    def metric_or_none(self, name: str) -> float | None:
        return self.kernel.metrics.get(name)

    def count_instructions(self, *kinds: str, hot: bool = True) -> int:
        """Static count of instructions of these kinds: in innermost loops where there are any (`hot`), else in the whole kernel."""
        loops = [loop for loop in self.code.get("loops", ()) if loop.get("innermost")] if hot else []
        mixes = [loop["mix"] for loop in loops] or [self.code["mix"]]
        return sum(mix.get(kind, 0) for mix in mixes for kind in kinds)

    @property
    def headroom(self) -> float:
        """How many times faster than now the floor is."""
        return (
            max(1.0, self.profile.time_ms / self.profile.floor_ms)
            if self.profile.floor_ms > 0
            else float("inf")
        )

    @property
    def floor_is_valid(self) -> bool:
        """Whether the floor can be believed: what runs faster than it proves it wrong."""
        return self.profile.floor_ms <= FLOOR_HOLDS * self.profile.time_ms

    @property
    def share_of_call(self) -> float:
        """The subject's share of a call's time."""
        if self.subject is None or self.profile.target == "cpu":
            return 1.0
        return (
            min(1.0, self.subject.microseconds / (1e3 * self.profile.time_ms))
            if self.profile.time_ms > 0
            else self.subject.share
        )

    def gain(self, found: Match, objective: str = "speed") -> Gain:
        """Amdahl's law over the subject's share of the call, never beyond a floor that holds. Energy is shared as time is."""
        saved = min(max(found.saved_share, 0.0), _MOST_SAVED) * self.share_of_call
        factor = 1 / (1 - saved)
        how = found.basis
        if self.share_of_call < 0.95:
            how += f"; the kernel is {self.share_of_call:.0%} of a call"
        if objective == "speed" and self.floor_is_valid and factor > self.headroom:
            factor = self.headroom
            how += f"; no more than the floor allows ({self.headroom:.2f}x)"
        return Gain(round(factor, 3), how)

    def to_finding(self, tool: Diagnostic, found: Match) -> Finding:
        gain = self.gain(found, tool.objective)
        severity = (
            Severity.HIGH
            if gain.factor >= HIGH
            else Severity.MEDIUM
            if gain.factor >= MEDIUM
            else Severity.LOW
        )
        kernel = display_name(self.subject, self.profile.kernels) if self.subject else found.kernel
        advice = found.advice
        if self.subject is not None and not self.subject.authored:
            advice = (REPLACE, *(f"in that kernel, {text}" for text in advice[:1]))
        evidence, where = found.evidence, found.where
        return Finding(
            tool.name,
            tool.level,
            severity,
            evidence,
            found.cause,
            advice,
            gain,
            kernel,
            where,
            objective=tool.objective,
        )
