"""The profile of a candidate on the CPU: its machine code, and where the time of its calls goes.

lab/profile/cpu.py measures these records. None means that a value could not be measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kernelpro.records.base import Record

CpuInstructionKind = Literal[
    "scalar_float",
    "vector_float",
    "fma",
    "double",
    "convert",
    "division",
    "integer_division",
    "load",
    "store",
    "gather",
    "atomic",
    "branch",
    "call",
]
"""Kinds of CPU instructions; lab/profile/cpu_instructions.py assigns them. An instruction can have several
kinds: `vdivpd` is `vector_float`, `division` and `double`, and also `load` if an operand is in memory.
`convert` is a conversion between float and double. `gather` includes scatters, and loads and stores of one
lane of a vector."""
_USUAL_BITS = 256
"""Vector width that g++ and clang++ use by default on CPUs with 512-bit vectors."""


@dataclass(frozen=True)
class MachineLoop(Record):
    """A loop in the machine code. All counts are static: per iteration. The fields from `strided` on are
    set for innermost loops only."""

    begin: int = 0
    """Address of the first instruction."""
    end: int = 0
    """Address of the last instruction."""
    innermost: bool = False
    """Whether it contains no other loop."""
    nest: int = 0
    """Identifies the outermost loop around this one in its function."""
    instructions: int = 0
    """Number of instructions."""
    mix: dict[CpuInstructionKind, int] = field(default_factory=dict)
    """Number of instructions by kind."""
    bits: int = 0
    """Width of the vector arithmetic in bits; 0: scalar."""
    calls: dict[str, int] = field(default_factory=dict)
    """Number of calls by function name."""
    lines: dict[str, int] = field(default_factory=dict)
    """Number of instructions by source line."""
    strided: int = 0
    """Memory accesses with a stride of 1 KiB or more, or with a stride held in a register."""
    strided_bytes: int = 0
    """Bytes of the strided accesses."""
    strided_stores: int = 0
    """Number of stores among the strided accesses."""
    streamed: int = 0
    """Other memory accesses whose address advances."""
    streamed_bytes: int = 0
    """Bytes of the streamed accesses."""
    chain: int = 0
    """Length of the longest dependency chain of scalar additions in one iteration."""
    accumulators: int = 0
    """Number of independent chains of scalar additions."""
    fixed_divisors: int = 0
    """Number of divisions by a loop-invariant value."""
    updates: int = 0
    """Number of values that the loop loads, changes and stores back."""
    carried: int = 0
    """Number of those at a loop-invariant address: each iteration waits for the store of the previous one."""
    indirect: int = 0
    """Memory accesses at an index that the loop loads from memory."""

    def count(self, *kinds: CpuInstructionKind) -> int:
        """The number of instructions of these kinds."""
        return sum(self.mix.get(kind, 0) for kind in kinds)


@dataclass(frozen=True)
class CpuLoop(MachineLoop):
    """An innermost loop with its share of the time."""

    file: str = ""
    """The shared library."""
    function: str = ""
    """Name of the function."""
    where: str = ""
    """Source location: `kernel.cpp:12`."""
    text: str = ""
    """Text of the source line."""
    share: float = 0.0
    """Share of the working time, 0 to 1. Time spent waiting in the OpenMP runtime does not count."""
    math: tuple[str, ...] = ()
    """Names of libm functions that the loop calls."""
    remainder: bool = False
    """Whether it is the scalar remainder of a vectorized loop."""
    parallel: bool = False
    """Whether the loop is in an OpenMP region."""
    reasons: tuple[str, ...] = ()
    """Why the compiler did not vectorize the loop."""


@dataclass(frozen=True)
class CpuFunction(Record):
    """A function of the candidate's shared libraries."""

    file: str = ""
    """The shared library."""
    name: str = ""
    begin: int = 0
    """Address of the first instruction."""
    end: int = 0
    """Address of the last instruction."""
    instructions: int = 0
    """Number of instructions."""
    mix: dict[CpuInstructionKind, int] = field(default_factory=dict)
    """Number of instructions by kind."""
    calls: dict[str, int] = field(default_factory=dict)
    """Number of calls by function name."""
    loops: tuple[MachineLoop, ...] = ()
    """All loops, inner ones included."""


@dataclass(frozen=True)
class VectorizationRemark(Record):
    """Why the compiler did not vectorize a loop."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True)
class CpuCode(Record):
    """The machine code of the candidate's shared libraries."""

    functions: tuple[CpuFunction, ...] = ()
    remarks: tuple[VectorizationRemark, ...] = ()


@dataclass(frozen=True)
class ThreadTime(Record):
    """CPU time of one thread, per call."""

    cpu_ms: float = 0.0
    """CPU time in ms."""
    work_ms: float = 0.0
    """CPU time in ms without waiting in the OpenMP runtime and without the Python interpreter."""


@dataclass(frozen=True)
class OperatorTime(Record):
    """Time of one torch operator, per call."""

    name: str
    count: int
    """How often the operator is called."""
    ms: float
    """Time of all these calls together, in ms."""


@dataclass(frozen=True)
class CpuSamples(Record):
    """Samples of the program counter. All times are nanoseconds of CPU time."""

    count: int = 0
    """Number of samples."""
    modules: dict[str, int] = field(default_factory=dict)
    """Time by shared library, without waiting in the OpenMP runtime."""
    threads: dict[str, dict[str, int]] = field(default_factory=dict)
    """Time by thread and state: `work`, `host` (the Python interpreter) or `wait`."""
    addresses: dict[str, dict[str, int]] = field(default_factory=dict)
    """Time by the candidate's shared library and by address in it."""


@dataclass(frozen=True)
class CpuRun(Record):
    """Observed calls. Counts and times are per call; times are milliseconds."""

    calls: int = 0
    """Number of observed calls."""
    call_ms: float | None = None
    """Median duration."""
    best_ms: float | None = None
    """Shortest duration."""
    native_ms: float | None = None
    """Median time in the candidate's native functions."""
    native_calls: float | None = None
    """Calls of native functions."""
    user_ms: float | None = None
    """User CPU time of all threads."""
    system_ms: float | None = None
    """System CPU time of all threads."""
    cpu_ms: float | None = None
    """User and system CPU time."""
    concurrency: float | None = None
    """CPU time over wall time: the mean number of running threads."""
    minor_faults: float | None = None
    """Page faults that needed no disk access."""
    voluntary_switches: float | None = None
    """Context switches because a thread waited."""
    involuntary_switches: float | None = None
    """Context switches because a thread was preempted."""
    threads: tuple[ThreadTime, ...] = ()
    """Busiest first."""
    effective_threads: float | None = None
    """Work of all threads over the work of the busiest thread."""
    alone_ms: float | None = None
    """CPU time of the best call with one OpenMP thread; None on a single core."""
    flushed_ms: float | None = None
    """The same with subnormal numbers flushed to zero; None if the processor cannot do that."""
    alone_samples: CpuSamples | None = None
    """Samples of the calls with one OpenMP thread, without addresses."""
    operators: tuple[OperatorTime, ...] | None = None
    """torch operators, longest first."""
    samples: CpuSamples | None = None
    counters: dict[str, float] = field(default_factory=dict)
    """Hardware counters by perf's names: cycles, instructions, cache_references, cache_misses, branches,
    branch_misses."""


@dataclass(frozen=True)
class CpuShares(Record):
    """Where the CPU time goes: shares from 0 to 1."""

    native: float = 0.0
    """The candidate's shared libraries."""
    libm: float = 0.0
    """Math functions of the C library."""
    torch: float = 0.0
    """torch's libraries."""
    libc: float = 0.0
    """The rest of the C library: copies, fills, allocation."""
    host: float = 0.0
    """The Python interpreter and everything else."""


@dataclass(frozen=True)
class FunctionShare(Record):
    """A sampled function of the candidate."""

    name: str
    share: float
    """Share of the working time, 0 to 1."""


@dataclass(frozen=True)
class Sweep(Record):
    """An outermost loop and the loops that it calls: one pass over the data."""

    where: str = ""
    """Source location of the outermost loop."""
    function: str = ""
    """The function that contains it."""
    share: float = 0.0
    """Share of the working time, 0 to 1."""


@dataclass(frozen=True)
class CpuProfile(Record):
    """Machine code and observed calls, combined."""

    cores: int
    """Cores that the process may use."""
    vector_bits: int
    """Width of the CPU's widest vectors, in bits."""
    machine: str = ""
    """Architecture: `x86_64`, `aarch64`."""
    page_bytes: int = 4096
    """Size of a memory page."""
    static: CpuCode = field(default_factory=CpuCode)
    """The machine code."""
    dynamic: CpuRun = field(default_factory=CpuRun)
    """The observed calls."""
    sampled: bool = False
    """Whether the loops' shares were sampled; otherwise they are estimated from each loop's static cost."""
    shares: CpuShares = field(default_factory=CpuShares)
    """Shares by library."""
    functions: tuple[FunctionShare, ...] = ()
    """Sampled functions, by share."""
    loops: tuple[CpuLoop, ...] = ()
    """Innermost loops, by share."""
    sweeps: tuple[Sweep, ...] = ()
    """Passes over the data, by share."""

    @property
    def lanes(self) -> int:
        """The number of float32 values in a vector, for the vectors that compilers use: at most 256 bits
        unless the candidate's code has wider ones."""
        used = max((loop.bits for function in self.static.functions for loop in function.loops), default=0)
        return max(used, min(self.vector_bits, _USUAL_BITS)) // 32
