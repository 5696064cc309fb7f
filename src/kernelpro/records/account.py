"""The time account of a call: its parts, which add up to the measured time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernelpro.records.base import Record

PartKind = Literal[
    # both targets
    "floor",
    "host",
    "double_precision",
    # CUDA, outside kernels
    "gaps",
    "copies",
    # CUDA, memory
    "dram_traffic",
    "cache_traffic",
    "wasted_sectors",
    "shared_memory",
    "bank_conflicts",
    "atomics",
    "spills",
    # CUDA, instructions
    "integer_instructions",
    "conversions",
    "special_functions",
    "arithmetic",
    "matrix_instructions",
    "memory_instructions",
    "exchange",
    "synchronization",
    "control_flow",
    "inactive_lanes",
    "instructions",
    # CUDA, waiting
    "idle_sms",
    "waiting_for_memory",
    "waiting_for_memory_queue",
    "waiting_for_shared_memory",
    "waiting_at_barriers",
    "waiting_at_fences",
    "waiting_for_pipes",
    "waiting_for_results",
    "waiting_for_instructions",
    "waiting_for_stores",
    "waiting",
    "not_counted",
    # CPU
    "torch_operators",
    "operating_system",
    "idle_cores",
    "thread_coordination",
    "math_functions",
    "scalar_code",
    "strided_access",
    "indirect_access",
    "divisions",
    "dependency_chains",
    "vector_code",
    "native_code",
]


@dataclass(frozen=True)
class AccountPart(Record):
    """A part of a call's time."""

    part: PartKind
    """What the time is spent on (docs/reference/time-account.md)."""
    ms: float
    """Estimated duration in milliseconds."""
    low: float
    """Lower bound of `ms`, given the uncertainty of the device model."""
    high: float
    """Upper bound of `ms`."""
    kernel: str = ""
    """The GPU kernel that spends the time; empty for parts of the whole call, and on the CPU."""
    lines: tuple[str, ...] = ()
    """Source lines that cause it, most expensive first."""
