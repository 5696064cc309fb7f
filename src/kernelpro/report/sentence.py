"""The verdict of a run in words: what was won, over what, how sure, how right, how far from the floor."""

from __future__ import annotations

from typing import Any, Literal

from kernelpro.records import Interval, Outcome, Step, Verdict
from kernelpro.records.energy import amount, portion
from kernelpro.records.interval import share

_COMPILERS = {
    "torch.compile": "torch.compile's own output",
    "torch.compile max-autotune": "torch.compile's own output, max-autotune",
}
"""Authors whose code the compiler generated: nobody's invention, and said so wherever it is shown."""
_REFERENCE = "PyTorch"
"""The author of the reference's own code, where that is the fastest baseline."""
_BASELINES = {
    "eager_fp32": "PyTorch eager (FP32)",
    "eager_tf32": "PyTorch eager (TF32)",
    "compile": "torch.compile",
    "max_autotune": "torch.compile (max-autotune)",
}
STATES = {
    "passed": "passed",
    "wrong": "gave wrong results",
    "cheating": "cheated",
    "build_failed": "did not build",
    "crashed": "crashed",
    "timed_out": "timed out",
    "refused": "were refused",
    "not_scorable": "could not be scored",
    "duplicate": "repeated an earlier one",
    "no idea": "times the author had no idea",
    "no answer": "times no usable answer came",
}


def baseline(name: str) -> str:
    return _BASELINES.get(name, name)


def by(author: str) -> str:
    """Who wrote a step, for people."""
    if compiled(author):
        return f"the compiler ({_COMPILERS[author]})"
    return "PyTorch (the reference's own code)" if author == _REFERENCE else author or "nobody"


def compiled(author: str) -> bool:
    return author in _COMPILERS


def original(author: str) -> bool:
    """Whether somebody wrote it for this run: neither the compiler's nor the reference's own code."""
    return not compiled(author) and author != _REFERENCE


def times(x: Interval) -> str:
    return x.words("x")


def best_of(verdict: Verdict) -> str:
    """The hardest baseline to beat: the one that leaves the smallest speed-up; in noise not always the fastest."""
    return min(verdict.speedup, key=lambda name: verdict.speedup[name].value)


def over(verdict: Verdict) -> str:
    """How a step that passed compares, the same wherever it is told: `1.10x over torch.compile`, the hardest baseline."""
    hardest = best_of(verdict)
    return f"{verdict.speedup[hardest].value:.2f}x over {baseline(hardest)}"


def taken(verdict: Verdict) -> str:
    """A call's energy, where it was measured: `94.5 mJ, 0.812 of torch.compile's`."""
    energy = verdict.energy
    if energy is None or energy.refused:
        return ""
    return f"{amount(energy.joules['candidate'].value)}, {energy.ratio['energy'].value:.3f} of {baseline(energy.against)}'s"


def settled(step: Step) -> str:
    """A step in one line, for whoever looks on."""
    who = f"step {step.number} ({step.action}{f' of {step.parent}' if step.parent else ''}, by {step.author or 'nobody'})"
    if step.ms and step.verdict:
        told = (f"{step.ms:.4g} ms, {over(step.verdict)}", taken(step.verdict), step.plan)
        return f"{who}: {'; '.join(filter(None, told))}"
    why = (
        f": {step.verdict.reason}"
        if step.verdict
        else f": {step.note.removeprefix(f'{step.state}: ')}"
        if step.note
        else ""
    )
    return f"{who}: {step.state}{why}"


def laid(ground: dict[str, Any]) -> str:
    """What a run is held against, in one line."""
    known = ", ".join(f"{name} {ms:.4g} ms" for name, ms in ground["baselines"].items())
    return f"baselines: {known}; floor {ground['floor_ms']:.4g} ms"


def result(verdict: Verdict) -> Literal["faster", "slower", "unclear"]:
    """The judge's decision, which is about the fastest baseline, where the hardest one does not contradict it."""
    if verdict.faster == "no":
        return "slower"
    return "faster" if verdict.faster == "yes" and verdict.speedup[best_of(verdict)].low > 1 else "unclear"


def won(verdict: Verdict, step: Step) -> str:
    """The headline of a run with a winner."""
    hardest = best_of(verdict)
    ratio = verdict.speedup[hardest]
    if compiled(step.author):
        lead = (
            f"No candidate beat the compiler: {_COMPILERS[step.author]} (step {step.number}) is the fastest, "
        )
    elif step.author == _REFERENCE:
        lead = f"No candidate beat the reference: PyTorch's own code (step {step.number}) is the fastest, "
    else:
        lead = f"Step {step.number} is "
    if result(verdict) == "faster":
        middle = f"{times(ratio)} as fast as {baseline(hardest)}, the hardest baseline to beat"
    elif result(verdict) == "slower":
        middle = f"correct but slower than {baseline(hardest)}, the hardest baseline to beat ({times(ratio)})"
    else:
        middle = (
            f"as fast as {baseline(hardest)}, the hardest baseline to beat, within the noise ({times(ratio)})"
        )
    rest = [f"{times(x)} over {baseline(name)}" for name, x in verdict.speedup.items() if name != hardest]
    return lead + middle + (f"; {', '.join(rest)}" if rest else "") + "."


def outcome(verdict: dict[str, Any]) -> str:
    """The report's verdict in a word or two; a win of code that nobody wrote is not called one."""
    if verdict["original"] is False:
        return f"no candidate beat {'the compiler' if verdict['compiler'] else 'the reference'}"
    return str(verdict["result"])


def unwrapped(verdict: Verdict, step: Step) -> str:
    """Why the compiler's own code can be faster than the compiler."""
    beaten = (
        compiled(step.author)
        and result(verdict) == "faster"
        and best_of(verdict) in ("compile", "max_autotune")
    )
    return "They are the same kernels, called without torch.compile's guards and wrapper." if beaten else ""


def correct(verdict: Verdict) -> str:
    if verdict.error is None or verdict.tolerance is None:
        return ""
    of = f", {share(verdict.error_of_limit)} of what is allowed" if verdict.error_of_limit is not None else ""
    return f"Its largest relative error is {verdict.error:.1e} (tolerance {verdict.tolerance:.1e}){of}."


def distance(verdict: Verdict) -> str:
    if not verdict.floor_ms:
        return ""
    taken = verdict.times["candidate"].value
    text = (
        f"It takes {taken:.4g} ms; this device's measured ceilings put the floor at {verdict.floor_ms:.4g} ms"
    )
    if taken < verdict.floor_ms:
        return f"{text}, which it passes: part of its data was still in a cache."
    return f"{text} ({share(verdict.floor_ms / taken)} of it is reached)."


def joules(energy: dict[str, Any]) -> str:
    """What a call costs, beside a baseline's; or why that is not told."""
    if energy["refused"]:
        return f"not told: {energy['refused']}"
    taken, power, ratio = energy["joules"]["candidate"], energy["watts"]["candidate"], energy["ratio"]
    return (
        f"{millijoules(taken['value'])} mJ a call at {power['value']:.4g} W; {of(ratio['energy'], energy['against'])} energy, "
        f"energy-delay {portion(Interval(**ratio['edp']))}"
    )


def millijoules(joules: float) -> str:
    return f"{1e3 * joules:.4g}"


def of(ratio: dict[str, float], name: str) -> str:
    """A ratio to a baseline's: `0.850 [0.840, 0.860] of torch.compile's`."""
    return f"{portion(Interval(**ratio))} of {baseline(name)}'s"


def spent(cost: dict[str, Any]) -> str:
    """Money, tokens and calls in words."""
    return f"${cost['dollars']:.3f}, {cost['tokens_in']} tokens in, {cost['tokens_out']} out, {cost['calls']} calls"


def scaled(value: float) -> str:
    """Three digits and a prefix, to be followed by a unit: `63.2 G`."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


def lost(outcome: Outcome, counts: dict[str, int]) -> str:
    """The headline of a finished run without a winner."""
    written = {state: many for state, many in counts.items() if state not in ("no idea", "no answer")}
    tried = sum(written.values())
    if many := len(outcome.finalists):
        best = (
            "the best candidate did not hold up"
            if many == 1
            else f"none of the {many} best candidates held up"
        )
        return f"No winner: {best} when judged again."
    if not tried:
        return "No winner: no candidate was written."
    return f"No winner: none of {tried} candidates passed ({counted(written)})."


def counted(counts: dict[str, int]) -> str:
    """`3 gave wrong results, 2 did not build`."""
    return ", ".join(
        f"{many} {STATES.get(state, state)}" for state, many in sorted(counts.items(), key=lambda c: -c[1])
    )


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def promise(finding: dict[str, Any]) -> str:
    """What a finding expects: times as fast, or a share of the energy."""
    factor = float(finding["gain"])
    return f"{factor:.2f}x" if finding["objective"] == "speed" else f"{1 - 1 / factor:.0%} less energy"
