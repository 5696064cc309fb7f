"""Stage 2: which tools run, what they need counted, and what they find.

Tools whose evidence is free (timeline, machine code) run always; those that need counters run where the
class of the bottleneck is in their affinity, and only their counters are collected. All selected tools run,
every time: nobody chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kernelpro.diagnose import roofline
from kernelpro.diagnose.names import shown
from kernelpro.diagnose.record import TrackRecord
from kernelpro.diagnose.tool import ANY, Missing, Scene, Tool
from kernelpro.records import Bound, Counters, Diagnosis, Finding, Profile, Skipped

_LEAST_SHARE = 0.05
"""Of device time: a kernel below is not looked at; removing it entirely would not be felt."""
_LEAST_GAIN = 1.03
"""A finding that promises less is not worth a line: repeated measurements differ by as much."""
ENERGY = "wasted energy"
"""What was not looked at, where tools for energy could not."""


def selected(tools: Iterable[Tool], bound: Bound, target: str, energy: bool = False) -> list[Tool]:
    """The affinity filter; tools that look for energy only where it is an objective."""
    return [tool for tool in _fitting(tools, target, energy) if not tool.metrics or bound in tool.affinity]


def _fitting(tools: Iterable[Tool], target: str, energy: bool) -> list[Tool]:
    """Those for this target and for what counts."""
    return [tool for tool in tools if tool.target == target and (energy or tool.objective == "speed")]


def wanted(
    tools: Iterable[Tool],
    profile: Profile,
    bound: Bound,
    references: tuple[str, ...] = (),
    energy: bool = False,
) -> Counters:
    """What to collect for the tools that this class selects. A device that mostly idles needs no counters at all."""
    if bound is Bound.LAUNCH or profile.target == "cpu":
        return Counters()
    chosen = selected(tools, bound, profile.target, energy)
    metrics = dict.fromkeys(metric for tool in chosen for metric in tool.metrics)
    return Counters(tuple(metrics), any(tool.lines for tool in chosen), references)


def everything(tools: Iterable[Tool], target: str, references: tuple[str, ...] = ()) -> Counters:
    """All counters that any tool knows of: what two stages save."""
    metrics = dict.fromkeys(metric for tool in tools if tool.target == target for metric in tool.metrics)
    return Counters(tuple(metrics), True, references)


def diagnose(
    profile: Profile,
    tools: Iterable[Tool],
    record: TrackRecord | None = None,
    energy: bool = False,
    every: bool = False,
) -> Diagnosis:
    """Class, findings (what the author can change first, causes before symptoms, then by gain), and what could not be looked at.

    `every`: also ask tools that the class does not select, where their counters were read all the same.
    """
    classified = roofline.classify(profile)
    fitting = _fitting(tools, profile.target, energy)
    chosen = fitting if every else selected(fitting, classified.bound, profile.target, energy)
    findings: list[Finding] = []
    skipped = list(profile.skipped)
    looked = []
    for tool in chosen:
        scenes = _scenes(profile, classified.bound, tool)
        found, kept = _asked(tool, scenes)
        findings += found
        skipped += kept
        if len(kept) < len(scenes):
            looked.append(tool)
    foreign = {shown(kernel, profile.kernels) for kernel in profile.kernels if not kernel.authored}
    ranked = _ranked(findings, {tool.name: tool for tool in chosen}, foreign, record or TrackRecord())
    if unasked := [tool.name for tool in fitting if tool not in chosen]:
        why = f"not asked in class {classified.bound}: {', '.join(unasked)}"
        skipped.append(Skipped("tools for other classes", why, "ask all with --all-counters"))
    saving = [tool for tool in fitting if tool.objective == "energy"]
    if energy and (unseen := _unseen(profile, classified.bound, saving, looked)):
        skipped.append(Skipped(ENERGY, unseen))
    once = tuple(dict.fromkeys(skipped))
    place = roofline.position(profile)
    return Diagnosis(
        classified.bound, classified.confidence, classified.why, place, tuple(ranked), once, energy
    )


def _asked(tool: Tool, scenes: list[Scene]) -> tuple[list[Finding], list[Skipped]]:
    """What a tool found, and what kept it from looking. One of a third party may raise anything: that costs its own word alone."""
    findings, skipped = [], []
    for scene in scenes:
        try:
            found = tool.look(scene)
            finding = scene.finding(tool, found) if found is not None else None
        except Missing as missing:
            skipped.append(Skipped(tool.name, f"it lacks {missing}"))
        except Exception as error:
            skipped.append(Skipped(tool.name, f"it failed: {type(error).__name__}: {error}".splitlines()[0]))
        else:
            if finding is not None and finding.gain.factor >= _LEAST_GAIN:
                findings.append(finding)
    return findings, skipped


def _unseen(profile: Profile, bound: Bound, saving: list[Tool], looked: list[Tool]) -> str:
    """Why tools that look for wasted energy could not; empty where all could."""
    blind = sum(tool not in looked for tool in saving)
    if not saving:
        return "no tool looks for it on this target"
    if not blind:
        return ""
    counted = any(kernel.metrics for kernel in profile.kernels)
    why = "counters are not read in class launch" if bound is Bound.LAUNCH else "counters were not read"
    return f"{blind} of {len(saving)} tools for it could not look, as {'the profile lacks what they need' if counted else why}"


def _scenes(profile: Profile, bound: Bound, tool: Tool) -> list[Scene]:
    if tool.level == "system" or profile.target == "cpu":
        return [Scene(profile, bound)]
    return [Scene(profile, bound, kernel) for kernel in profile.kernels if kernel.share >= _LEAST_SHARE]


def _ranked(
    findings: list[Finding], tools: dict[str, Tool], foreign: set[str], record: TrackRecord
) -> list[Finding]:
    """Causes by gain (weighted by what the tool's advice has been worth so far), then symptoms; energy after time.

    What goes on inside a library's kernel comes last: nobody can mend it there, and what says that the kernel should not
    be called at all comes before it.
    """

    def closed(finding: Finding) -> bool:
        return finding.level != "system" and finding.kernel in foreign

    def explains(cause: Finding, finding: Finding) -> bool:
        if (
            cause.tool == finding.tool
            or cause.kernel not in (finding.kernel, "")
            or closed(cause) > closed(finding)
        ):
            return False
        if cause.objective != finding.objective:
            return False  # what costs time and what costs energy are told apart, even where one change would mend both
        known = tools[finding.tool].symptom_of
        looks_inside = cause.level != "system" and ANY not in tools[cause.tool].symptom_of
        return cause.tool in known or (ANY in known and looks_inside)

    def worth(finding: Finding) -> float:
        return record.worth(finding.tool, finding.gain.factor)

    causes = [[cause for cause in findings if explains(cause, finding)] for finding in findings]
    roots = [finding for finding, its in zip(findings, causes, strict=True) if not its]
    marked = [
        replace(finding, explained_by=max(its, key=lambda cause: (cause in roots, worth(cause))).tool)
        if its
        else finding
        for finding, its in zip(findings, causes, strict=True)
    ]
    return sorted(
        marked,
        key=lambda f: (f.objective == "energy", closed(f), bool(f.explained_by), -worth(f), f.tool, f.kernel),
    )
