"""Hot loops on the CPU that share a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
"""Times the floor: closer, memory is busy all the time."""


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
        """Share of the time that goes, where `saved` is the share of a loop's own time."""
        return sum(loop.share * saved(loop) for loop in self.loops)


def hot_loops(context: DiagnosticContext, has_problem: Callable[[CpuLoop], object]) -> HotLoops | None:
    """Loops with this problem, where they take a tenth of the time or more."""
    loops = HotLoops(tuple(loop for loop in context.cpu.loops if has_problem(loop)))
    return loops if loops.share >= MIN_SHARE else None


def own_calls(loop: CpuLoop) -> tuple[str, ...]:
    """Functions that the loop calls and that neither libm nor the OpenMP runtime provides."""
    return tuple(
        name
        for name in loop.calls
        if name not in loop.math and not name.startswith(("GOMP_", "omp_", "__kmpc_", "__aarch64_", "mem"))
    )


def require_samples(context: DiagnosticContext) -> None:
    """Raises MissingData where native code was not sampled."""
    if not context.cpu.sampled:
        raise MissingData("samples of where time goes in native code")
