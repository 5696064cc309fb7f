"""What each role sees of a run, most valuable first, within a budget of tokens; the same assignment gives the same text.

    design   task, ground, direction; leaders in a line each (to be different from); memory, knowledge
    plan     task, ground, the kernel, guidance, evidence; what is made of it at the same time; leaders; memory (what was made of
             it before, and elsewhere), knowledge; the source of the fastest kernel, where it is faster, or of the second
             kernel of a combination
    code     task, ground, plan, the marked file; children; cousins (working patches to borrow); memory
    debug    task, ground, plan, the file, the failure; siblings; memory

A section has a cap of its own. Where all of them together exceed the window, they are cut from the least valuable on. Of a
marked file that is too long, the spans stay and what is far from them goes (anchors.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kernelpro.authors.author import Assignment, Known
from kernelpro.authors.team import templates
from kernelpro.memory.wording import gist
from kernelpro.records import Status, Verdict

CHARACTERS_PER_TOKEN = 4
WINDOW_TOKENS = 24_000
"""Of a prompt without its system part: a long kernel (6,000), its evidence (2,500) and its relatives fit several times over."""
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
_CAPS |= {"leaders": 1_500, "memory": 1_000, "knowledge": 500}
FILE = CHARACTERS_PER_TOKEN * _CAPS["source"] - 1_000
"""Characters of a marked file, with room for its marks and its title."""
_ORDER = [
    *(
        "source",
        "task",
        "failure",
        "plan",
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
"""Most valuable first."""
_PRODUCT = re.compile(r"\.(\w*mm\w*|matmul|linear|einsum|conv\w*|\w*attention\w*)\.")
_PRECISION = {
    "fp32": "every product and sum in float32; TF32 and half precision are called wrong.",
    "tf32": "matrix products may use TF32 (float32 accumulation); everything else in float32.",
    "native": "the task's own type for storage; accumulate in float32.",
}


def precision_words(precision: str) -> str:
    return _PRECISION.get(precision, "")


def fit(sections: dict[str, str], tokens: int = WINDOW_TOKENS) -> dict[str, str]:
    """Sections cut to their caps, then from the least valuable on until all fit."""
    capped = {name: cut(text, _CAPS.get(name, 4_000)) for name, text in sections.items()}
    room = tokens * CHARACTERS_PER_TOKEN
    kept = {}
    for name in sorted(capped, key=lambda n: _ORDER.index(n) if n in _ORDER else len(_ORDER)):
        kept[name] = cut(capped[name], max(0, room) // CHARACTERS_PER_TOKEN)
        room -= len(kept[name])
    return kept


def cut(text: str, tokens: int) -> str:
    """The text, or its beginning with a note of how much was left out."""
    room = tokens * CHARACTERS_PER_TOKEN
    if len(text) <= room:
        return text
    if room < 200:
        return ""
    kept = text[: room - 60].rpartition("\n")[0]
    return f"{kept}\n[... {len(text) - len(kept)} characters left out]"


def ground(assignment: Assignment) -> str:
    """Device, ceilings, baselines, floor."""
    hardware = assignment.hardware
    lines = [f"- target: {assignment.target}, {hardware.get('name', 'unknown device')}"]
    if bandwidth := hardware.get("bandwidth"):
        cached = hardware.get("cached_bandwidth") or 0.0
        near = f", {_amount(cached)}B/s where everything stays in the caches" if cached > bandwidth else ""
        lines.append(
            f"- measured ceilings: a copy moves {_amount(bandwidth)}B/s (read + written){near}"
            + _rates(hardware.get("rates", {}))
        )
    lines += [f"- {name}" for name in hardware.get("facts", ())]
    times = ", ".join(f"{name} {ms:.4f} ms" for name, ms in assignment.baselines.items())
    lines.append(f"- baselines: {times}; the fastest of them is the time to beat")
    if assignment.objective:
        lines.append(f"- objective: {assignment.objective}")
    least = "inputs and outputs moved once, the fewest operations, at those ceilings; it may be out of reach"
    lines.append(f"- floor: {assignment.floor_ms:.4f} ms ({least})")
    limit = (
        f"; relative error (norm) up to {assignment.tolerance:.1e} on inputs as given"
        if assignment.tolerance
        else ""
    )
    lines.append(f"- precision: {assignment.precision}{limit}")
    return "\n".join(lines)


def other_directions(directions: Iterable[str], asked: int) -> str:
    """What others are asked for. `asked`: how many have been asked for the very same."""
    texts = [f"({text})" for text in directions]
    lines = [f"Others are at work on the same task, independently: {' '.join(texts)}"] if texts else []
    if asked:
        lines.append(
            "Others were asked for the very same: take another decomposition than the one that comes to mind first."
        )
    return "\n".join(lines)


def multiplies(assignment: Assignment) -> bool:
    """Whether the task has matrix products or convolutions; also where its graph is not known."""
    if assignment.graph is None:
        return True
    return any(_PRODUCT.search(node.op) for node in assignment.graph.nodes)


def _rates(rates: dict[str, float]) -> str:
    return "".join(f", {name} matrix products {_amount(rate)}FLOP/s" for name, rate in rates.items())


def _amount(value: float) -> str:
    """With the unit's prefix: `4.3 T`, `22 G`."""
    return f"{value / 1e12:.3g} T" if value >= 1e12 else f"{value / 1e9:.3g} G"


def task(assignment: Assignment) -> str:
    return f"The reference, which defines what is right:\n\n```python\n{assignment.task.source.strip()}\n```"


def outcome(verdict: Verdict | None, baselines: dict[str, float]) -> str:
    """How a candidate ended, in a line. Its factor is over the run's baselines, which are the same for all: those that were timed
    beside it may have been on another machine."""
    if verdict is None:
        return "not judged"
    if verdict.status is not Status.PASSED:
        return f"{verdict.status}: {verdict.reason.splitlines()[0][:200]}"
    name, best = min(baselines.items(), key=lambda item: item[1])
    ms = verdict.times["candidate"].value
    return f"{ms:.4f} ms ({best / ms:.2f}x over {name})"


def summaries(title: str, relatives: Iterable[Known], baselines: dict[str, float]) -> str:
    lines = [
        f"- step {known.number}{f', {known.verdict.language}' if known.verdict else ''}: {gist(known.plan) or 'no plan'} -> "
        f"{outcome(known.verdict, baselines)}"
        for known in relatives
    ]
    return "\n".join(["", f"# {title}", *lines, ""]) if lines else ""


def beside(relatives: Iterable[Known]) -> str:
    """Steps under way from the same kernel."""
    lines = [
        f"- step {known.number}: {gist(known.plan) or 'not planned yet; expect the most obvious'}"
        for known in relatives
    ]
    return titled(
        "Being made of this kernel at the same time: choose another transformation", "\n".join(lines)
    )


def faster(parent: Known, others: Iterable[Known]) -> list[Known]:
    """Of others, those that are faster than the parent, in whatever language: a plan may rewrite."""
    if not (parent.verdict and parent.verdict.times):
        return []
    ms = parent.verdict.times["candidate"].value
    return [
        known
        for known in others
        if known.verdict and known.verdict.times and known.verdict.times["candidate"].value < ms
    ]


def first(title: str, relatives: Sequence[Known], baselines: dict[str, float]) -> str:
    """The first of them with its text, to borrow from."""
    if not relatives:
        return ""
    known = relatives[0]
    told = f"Step {known.number} ({gist(known.plan) or 'no plan'}; {outcome(known.verdict, baselines)}):"
    return f"\n# {title}\n\n{told}\n\n```python\n{known.source.strip()}\n```\n"


def second(known: Known, baselines: dict[str, float]) -> str:
    """The other kernel of a combination, and what is asked for."""
    time, plan = outcome(known.verdict, baselines), known.plan or "none"
    return "\n" + templates.prompt(
        "second", step=known.number, time=time, plan=plan, source=known.source.strip()
    )


def file(title: str, source: str) -> str:
    return f"# {title}\n```python\n{source.rstrip()}\n```" if source else ""


def titled(title: str, text: str) -> str:
    return f"\n# {title}\n{text.strip()}\n" if text.strip() else ""
