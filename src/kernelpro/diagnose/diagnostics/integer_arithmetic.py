"""More index arithmetic than work: division by run-time values, 64-bit addresses in the loop."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.hot_code import GLOBAL, MATRIX, TINY_BITS, HotCode
from kernelpro.diagnose.pipes import hot_code, time_saved
from kernelpro.records import Evidence, InstructionKind

ALU = "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active"
USUAL = 3.0
"""Integer instructions per useful one (arithmetic, memory access): the generated element-wise,
normalization, scan and transpose kernels of this project have 0.3 to 2.7."""
_USEFUL: tuple[InstructionKind, ...] = (
    *("fma32", "half", "fp64", *GLOBAL, "shared_load", "shared_store"),
    *("shuffle", "atomic", "shared_atomic"),
)
_ADDRESSING: tuple[InstructionKind, ...] = ("alu", "branch", "call", "convert", "special")
_MIN_SAVED = 0.05


def _analyze(context: DiagnosticContext) -> Match | None:
    hot = hot_code(context)
    integers, useful = hot.count("alu"), max(1.0, hot.count(*_USEFUL))
    if hot.count(*MATRIX, "tma") or integers <= USUAL * useful:
        return None
    divides = min(hot.count("special"), hot.count("convert")) > 0 or hot.count("call") > 0
    if not divides and _has_tiny_accesses(hot):
        return None  # narrow_access covers this: wider accesses share their addresses
    if not divides and context.part_share("conversions") > context.part_share("integer_instructions"):
        return None  # precision_conversions covers this: the conversions keep the SM busy
    surplus = 1 - useful / integers
    removed = {kind: surplus * hot.count(kind) for kind in _ADDRESSING}
    share = time_saved(context, hot, removed)
    if share < _MIN_SAVED:
        return None
    evidence = [
        Evidence(
            "integer instructions per arithmetic or memory instruction", round(integers / useful, 1), USUAL
        )
    ]
    if (utilization := context.metric_or_none(ALU)) is not None:
        evidence.append(Evidence("ALU pipe utilization", utilization, 60, "%"))
    kind = "division and remainder by run-time values" if divides else "address and index computation"
    return Match(
        evidence=tuple(evidence),
        cause=f"{integers:.0f} of {hot.instructions:.0f} instructions in the hot code are integer "
        f"arithmetic: {kind}",
        saved_share=share,
        basis=f"{surplus:.0%} of the integer instructions are beyond one per arithmetic or memory "
        "instruction, and the pipes are busier than memory",
        where=context.line_of("alu"),
    )


def _has_tiny_accesses(hot: HotCode) -> bool:
    widths = [(int(bits), n) for kind in GLOBAL for bits, n in hot.widths.get(kind, {}).items()]
    accesses = sum(n for _, n in widths)
    return accesses > 0 and sum(bits * n for bits, n in widths) / accesses <= TINY_BITS


DIAGNOSTIC = Diagnostic(
    name="integer_arithmetic",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger=f"more than {USUAL:g} integer instructions per arithmetic or memory instruction in the hot code, "
    "and the SM is busier than memory",
    remedy="no division by run-time values, 32-bit indices, loop-invariant code motion",
    gain_basis="time of the busiest pipe with and without the surplus, at least that of the memory traffic",
    advice=(
        "take rows and columns from the grid (blockIdx.y, program_id(1)) or increment them in the loop "
        "instead of dividing an index",
        "divide by constants (template parameters, tl.constexpr) or multiply by a precomputed reciprocal",
        "use 32-bit indices inside a block, with one 64-bit base pointer; hoist loop-invariant terms",
    ),
    metrics=(ALU,),
    symptom_of=("special_functions", "missing_reuse"),
    claims=(
        "integer_instructions",
        "control_flow",
        "special_functions",
        "conversions",
        "inactive_lanes",
        "waiting_for_results",
    ),
)
