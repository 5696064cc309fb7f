"""The sections of each role's prompt, within a token budget. The same assignment gives the same text.

    design   task, device and baselines, direction; the best kernels in one line each; memory, knowledge
    plan     task, device and baselines, the kernel, guidance, evidence; concurrent steps; the best kernels;
             memory, knowledge; the source of a faster kernel, or of the second kernel of a combination
    code     task, device and baselines, plan, the marked file; children; cousins; memory
    debug    task, device and baselines, plan, the file, the failure; siblings; memory

Every section has a token limit. If all of them together exceed the window, the least valuable ones are
truncated first. A marked file that is too long keeps its spans and loses the lines farthest from them
(anchors.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kernelpro.authors.author import Assignment, KnownCandidate
from kernelpro.authors.team import templates
from kernelpro.memory.wording import summarize
from kernelpro.records import ComparableTimes, Verdict

CHARACTERS_PER_TOKEN = 4
WINDOW_TOKENS = 24_000
"""Maximum tokens of a prompt without its system part. A long kernel (6,000), its evidence (2,500) and related
kernels fit easily."""
_CAPS = {
    "source": 12_000,
    "plan": 8_000,
    "task": 6_000,
    "failure": 2_000,
    "guidance": 1_500,
    "evidence": 2_500,
    "children": 1_500,
}
_CAPS |= {"siblings": 3_000, "cousins": 4_000, "faster": 4_000, "second": 8_000}
_CAPS |= {"leaders": 1_500, "memory": 1_000, "knowledge": 500, "hints": 2_000}
MAX_FILE_CHARACTERS = CHARACTERS_PER_TOKEN * _CAPS["source"] - 1_000
"""Maximum characters of a marked file; leaves room for its marks and its title."""
_ORDER = [
    *(
        "source",
        "task",
        "failure",
        "plan",
        "hints",
        "ground",
        "guidance",
        "direction",
        "second",
        "evidence",
        "beside",
        "memory",
        "children",
    ),
    *("leaders", "siblings", "cousins", "knowledge", "faster"),
]
"""Section names, the most valuable first."""
_PRODUCT = re.compile(r"\.(\w*mm\w*|matmul|linear|einsum|conv\w*|\w*attention\w*)\.")
_PRECISION = {
    "fp32": "every product and sum in float32; TF32 and half precision are rejected as wrong.",
    "tf32": "matrix products may use TF32 (float32 accumulation); everything else in float32.",
    "native": "the task's own type for storage; accumulate in float32.",
}


def describe_precision(precision: str) -> str:
    """Say in words which arithmetic a precision allows."""
    return _PRECISION.get(precision, "")


def fit_window(sections: dict[str, str], tokens: int = WINDOW_TOKENS) -> dict[str, str]:
    """Truncate each section to its limit, then the least valuable ones until all fit into `tokens`."""
    capped = {name: truncate(text, _CAPS.get(name, 4_000)) for name, text in sections.items()}
    room = tokens * CHARACTERS_PER_TOKEN
    fitted = {}
    for name in sorted(capped, key=lambda n: _ORDER.index(n) if n in _ORDER else len(_ORDER)):
        fitted[name] = truncate(capped[name], max(0, room) // CHARACTERS_PER_TOKEN)
        room -= len(fitted[name])
    return fitted


def truncate(text: str, tokens: int) -> str:
    """Return the text, or its beginning with a note on how much was left out."""
    room = tokens * CHARACTERS_PER_TOKEN
    if len(text) <= room:
        return text
    if room < 200:
        return ""
    beginning = text[: room - 60].rpartition("\n")[0]
    return f"{beginning}\n[... {len(text) - len(beginning)} characters left out]"


def device_and_baselines(assignment: Assignment) -> str:
    """Describe the device, its measured ceilings, the baselines, the floor and the precision."""
    hardware = assignment.hardware
    lines = [f"- target: {assignment.target}, {hardware.name or 'unknown device'}"]
    if bandwidth := hardware.bandwidth:
        cached = hardware.cached_bandwidth
        cached_text = f", {_with_prefix(cached)}B/s if all data fits the caches" if cached > bandwidth else ""
        lines.append(
            f"- measured ceilings: a copy moves {_with_prefix(bandwidth)}B/s (read + written){cached_text}"
            + _rates(hardware.rates)
        )
    lines += [f"- {name}: {value}" for name, value in hardware.facts.items()]
    times = ", ".join(f"{name} {ms:.4f} ms" for name, ms in assignment.baselines.items())
    lines.append(f"- baselines: {times}; the fastest is the time to beat")
    lines += _shape_lines(assignment)
    if assignment.objective:
        lines.append(f"- objective: {assignment.objective}")
    definition = (
        "time to move inputs and outputs once and do the fewest operations, at these ceilings; "
        "may be out of reach"
    )
    lines.append(f"- floor: {assignment.floor_ms:.4f} ms ({definition})")
    limit = (
        f"; relative error (norm) at most {assignment.tolerance:.1e} on inputs as given"
        if assignment.tolerance
        else ""
    )
    lines.append(f"- precision: {assignment.precision}{limit}")
    return "\n".join(lines)


def _shape_lines(assignment: Assignment) -> list[str]:
    """The shapes of a task that has several, each with its baselines."""
    if len(assignment.shapes) < 2:
        return []
    lines = [
        f"- the kernel must be correct for inputs of {len(assignment.shapes)} shapes: read sizes from the "
        "inputs, and choose tiles by them; times are means over all calls"
    ]
    for shape in assignment.shapes:
        times = ", ".join(f"{name} {x.value:.4f} ms" for name, x in shape.times.items())
        lines.append(f"  - inputs {shape.shape}, {shape.weight:.0%} of calls: {times}")
    return lines


def other_directions(directions: Iterable[str], asked: int) -> str:
    """List the directions of the run's other designs. `asked`: earlier designs with this same direction."""
    texts = [f"({text})" for text in directions]
    lines = (
        [f"Other engineers independently get other directions for this task: {' '.join(texts)}"]
        if texts
        else []
    )
    if asked:
        lines.append("Others got the same direction. Do not use the first decomposition that comes to mind.")
    return "\n".join(lines)


def has_matrix_work(assignment: Assignment) -> bool:
    """Whether the task has matrix products or convolutions; True if its graph is unknown."""
    if assignment.graph is None:
        return True
    return any(_PRODUCT.search(node.op) for node in assignment.graph.nodes)


def _rates(rates: dict[str, float]) -> str:
    return "".join(f", {name} matrix products {_with_prefix(rate)}FLOP/s" for name, rate in rates.items())


def _with_prefix(value: float) -> str:
    """Format with a unit prefix: `4.3 T`, `22 G`."""
    return f"{value / 1e12:.3g} T" if value >= 1e12 else f"{value / 1e9:.3g} G"


def reference_section(assignment: Assignment) -> str:
    """Show the reference's source."""
    return f"The reference defines the correct result:\n\n```python\n{assignment.task.source.strip()}\n```"


def describe_verdict(verdict: Verdict | None, times: ComparableTimes) -> str:
    """Describe a verdict in one line, with the time on the scale that compares candidates."""
    if verdict is None:
        return "not judged"
    ms = times.interval(verdict)
    if ms is None:
        return f"{verdict.status}: {verdict.reason.splitlines()[0][:200]}"
    name, best = min(times.baselines.items(), key=lambda item: item[1])
    return f"{ms.value:.4f} ms ({best / ms.value:.2f}x over {name})"


def candidate_list(title: str, relatives: Iterable[KnownCandidate], times: ComparableTimes) -> str:
    """List candidates, one line each: step, language, plan and result."""
    lines = [
        f"- step {candidate.number}{f', {candidate.verdict.language}' if candidate.verdict else ''}: "
        f"{summarize(candidate.plan) or 'no plan'} -> "
        f"{describe_verdict(candidate.verdict, times)}"
        for candidate in relatives
    ]
    return "\n".join(["", f"# {title}", *lines, ""]) if lines else ""


def concurrent_steps(relatives: Iterable[KnownCandidate]) -> str:
    """List the steps in progress that start from the same kernel."""
    lines = [
        f"- step {candidate.number}: {summarize(candidate.plan) or 'no plan yet; expect the obvious change'}"
        for candidate in relatives
    ]
    return section("Changes of this kernel in progress: choose another transformation", "\n".join(lines))


def faster_than(
    parent: KnownCandidate, others: Iterable[KnownCandidate], times: ComparableTimes
) -> list[KnownCandidate]:
    """Return the candidates that are faster than the parent, in any language: a plan may ask for a
    rewrite."""
    parent_time = times.interval(parent.verdict)
    if parent_time is None:
        return []
    limit = parent_time.value
    return [other for other in others if (time := times.interval(other.verdict)) and time.value < limit]


def source_of_first(title: str, relatives: Sequence[KnownCandidate], times: ComparableTimes) -> str:
    """Show the first candidate with its source, to borrow from."""
    if not relatives:
        return ""
    candidate = relatives[0]
    result = describe_verdict(candidate.verdict, times)
    summary = f"Step {candidate.number} ({summarize(candidate.plan) or 'no plan'}; {result}):"
    return f"\n# {title}\n\n{summary}\n\n```python\n{candidate.source.strip()}\n```\n"


def donor_section(candidate: KnownCandidate, times: ComparableTimes) -> str:
    """Show the second kernel of a combination and the instructions for combining."""
    time, plan = describe_verdict(candidate.verdict, times), candidate.plan or "none"
    return "\n" + templates.prompt(
        "second", step=candidate.number, time=time, plan=plan, source=candidate.source.strip()
    )


def file_section(title: str, source: str) -> str:
    """Show a source file under a title; empty if there is none."""
    return f"# {title}\n```python\n{source.rstrip()}\n```" if source else ""


def hints_section(hints: Sequence[str]) -> str:
    """Show the user's hints; empty if there are none."""
    return section("Hints from the user: follow them where they apply", "\n".join(f"- {h}" for h in hints))


def section(title: str, text: str) -> str:
    """Put text under a title; empty if there is no text."""
    return f"\n# {title}\n{text.strip()}\n" if text.strip() else ""
