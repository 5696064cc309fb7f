"""Stage 2: which tools run, what they need counted, and what they find.

Tools whose evidence is free (timeline, machine code) run always; those that need counters run where the
class of the bottleneck is in their affinity, and only their counters are collected. All selected tools run,
every time: nobody chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kernelpro.diagnose import roofline
from kernelpro.diagnose.diagnostic import ANY, Diagnostic, DiagnosticContext, MissingData
from kernelpro.diagnose.kernel_names import display_name
from kernelpro.diagnose.track_record import TrackRecord
from kernelpro.records import Bound, Diagnosis, Finding, Profile, ProfileRequest, Skipped

_LEAST_SHARE = 0.05
"""Of device time: a kernel below is not looked at; removing it entirely would not be felt."""
_LEAST_GAIN = 1.03
"""A finding that promises less is not worth a line: repeated measurements differ by as much."""
ENERGY = "wasted energy"
"""What was not looked at, where tools for energy could not."""


def select(tools: Iterable[Diagnostic], bound: Bound, target: str, energy: bool = False) -> list[Diagnostic]:
    """The affinity filter; tools that look for energy only where it is an objective."""
    return [tool for tool in _fitting(tools, target, energy) if not tool.metrics or bound in tool.bounds]


def _fitting(tools: Iterable[Diagnostic], target: str, energy: bool) -> list[Diagnostic]:
    """Those for this target and for what counts."""
    return [tool for tool in tools if tool.target == target and (energy or tool.objective == "speed")]


def request_for(
    tools: Iterable[Diagnostic],
    profile: Profile,
    bound: Bound,
    references: tuple[str, ...] = (),
    energy: bool = False,
) -> ProfileRequest:
    """What to collect for the tools that this class selects. A device that mostly idles needs no counters at all."""
    if bound is Bound.LAUNCH or profile.target == "cpu":
        return ProfileRequest()
    chosen = select(tools, bound, profile.target, energy)
    metrics = dict.fromkeys(metric for tool in chosen for metric in tool.metrics)
    return ProfileRequest(tuple(metrics), any(tool.sample_lines for tool in chosen), references)


def request_all(tools: Iterable[Diagnostic], target: str, references: tuple[str, ...] = ()) -> ProfileRequest:
    """All counters that any tool knows of: what two stages save."""
    metrics = dict.fromkeys(metric for tool in tools if tool.target == target for metric in tool.metrics)
    return ProfileRequest(tuple(metrics), True, references)


def diagnose(
    profile: Profile,
    tools: Iterable[Diagnostic],
    record: TrackRecord | None = None,
    energy: bool = False,
    every: bool = False,
) -> Diagnosis:
    """Class, findings (what the author can change first, causes before symptoms, then by gain), and what could not be looked at.

    `every`: also ask tools that the class does not select, where their counters were read all the same.
    """
    classified = roofline.classify(profile)
    fitting = _fitting(tools, profile.target, energy)
    chosen = fitting if every else select(fitting, classified.bound, profile.target, energy)
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
    foreign = {display_name(kernel, profile.kernels) for kernel in profile.kernels if not kernel.authored}
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


def _asked(tool: Diagnostic, scenes: list[DiagnosticContext]) -> tuple[list[Finding], list[Skipped]]:
    """What a tool found, and what kept it from looking. One of a third party may raise anything: that costs its own word alone."""
    findings, skipped = [], []
    for scene in scenes:
        try:
            found = tool.analyze(scene)
            finding = scene.to_finding(tool, found) if found is not None else None
        except MissingData as missing:
            skipped.append(Skipped(tool.name, f"it lacks {missing}"))
        except Exception as error:
            skipped.append(Skipped(tool.name, f"it failed: {type(error).__name__}: {error}".splitlines()[0]))
        else:
            if finding is not None and finding.gain.factor >= _LEAST_GAIN:
                findings.append(finding)
    return findings, skipped


def _unseen(profile: Profile, bound: Bound, saving: list[Diagnostic], looked: list[Diagnostic]) -> str:
    """Why tools that look for wasted energy could not; empty where all could."""
    blind = sum(tool not in looked for tool in saving)
    if not saving:
        return "no tool looks for it on this target"
    if not blind:
        return ""
    counted = any(kernel.metrics for kernel in profile.kernels)
    why = "counters are not read in class launch" if bound is Bound.LAUNCH else "counters were not read"
    return f"{blind} of {len(saving)} tools for it could not look, as {'the profile lacks what they need' if counted else why}"


def _scenes(profile: Profile, bound: Bound, tool: Diagnostic) -> list[DiagnosticContext]:
    if tool.level == "system" or profile.target == "cpu":
        return [DiagnosticContext(profile, bound)]
    return [DiagnosticContext(profile, bound, kernel) for kernel in profile.kernels if kernel.share >= _LEAST_SHARE]


def _ranked(
    findings: list[Finding], tools: dict[str, Diagnostic], foreign: set[str], record: TrackRecord
) -> list[Finding]:
    """Causes by gain (weighted by what the tool's advice has been worth so far), then symptoms; energy after time.

    What goes on inside a library's kernel comes last: nobody can mend it there, and what says that the kernel should not
    be called at all comes before it.
    """

    def closed(finding: Finding) -> bool:
        return finding.level != "system" and finding.kernel in foreign

    def explains(cause: Finding, finding: Finding) -> bool:
        if (
            cause.diagnostic == finding.diagnostic
            or cause.kernel not in (finding.kernel, "")
            or closed(cause) > closed(finding)
        ):
            return False
        if cause.objective != finding.objective:
            return False  # what costs time and what costs energy are told apart, even where one change would mend both
        known = tools[finding.diagnostic].symptom_of
        looks_inside = cause.level != "system" and ANY not in tools[cause.diagnostic].symptom_of
        return cause.diagnostic in known or (ANY in known and looks_inside)

    def worth(finding: Finding) -> float:
        return record.discounted_gain(finding.diagnostic, finding.gain.factor)

    causes = [[cause for cause in findings if explains(cause, finding)] for finding in findings]
    roots = [finding for finding, its in zip(findings, causes, strict=True) if not its]
    marked = [
        replace(finding, explained_by=max(its, key=lambda cause: (cause in roots, worth(cause))).diagnostic)
        if its
        else finding
        for finding, its in zip(findings, causes, strict=True)
    ]
    return sorted(
        marked,
        key=lambda f: (f.objective == "energy", closed(f), bool(f.explained_by), -worth(f), f.diagnostic, f.kernel),
    )
