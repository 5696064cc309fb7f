"""Plans how the judge divides a device's memory between itself, the baselines and the candidate.

`plan_memory` is a pure function of sizes. It tries a ladder of layouts, from the fastest to the smallest, and
returns the first that fits. If memory is short, it reduces speed and precision in this order, but never omits
a check:

 1. the caches of inputs and expected outputs shrink to the memory that is left;
 2. candidate and baselines get fewer buffer sets, and bursts become shorter or are omitted;
 3. expected outputs are computed in slices of the batch, if the reference allows that (slicing.py);
 4. candidate and baselines take turns: they share one set of inputs, and each side frees its memory before
    the other is called;
 5. the oracle runs in the task's own type instead of float64.

The smallest layout needs one eager call of the reference (inputs I, outputs O, parameters W; its peak P
includes all three), a second copy of I and O, two more of W, and a fixed part. Since P >= I + O + W, it fits
if

    2 P + W + contexts of three processes + cache flusher + scratch memory <= free memory

So the judge accepts every task whose reference fits twice, in addition to the parameters and the fixed part.
A CPU needs two more sets of inputs, because each process has its own files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernelpro.records import BadInput, Target

GB = 10**9
MAX_BURST_SETS = 16
"""Most buffer sets of a candidate, and so most calls of a burst: each call has inputs of its own."""
MAX_ROUND_SETS = 8
"""Most buffer sets of rounds, and most outputs that a process keeps. They vary the addresses of inputs and
outputs, which change a kernel's time by 1 % on an H200 (a transpose), and by 10 % on a CPU (a cumulative sum
down the columns of 4 MB)."""
_PLACED_BYTES = 64 << 20
"""On a CPU, inputs and outputs that are larger have so many pages that their placement averages out. They get
two buffer sets, because writing new memory takes time."""
MAX_SLICES = 64
_CONTEXT_BYTES = {"cuda": 700 << 20, "cpu": 300 << 20}
"""A process with torch: its context, libraries and their workspaces."""
_SCRATCH_BYTES = 600 << 20
"""Temporary memory of comparisons, which work in pieces (errors.py)."""
_CACHE_SHARE = 0.2
"""The largest share of the free memory for cached inputs and expected outputs."""
_SLACK = 1.05
"""Factor for allocators, which round up and split blocks."""


@dataclass(frozen=True)
class TaskSizes:
    """Bytes of a task."""

    inputs: int
    outputs: int
    parameters: int
    peak: int
    """Peak memory of one eager call in the task's own types, including inputs, outputs and parameters."""
    exact_call: int
    """Peak memory of one eager call in float64, including inputs and outputs, without parameters."""
    widening: float = 2.0
    """How many times larger values are in float64."""
    built_on_device: bool = False
    """The judge and the baselines' process construct the reference on the device, and keep that copy."""

    @property
    def working(self) -> int:
        """Bytes that a call needs for outputs and temporaries, beside its inputs and parameters."""
        return max(self.outputs, self.peak - self.inputs - self.parameters)

    @property
    def exact_peak(self) -> int:
        """Peak memory of one eager call in float64, including parameters."""
        return int(self.exact_call + self.widening * self.parameters)


@dataclass(frozen=True)
class Layout:
    """One rung of the ladder."""

    candidate_sets: int
    baseline_sets: int
    """0: baselines and guarded calls use the candidate's buffer sets."""
    slices: int = 1
    """Slices of the batch in which expected outputs are computed."""
    takes_turns: bool = False
    """Candidate and baselines free their memory before the other is called."""
    exact: bool = True
    """The oracle runs in float64."""

    @property
    def frees_before_check(self) -> bool:
        """The candidate frees its memory before its outputs are checked."""
        return self.takes_turns and self.slices == 1


@dataclass(frozen=True)
class MemoryPlan:
    """What fits into the memory of a device for one task."""

    layout: Layout
    free_bytes: int
    """Free memory before the judge allocated anything."""
    candidate_bytes: int
    """Memory left for a candidate, including its parameters, without its inputs."""
    cache_bytes: int
    """Memory for cached inputs and expected outputs."""
    burst_calls: int
    """Most calls of a burst; 0: no bursts."""
    retained_bytes: int = 0
    """Most memory for outputs that candidate and baselines keep at the judge's request."""
    most_candidate_bytes: int = 0
    """`candidate_bytes` of the plan that leaves most."""

    @property
    def given_up(self) -> str:
        """What the plan gave up because memory is short, in words; empty if nothing."""
        layout, parts = self.layout, list[str]()
        if layout.takes_turns:
            parts.append("candidate and baselines take turns in it")
        elif layout.candidate_sets < 2:
            parts.append("one set of inputs")
        if layout.slices > 1:
            parts.append(f"the oracle computes {layout.slices} slices of the batch one by one")
        if not layout.exact:
            parts.append("the oracle runs in the task's own type")
        return f"only {_gb(self.free_bytes)} of memory were free: {', '.join(parts)}" if parts else ""


@dataclass(frozen=True)
class Shortage:
    """What earlier plans for a task have shown."""

    failures: int = 0
    """How often memory ran out despite the plan; each failure makes the next plan smaller."""
    candidate_bytes: int = 0
    """The memory that a candidate needs, if a plan left less to it."""


class CandidateNeedsMemory(Exception):
    """The candidate needs more memory than the plan leaves to it, and another plan would leave more."""

    def __init__(self, nbytes: int):
        """`nbytes`: what it is known to need."""
        super().__init__(f"the candidate needs {_gb(nbytes)}")
        self.nbytes = nbytes


def plan_memory(
    task: str,
    sizes: TaskSizes,
    free: int,
    target: Target,
    flush_bytes: int,
    sliceable: bool,
    shortage: Shortage = Shortage(),
) -> MemoryPlan:
    """The plan with the first layout of the ladder that fits; raises BadInput if none does.

    `sliceable`: expected outputs can be computed in slices.
    """
    budget = int(free * 0.75**shortage.failures)
    ladder = list(_ladder(target, sliceable, sizes.inputs + sizes.outputs <= _PLACED_BYTES))
    plans = [
        _complete(sizes, layout, free, budget, target, flush_bytes)
        for layout in ladder
        if _needed(sizes, layout, target, flush_bytes) <= budget
    ]
    if plans:
        most = max(plan.candidate_bytes for plan in plans)
        least = min(shortage.candidate_bytes, most)
        plan = next(plan for plan in plans if plan.candidate_bytes >= least)
        return replace(plan, most_candidate_bytes=most)
    layout = min(ladder, key=lambda rung: _needed(sizes, rung, target, flush_bytes))
    needed = _needed(sizes, layout, target, flush_bytes)
    if needed > free:
        where = "the device" if target == "cuda" else "this machine"
        raise BadInput(
            f"task {task}: judging it needs {_gb(needed)} of memory, and {_gb(free)} of {where} are free: "
            f"inputs {_gb(sizes.inputs)}, outputs {_gb(sizes.outputs)}, one call of the reference "
            f"{_gb(sizes.peak)}; end other processes, or use smaller sizes"
        )
    return _complete(sizes, layout, free, free, target, flush_bytes)


def _ladder(target: Target, sliceable: bool, is_small: bool) -> Iterator[Layout]:
    """Layouts, in order of preference. `is_small`: the placement of inputs and outputs matters on a CPU."""
    slices = [2**n for n in range(1, MAX_SLICES.bit_length())] if sliceable else []
    if target == "cuda":
        for count in (MAX_BURST_SETS, MAX_ROUND_SETS, 4, 2):
            yield Layout(count, min(count, MAX_ROUND_SETS))
        yield from (Layout(2, 2, number) for number in slices)
    else:
        if is_small:
            yield Layout(MAX_ROUND_SETS, MAX_ROUND_SETS)
        yield Layout(2, 1)
    yield from (Layout(1, 1, number) for number in (1, *slices))
    alone = Layout(1, 0 if target == "cuda" else 1, takes_turns=True)
    yield from (replace(alone, slices=number) for number in (1, *slices))
    yield replace(alone, exact=False)


def _fixed(target: Target, flush_bytes: int) -> int:
    """Bytes that every layout needs: flusher, scratch memory and three processes (candidate, guarded calls,
    baselines)."""
    return 3 * _CONTEXT_BYTES[target] + _SCRATCH_BYTES + flush_bytes


def _needed(sizes: TaskSizes, layout: Layout, target: Target, flush_bytes: int) -> int:
    return int(_SLACK * _Parts(sizes, layout).largest()) + _fixed(target, flush_bytes)


class _Parts:
    """Bytes by user, without the fixed part.

    `prepared` and `weights` are all copies of the parameters: while the task is prepared, and afterwards (of
    the oracle, the candidate, and the baselines, which share one).
    """

    def __init__(self, sizes: TaskSizes, layout: Layout):
        self._sizes, self._layout = sizes, layout

        def retained(sets: int) -> int:  # outputs of earlier calls that a process keeps
            return (min(MAX_ROUND_SETS, max(1, sets)) - 1) * sizes.outputs

        guarded = 0 if layout.baseline_sets == 0 else 1
        self.regions = (layout.candidate_sets + layout.baseline_sets + guarded) * sizes.inputs
        self.retained_bytes = retained(layout.candidate_sets) + retained(layout.baseline_sets)
        self.candidate = sizes.working + retained(layout.candidate_sets)
        """For a candidate that needs as much as the reference."""
        self.baseline = sizes.working + retained(layout.baseline_sets)
        self.beside = 0 if layout.takes_turns else self.baseline
        """For the baselines while a candidate is called."""
        self.own = sizes.inputs + sizes.outputs
        """For the judge: the inputs of a call, and a copy of its outputs."""
        self.truth = int(sizes.exact_call / layout.slices) if layout.exact else sizes.working
        oracle = sizes.widening if layout.exact else 1.0
        built = sizes.built_on_device
        baselines = 0 if layout.takes_turns else 1 + built
        # the oracle's in both types, and one with operands rounded to fewer bits
        self.prepared = int((2 * oracle + layout.exact + built + baselines) * sizes.parameters)
        self.weights = int((oracle + built + 2 + built) * sizes.parameters)

    def largest(self) -> int:
        """Bytes of the stage that needs most."""
        return max(self._prepare(), self._compile(), self._call(), self._check())

    def _prepare(self) -> int:
        """Bytes while tolerance and probes are computed. Unless processes take turns, the baselines compile
        meanwhile."""
        sizes, layout = self._sizes, self._layout
        # operands rounded to fewer bits; the truths of two seeds
        rounded = sizes.widening * (sizes.inputs + 2 * sizes.outputs) / layout.slices
        derived = int(rounded) if layout.exact else sizes.inputs
        compiling = layout.baseline_sets * sizes.inputs + sizes.peak - sizes.parameters
        return self.prepared + self.own + self.truth + derived + (0 if layout.takes_turns else compiling)

    def _compile(self) -> int:
        """Bytes while the baselines compile on their own inputs. The judge holds inputs too, unless processes
        take turns."""
        held = max(1, self._layout.baseline_sets) + (not self._layout.takes_turns)
        return self.weights + held * self._sizes.inputs + self._sizes.peak - self._sizes.parameters

    def _call(self) -> int:
        return self.weights + self.regions + max(self.candidate + self.beside, self.baseline) + self.own

    def _check(self) -> int:
        processes = 0 if self._layout.frees_before_check else self.candidate + self.beside
        return self.weights + self.regions + processes + self.own + self.truth


def _complete(
    sizes: TaskSizes, layout: Layout, free: int, budget: int, target: Target, flush_bytes: int
) -> MemoryPlan:
    """The plan with this layout: divides the remaining memory between caches, bursts and the candidate."""
    parts, fixed = _Parts(sizes, layout), _fixed(target, flush_bytes)
    left = budget - _needed(sizes, layout, target, flush_bytes)
    cache = max(0, min(left // 2, int(_CACHE_SHARE * budget)))
    truth = 0 if layout.frees_before_check else parts.truth
    others = fixed + cache + int(_SLACK * (parts.weights + parts.regions + parts.beside + truth))
    # each call of a burst needs its inputs, its outputs in both children, whose allocators keep that memory,
    # and the judge's copy of the outputs
    calls = int((budget - others - parts.candidate) / (_SLACK * (sizes.inputs + 3 * sizes.outputs)))
    calls = min(layout.candidate_sets, calls) if target == "cuda" and not layout.takes_turns else 0
    candidate = free - others - int(_SLACK * parts.own) + sizes.parameters
    calls = calls if calls >= 2 else 0
    retained = parts.retained_bytes + 2 * calls * sizes.outputs
    return MemoryPlan(layout, free, max(0, candidate), cache, calls, retained)


def _gb(count: int) -> str:
    return f"{count / GB:.1f} GB"
