"""Hot loops on the CPU that share a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kernelpro.diagnose.account.cpu import sampled_scale
from kernelpro.diagnose.account.loop_time import with_outside_time, without_overlap
from kernelpro.diagnose.diagnostic import DiagnosticContext, MissingData
from kernelpro.records import CpuLoop

MIN_SHARE = 0.1
"""Share of the time from which loops with a problem are worth reporting."""
MIN_PASS_SHARE = 0.08
"""Share of the time from which a loop counts as a pass over the data."""
MAX_CHAINS = 2
"""An addition takes 2 to 4 cycles and two can start per cycle: fewer than four independent sums leave the
units idle."""
FAR = 1.3
"""Call time over the floor: below, memory is busy all the time."""


@dataclass(frozen=True)
class HotLoops:
    """Loops with the same problem, longest first."""

    loops: tuple[CpuLoop, ...]

    @property
    def share(self) -> float:
        """Share of the time in these loops."""
        return sum(loop.share for loop in self.loops)

    @property
    def worst(self) -> CpuLoop:
        """The loop with the largest share."""
        return self.loops[0]

    def weighted(self, saved: Callable[[CpuLoop], float]) -> float:
        """Share of the time that is saved; `saved` gives the share of a loop's own time."""
        return sum(loop.share * saved(loop) for loop in self.loops)


def hot_loops(
    context: DiagnosticContext, has_problem: Callable[[CpuLoop], object], whole: bool = True
) -> HotLoops | None:
    """Loops with this problem; None if they take less than a tenth of the time in which threads work.

    Their shares are those of the call: less than of that time, if threads coordinate. `whole`: with the time
    of their code elsewhere (`with_outside_time`).
    """
    loops = with_outside_time(context.cpu) if whole else without_overlap(context.cpu.loops)
    problem = HotLoops(tuple(loop for loop in loops if has_problem(loop)))
    if problem.share < MIN_SHARE:
        return None
    scale = share_of_call(context)
    return HotLoops(tuple(replace(loop, share=scale * loop.share) for loop in problem.loops))


def share_of_call(context: DiagnosticContext) -> float:
    """Share of a call that a sampled share of 1 stands for: the rest is page faults and coordination."""
    return sampled_scale(context.profile, context.cpu) if context.cpu.sampled else 1.0


_MISS_NS = 3.0
"""Core time of an iteration from which its strided accesses miss the first caches."""


def interleaves(context: DiagnosticContext, loop: CpuLoop) -> bool:
    """Whether the loop's strided accesses are its updates: an array in which threads have every n-th element.

    With an array of its own, each thread walks contiguous memory. Such strides are short: where elements take
    as long as cache misses, the loop walks down columns instead, unless threads slow each other down.
    """
    if not (loop.updates > 0 and loop.strided == 2 * loop.updates and loop.parallel):
        return False
    elements = max(context.work.read_bytes, context.work.written_bytes) / 4
    core_ns = 1e6 * context.profile.time_ms * loop.share * context.cpu.cores
    return core_ns < _MISS_NS * elements or inflation(context) >= INTERLEAVED


INFLATED, INTERLEAVED = 1.4, 1.15
"""CPU time of all threads over that of one thread alone. Shared caches and memory account for less in
loops of scalar updates. Less is enough where each thread updates every n-th element of an array."""


def inflation(context: DiagnosticContext) -> float:
    """CPU time of all threads over that of one thread alone."""
    run = context.cpu.dynamic
    return sum(thread.work_ms for thread in run.threads) / run.alone_ms if run.alone_ms else 1.0


def require_samples(context: DiagnosticContext) -> None:
    """Raises MissingData where native code was not sampled."""
    if not context.cpu.sampled:
        raise MissingData("samples of where time goes in native code")
