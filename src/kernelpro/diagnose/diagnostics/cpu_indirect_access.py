"""Indirect access: the inner loop reads or writes through a table of indices."""

from __future__ import annotations

from kernelpro.diagnose.cpu_loops import MIN_SHARE, hot_loops
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import CpuLoop, Evidence

_SLOWER = 0.875
"""Time of a loop through an index table in cache over that of a contiguous loop, per float of a vector.
Measured: 2.9x for a sum and 4x for a map with four floats, 5x to 8x with eight."""


def _analyze(context: DiagnosticContext) -> Match | None:
    loops = hot_loops(context, _is_indirect)
    if loops is None:
        return None
    slower = _SLOWER * context.cpu.lanes
    return Match(
        evidence=(
            percent("time in loops that access memory through an index", loops.share, MIN_SHARE),
            Evidence("indirect accesses per iteration of the hot loop", loops.worst.indirect, 0),
            Evidence("instructions per iteration", loops.worst.instructions),
        ),
        cause="the hot loop loads an index for each element: it makes scattered single accesses instead of "
        "contiguous vector accesses",
        saved_share=loops.share * (1 - 1 / slower),
        basis=f"{loops.share:.0%} of the time is in such loops; contiguous loops take about 1/{slower:.1f} "
        "of it",
        where=loops.worst.where,
    )


def _is_indirect(loop: CpuLoop) -> object:
    scatters = loop.updates or loop.count("atomic")  # sums by index: the task needs the index
    return loop.indirect and not scatters


DIAGNOSTIC = Diagnostic(
    name="cpu_indirect_access",
    level="kernel",
    target="cpu",
    analyze=_analyze,
    trigger="loops with at least a tenth of the time whose accesses take their address from an index that "
    "the loop loads (sums by index excepted)",
    remedy="contiguous inner loops: permute the data once, or loop over rows of the gathered dimension",
    gain_basis="the loops' time beyond that of contiguous loops",
    advice=(
        "apply the permutation once (to the parameters, or to a row in a small buffer), and access "
        "contiguous memory in the inner loop",
        "where the index selects rows, keep it in the outer loop and copy or compute whole rows",
        "sort or block the indices, so that neighbors share cache lines",
    ),
    claims=("indirect_access",),
)
