"""The profile of a candidate on the CPU: its machine code, and where the time of its calls goes.

lab/profile/cpu.py measures these records; None marks what could not be measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelpro.records.base import Record

_USUAL_BITS = 256
"""Width of vectors that g++ and clang++ choose by default on processors with 512 bits."""


@dataclass(frozen=True)
class MachineLoop(Record):
    """A loop in the machine code. The counts from `strided` on are known of innermost loops only."""

    begin: int = 0
    """Address of the first instruction."""
    end: int = 0
    innermost: bool = False
    nest: int = 0
    """Identifies the outermost loop around it in its function."""
    instructions: int = 0
    mix: dict[str, int] = field(default_factory=dict)
    """Instructions by kind (lab/profile/cpu_code.py: KINDS)."""
    bits: int = 0
    """Width of the vector arithmetic; 0: scalar."""
    calls: dict[str, int] = field(default_factory=dict)
    """Calls by function name."""
    lines: dict[str, int] = field(default_factory=dict)
    """Instructions by source line."""
    strided: int = 0
    """Memory accesses with a stride of 1 KiB or more, or a stride held in a register."""
    strided_bytes: int = 0
    strided_stores: int = 0
    """Stores among them."""
    streamed: int = 0
    """Other memory accesses that advance."""
    streamed_bytes: int = 0
    chain: int = 0
    """Length of the longest dependent chain of scalar additions in one iteration."""
    accumulators: int = 0
    """Independent chains of scalar additions."""
    fixed_divisors: int = 0
    """Divisions by a loop-invariant value."""
    updates: int = 0
    """Values that the loop loads, changes and stores back."""
    carried: int = 0
    """Of these, at one address: each iteration waits for the one before it, through memory."""
    indirect: int = 0
    """Memory accesses at an index that the loop loads from memory."""

    def count(self, *kinds: str) -> int:
        """Instructions of these kinds."""
        return sum(self.mix.get(kind, 0) for kind in kinds)


@dataclass(frozen=True)
class CpuLoop(MachineLoop):
    """An innermost loop with its share of the time."""

    file: str = ""
    """The shared library."""
    function: str = ""
    where: str = ""
    """`kernel.cpp:12`"""
    text: str = ""
    """The source line."""
    share: float = 0.0
    """Of the time that was not spent waiting."""
    math: tuple[str, ...] = ()
    """libm functions that the loop calls."""
    remainder: bool = False
    """The scalar remainder of a loop that also exists as vector code."""
    parallel: bool = False
    """The loop is in an OpenMP region."""
    reasons: tuple[str, ...] = ()
    """Why the compiler did not vectorize the loop."""


@dataclass(frozen=True)
class CpuFunction(Record):
    """A function of the candidate's shared libraries."""

    file: str = ""
    name: str = ""
    begin: int = 0
    end: int = 0
    instructions: int = 0
    mix: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    loops: tuple[MachineLoop, ...] = ()


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
    """CPU time of one thread in a call."""

    cpu_ms: float = 0.0
    work_ms: float = 0.0
    """Without waiting and without Python."""


@dataclass(frozen=True)
class OperatorTime(Record):
    """Time of one torch operator in a call."""

    name: str
    count: int
    ms: float


@dataclass(frozen=True)
class CpuSamples(Record):
    """Samples of the program counter; times in nanoseconds of CPU time."""

    count: int = 0
    modules: dict[str, int] = field(default_factory=dict)
    """By shared library, without waiting in the OpenMP runtime."""
    threads: dict[str, dict[str, int]] = field(default_factory=dict)
    """By thread: `work`, `host` (the interpreter) and `wait`."""
    addresses: dict[str, dict[str, int]] = field(default_factory=dict)
    """By the candidate's library and address."""


@dataclass(frozen=True)
class CpuRun(Record):
    """Calls as observed; counts and times are those of one call."""

    calls: int = 0
    call_ms: float | None = None
    """Median."""
    best_ms: float | None = None
    native_ms: float | None = None
    """Median time in the candidate's native functions."""
    native_calls: float | None = None
    user_ms: float | None = None
    system_ms: float | None = None
    cpu_ms: float | None = None
    concurrency: float | None = None
    """CPU seconds per second."""
    minor_faults: float | None = None
    voluntary_switches: float | None = None
    involuntary_switches: float | None = None
    threads: tuple[ThreadTime, ...] = ()
    """The busiest first."""
    effective_threads: float | None = None
    """Work of all threads over the work of the busiest."""
    alone_ms: float | None = None
    """CPU time of the best call with one OpenMP thread; None on one core."""
    flushed_ms: float | None = None
    """The same with subnormal numbers flushed to zero; None where the processor cannot."""
    operators: tuple[OperatorTime, ...] | None = None
    """torch operators, longest first."""
    samples: CpuSamples | None = None
    counters: dict[str, float] = field(default_factory=dict)
    """Hardware counters by perf's names: cycles, instructions, cache_references, cache_misses, branches,
    branch_misses."""


@dataclass(frozen=True)
class CpuShares(Record):
    """Where the CPU time goes, 0 to 1."""

    native: float = 0.0
    """The candidate's shared libraries."""
    libm: float = 0.0
    torch: float = 0.0
    libc: float = 0.0
    """Copies, fills, allocation."""
    host: float = 0.0
    """The interpreter and everything else."""


@dataclass(frozen=True)
class FunctionShare(Record):
    """A sampled function of the candidate."""

    name: str
    share: float


@dataclass(frozen=True)
class Sweep(Record):
    """An outermost loop with what it calls: one pass over the data."""

    where: str = ""
    function: str = ""
    share: float = 0.0


@dataclass(frozen=True)
class CpuProfile(Record):
    """Machine code and observed calls together."""

    cores: int
    vector_bits: int
    machine: str = ""
    page_bytes: int = 4096
    static: CpuCode = field(default_factory=CpuCode)
    dynamic: CpuRun = field(default_factory=CpuRun)
    sampled: bool = False
    """Whether the shares were measured; otherwise they are estimated from the static cost of each loop."""
    shares: CpuShares = field(default_factory=CpuShares)
    functions: tuple[FunctionShare, ...] = ()
    loops: tuple[CpuLoop, ...] = ()
    """Innermost loops, by share."""
    sweeps: tuple[Sweep, ...] = ()

    @property
    def lanes(self) -> int:
        """float32 values in the vectors that compilers use: 256 bits unless the code has wider ones."""
        used = max((loop.bits for function in self.static.functions for loop in function.loops), default=0)
        return max(used, min(self.vector_bits, _USUAL_BITS)) // 32
