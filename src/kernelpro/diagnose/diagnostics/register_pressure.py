"""Register pressure: with so many registers per thread, too few warps fit an SM to hide latency."""

from __future__ import annotations

from kernelpro.diagnose.account import WAITING_PARTS
from kernelpro.diagnose.counters import ISSUE_ACTIVE
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.occupancy import LOW, kernel_occupancy, latency_hiding_gain, registers_per_thread
from kernelpro.records import Evidence


def _analyze(context: DiagnosticContext) -> Match | None:
    occupancy = kernel_occupancy(context)
    gain = latency_hiding_gain(context, occupancy) if occupancy.limiter == "registers" else None
    if gain is None:
        return None
    registers = registers_per_thread(context.kernel)
    spilled = context.kernel.code.spilled_bytes if context.kernel.code else 0
    return Match(
        evidence=(
            Evidence("registers per thread", registers),
            percent("theoretical occupancy", occupancy.share, LOW),
            *((Evidence("spilled bytes", spilled, 0, "B"),) if spilled else ()),
        ),
        cause=f"{registers} registers per thread limit the kernel to {occupancy}: too few warps to hide "
        f"latency{context.launch_caveat}",
        saved_share=gain[0],
        basis=gain[1],
    )


DIAGNOSTIC = Diagnostic(
    name="register_pressure",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"registers limit the theoretical occupancy to less than {LOW:.0%}, no unit is utilized more "
    "than 65 %, and the kernel does not use tensor cores; without counters, the call must also take 1.5x its "
    "floor",
    remedy="fewer live values per thread; launch bounds",
    gain_basis="Little's law: the rate grows with the warps, up to 50 % occupancy, until a unit saturates; "
    "15 % without counters",
    advice=(
        "keep fewer values live per thread: a smaller register tile, less unrolling, recomputation",
        "split independent parts of the kernel, or distribute a thread's work over more threads",
        "set __launch_bounds__(threads, blocks) or maxrregcount, as long as nothing spills",
    ),
    metrics=(ISSUE_ACTIVE,),
    claims=("spills", "cache_traffic", *WAITING_PARTS),
)
