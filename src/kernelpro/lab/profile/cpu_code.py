"""Facts from the machine code of a shared library: functions, their loops, and how the loops access memory.

1. `disassemble` runs objdump over `.text`.
2. `find_loops` finds loops: a backward branch closes a loop. The innermost loops take most of the time.
3. For each loop, `_analyze_loop` collects the instruction mix, called functions, accesses by stride (from the
   increments of the address registers), dependent chains of additions, loop-invariant divisors, and values
   that are updated in memory."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from kernelpro.lab.profile.cpu_instructions import CpuInstruction, registers
from kernelpro.records.cpu_profile import CpuFunction, CpuInstructionKind, MachineLoop

FAR_BYTES = 1024
"""An access with at least this stride counts as strided. Rows of a tile in cache are shorter. Rows of a
matrix in memory are longer, and hardware prefetchers cannot follow them, because they stay within a page."""
_LINKER_FUNCTIONS = {
    "call_weak_fn",
    "deregister_tm_clones",
    "register_tm_clones",
    "__do_global_dtors_aux",
    "frame_dummy",
}
_X86, _ARM = 62, 183
"""e_machine of an ELF file."""
_BLOCK_BYTES = 32
"""This many adjacent bytes use a cache line well, whatever the stride to the next ones."""
_STACK_REGISTERS = {"sp", "x29", "rsp", "rbp"}
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)(?:\s+(.*))?$")
_LINE = re.compile(r"^(/.*):(\d+)(?: \(discriminator \d+\))?$")


def disassemble(library: Path) -> dict[str, list[CpuInstruction]]:
    """Return the functions of a library by name. Raises OSError if objdump is missing or fails."""
    machine = int.from_bytes(library.read_bytes()[18:20], "little")
    if machine not in (_X86, _ARM):
        raise OSError(f"unknown machine type (e_machine {machine}): only x86-64 and aarch64 are supported")
    command = [
        "objdump",
        "-d",
        "-l",
        "--no-show-raw-insn",
        "-j",
        ".text",
        *(["-M", "intel"] if machine == _X86 else []),
    ]
    done = subprocess.run([*command, str(library)], capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise OSError(f"objdump: {done.stderr.strip()[:300]}")
    return parse(done.stdout, arm=machine == _ARM)


def parse(text: str, arm: bool) -> dict[str, list[CpuInstruction]]:
    """Parse objdump's text into instructions by function."""
    functions: dict[str, list[CpuInstruction]] = {}
    current: list[CpuInstruction] = []
    line = ""
    for row in text.splitlines():
        if header := re.match(r"^[0-9a-f]+ <(.+)>:$", row):
            current, line = [], ""
            if header[1] not in _LINKER_FUNCTIONS:
                functions[header[1]] = current
        elif location := _LINE.match(row):
            line = f"{Path(location[1]).name}:{location[2]}"
        elif match := _INSTRUCTION.match(row):
            rest = re.split(r"\s*//|\s+#\s", match[3] or "")[0]
            name = match[2]
            if name in ("lock", "rep", "repz", "notrack", "bnd") and rest:
                first, _, rest = rest.partition(" ")
                name = f"lock {first}" if name == "lock" else first
            current.append(CpuInstruction(int(match[1], 16), name, tuple(_split(rest)), line, arm))
    return functions


def _split(text: str) -> Iterable[str]:
    """Split operands at commas outside brackets."""
    return (part.strip() for part in re.split(r",(?![^\[{]*[\]}])", text) if part.strip())


def analyze_function(file: str, name: str, instructions: Sequence[CpuInstruction]) -> CpuFunction:
    """Return the facts of a function. Only its innermost loops have all fields set."""
    return CpuFunction(
        file=file,
        name=name,
        begin=instructions[0].address,
        end=instructions[-1].address,
        instructions=len(instructions),
        mix=count_kinds(instructions),
        calls=_count_calls(instructions),
        loops=_analyze_loops(instructions),
    )


def _count_calls(instructions: Iterable[CpuInstruction]) -> dict[str, int]:
    return dict(Counter(filter(None, map(callee, instructions))))


def count_kinds(body: Iterable[CpuInstruction]) -> dict[CpuInstructionKind, int]:
    """Count instructions by kind."""
    counts = Counter(kind for instruction in body for kind in instruction.kinds)
    return {kind: counts[kind] for kind in get_args(CpuInstructionKind) if counts[kind]}


def callee(instruction: CpuInstruction) -> str:
    """Return the called function without the linker's suffixes; `?` for a call through a pointer; empty if
    the instruction is no call."""
    if "call" not in instruction.kinds:
        return ""
    match = re.search(r"<([^>@+]+)", " ".join(instruction.operands))
    return match[1] if match else "?"


def _branch_target(instruction: CpuInstruction) -> int:
    match = re.search(r"\b([0-9a-f]+) <", instruction.operands[-1]) if instruction.operands else None
    return int(match[1], 16) if match else -1


def find_loops(body: Sequence[CpuInstruction]) -> list[tuple[list[CpuInstruction], bool]]:
    """Return the instructions of each loop, and whether the loop is innermost.

    Instructions that lie between those of a loop and do not belong to it are left out.
    """
    branches: dict[int, list[int]] = {}  # backward branches by target
    for instruction in body:
        target = _branch_target(instruction)
        if "branch" in instruction.kinds and body[0].address <= target <= instruction.address:
            branches.setdefault(target, []).append(instruction.address)
    follow = _successors(body)
    spans = []
    for begin, ends in branches.items():
        for members in _separate_loops(body, follow, begin, ends):
            spans.append([i for i in body if i.address in members])
    edges = [(span[0].address, span[-1].address) for span in spans]
    return [
        (span, not any(other != edge and edge[0] <= other[0] and other[1] <= edge[1] for other in edges))
        for span, edge in zip(spans, edges, strict=True)
    ]


def _separate_loops(
    body: Sequence[CpuInstruction], follow: Sequence[Sequence[int]], begin: int, ends: Sequence[int]
) -> list[set[int]]:
    """Return the addresses of each loop that begins here, by the ends of its backward branches.

    Compilers let an outer loop jump right to the begin of its inner loop: the outer loop then contains the
    branch of the inner one. Without that, several branches belong to one loop, as after `continue`.
    """
    loops: list[set[int]] = []
    for end in sorted(ends):
        members = _members(body, follow, begin, end)
        if not members:
            continue
        for index, other in enumerate(loops):
            if not (other < members or members < other):
                loops[index] = other | members
                break
        else:
            loops.append(members)
    return loops


def _members(
    body: Sequence[CpuInstruction], follow: Sequence[Sequence[int]], begin: int, end: int
) -> set[int]:
    """Return the addresses from `begin` to `end` that the first reaches, and from which the last is reached.

    Empty for a block that the compiler moved out of line: it also branches back, but cannot be reached from
    the target of its branch.
    """
    first = next(i for i, instruction in enumerate(body) if instruction.address >= begin)
    last = next(i for i, instruction in enumerate(body) if instruction.address == end)
    inside = range(first, last + 1)
    precede: dict[int, list[int]] = {}
    for i in inside:
        for j in follow[i]:
            if j in inside and j != first:
                precede.setdefault(j, []).append(i)
    members, pending = {last}, [last]
    while pending:
        i = pending.pop()
        fresh = [j for j in precede.get(i, ()) if j not in members and i != first]
        members.update(fresh)
        pending += fresh
    return {body[i].address for i in members} if first in members else set()


def _successors(body: Sequence[CpuInstruction]) -> list[list[int]]:
    """Return the indices of the instructions that may run after each instruction."""
    index = {instruction.address: i for i, instruction in enumerate(body)}
    follow: list[list[int]] = []
    for i, instruction in enumerate(body):
        target = _branch_target(instruction) if "branch" in instruction.kinds else -1
        falls = instruction.name not in ("b", "jmp", "ret", "br")
        follow.append([j for j in (index.get(target, -1), i + 1 if falls else -1) if 0 <= j < len(body)])
    return follow


def _analyze_loops(instructions: Sequence[CpuInstruction]) -> tuple[MachineLoop, ...]:
    loops, nests = find_loops(instructions), find_nests(instructions) if instructions else {}
    return tuple(
        replace(_analyze_loop(body, innermost), nest=nests.get(body[0].address, 0))
        for body, innermost in loops
    )


def find_nests(body: Sequence[CpuInstruction]) -> dict[int, int]:
    """Map the address of each instruction in a loop to the first address of its outermost loop.

    Compilers move parts of a loop behind its end, so that spans of addresses do not nest. But the
    instructions of a loop can reach each other, whatever their order: they are a strongly connected
    component, which Kosaraju's algorithm finds.
    """
    follow = _successors(body)
    precede: list[list[int]] = [[] for _ in body]
    for i, nexts in enumerate(follow):
        for j in nexts:
            precede[j].append(i)
    nests: dict[int, int] = {}
    seen: set[int] = set()
    for start in reversed(_finishing_order(follow)):
        component, pending = [], [start]
        while pending:
            i = pending.pop()
            if i not in seen:
                seen.add(i)
                component.append(i)
                pending += precede[i]
        if len(component) > 1:
            first = body[min(component)].address
            nests |= {body[i].address: first for i in component}
    return nests


def _finishing_order(follow: Sequence[Sequence[int]]) -> list[int]:
    """Nodes of a graph in the order in which a depth-first search leaves them."""
    order: list[int] = []
    seen: set[int] = set()
    for start in range(len(follow)):
        stack = [(start, iter(follow[start]))] if start not in seen else []
        seen.add(start)
        while stack:
            node, nexts = stack[-1]
            child = next((n for n in nexts if n not in seen), None)
            if child is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(child)
                stack.append((child, iter(follow[child])))
    return order


def _analyze_loop(body: list[CpuInstruction], innermost: bool) -> MachineLoop:
    written = Counter(register for instruction in body for register in instruction.writes)
    loop = MachineLoop(
        begin=body[0].address,
        end=body[-1].address,
        innermost=innermost,
        instructions=len(body),
        mix=count_kinds(body),
        bits=max((i.bits for i in body), default=0),
        calls=_count_calls(body),
        lines=dict(Counter(i.line for i in body if i.line).most_common()),
    )
    if not innermost:
        return loop
    strided, strided_bytes, strided_stores, streamed, streamed_bytes = _classify_accesses(body, written)
    chains = _accumulation_chains(body, written)
    return replace(
        loop,
        strided=strided,
        strided_bytes=strided_bytes,
        strided_stores=strided_stores,
        streamed=streamed,
        streamed_bytes=streamed_bytes,
        chain=max(chains.values(), default=0),
        accumulators=len(chains),
        fixed_divisors=sum(_has_invariant_divisor(i, written) for i in body),
        updates=len(_updated_addresses(body)),
        carried=sum(not set(registers(address)) & written.keys() for address in _updated_addresses(body)),
        indirect=_count_indirect(body, written),
    )


def _classify_accesses(
    body: Sequence[CpuInstruction], written: Counter[str]
) -> tuple[int, int, int, int, int]:
    """Count strided accesses, their bytes and their stores; streamed accesses and their bytes.

    A strided access is a scalar access with a large stride or a stride in a register."""
    steps: dict[str, int | str | None] = {}
    for register in written:
        moves = [i.step(register) for i in body if register in i.writes]
        numbers = [m for m in moves if isinstance(m, int)]
        if len(numbers) == len(moves):
            steps[register] = sum(numbers)
        else:
            fixed = all(isinstance(m, int) or (m is not None and m not in written) for m in moves)
            steps[register] = "register" if fixed else None
    strided = strided_bytes = strided_stores = streamed = streamed_bytes = 0
    beside: Counter[tuple[str, ...]] = Counter()  # bytes at constant offsets from the same address
    for instruction in body:
        if instruction.memory and instruction.floats:
            beside[tuple(registers(instruction.memory))] += instruction.size
    for instruction in body:
        if (
            not instruction.memory
            or not instruction.floats
            or not instruction.kinds & {"load", "store", "gather"}
        ):
            continue
        moved = [
            (steps[r], _index_scale(instruction.memory, r))
            for r in registers(instruction.memory)
            if r in written
        ]
        far = any(
            step == "register" or (isinstance(step, int) and abs(step * scale) >= FAR_BYTES)
            for step, scale in moved
        )
        together = beside[tuple(registers(instruction.memory))]
        if (far and instruction.size <= 8 and together < _BLOCK_BYTES) or (
            "gather" in instruction.kinds and _has_register_stride(instruction, body)
        ):
            strided, strided_bytes = strided + 1, strided_bytes + instruction.size
            strided_stores += "store" in instruction.kinds
        elif moved:
            streamed, streamed_bytes = streamed + 1, streamed_bytes + instruction.size
    return strided, strided_bytes, strided_stores, streamed, streamed_bytes


def _has_register_stride(gather: CpuInstruction, body: Sequence[CpuInstruction]) -> bool:
    """Whether a lane's address is computed from a register, which holds a variable stride or an index."""
    address_registers = registers(gather.memory)
    if len(address_registers) > 1:
        return True
    constants = {
        registers(i.operands[0])[0]
        for i in body
        if i.name == "mov" and i.operands[-1].startswith(("#", "0x"))
    }
    additions = (
        i for i in body if address_registers and address_registers[0] in i.writes and i.name in ("add", "lea")
    )
    return any(
        len({r for operand in i.operands[1:] for r in registers(operand)} - constants) > 1 for i in additions
    )


def _index_scale(address: str, register: str) -> int:
    """Return the scale of an index register: `[x1, x2, lsl #2]`, `[rax+rcx*4]`."""
    if shift := re.search(r"lsl #(\d+)", address):
        return 1 << int(shift[1]) if registers(address)[-1] == register else 1
    scale = re.search(rf"\b{register}\*(\d)", address)
    return int(scale[1]) if scale else 1


def _accumulation_chains(body: Sequence[CpuInstruction], written: Counter[str]) -> dict[str, int]:
    """Return the dependent chains of scalar additions: by register, the number of additions per iteration."""
    additions: Counter[str] = Counter()
    for instruction in body:
        if "scalar_float" not in instruction.kinds or not instruction.writes:
            continue
        target = registers(instruction.operands[0])[0]
        sources = [register for operand in instruction.operands[1:] for register in registers(operand)]
        if re.fullmatch(r"f(add|maxnm|minnm)|v(add|max|min)s[sd]", instruction.name):
            accumulates = target in sources
        elif re.fullmatch(r"fn?m(add|sub)", instruction.name):
            accumulates = sources[-1:] == [target]
        else:
            accumulates = bool(re.fullmatch(r"(add|max|min)s[sd]|vfn?m(add|sub)231s[sd]", instruction.name))
        if accumulates:
            additions[target] += 1
    return {register: count for register, count in additions.items() if written[register] == count}


def _has_invariant_divisor(instruction: CpuInstruction, written: Counter[str]) -> bool:
    """Whether the instruction divides by a loop-invariant value. Square roots do not count."""
    if "division" not in instruction.kinds or "sqrt" in instruction.name:
        return False
    return not any(register in written for register in registers(instruction.operands[-1]))


def _updated_addresses(body: Sequence[CpuInstruction]) -> set[str]:
    """Addresses outside the stack at which the loop both loads and stores floating-point values."""

    def addresses(kind: str) -> set[str]:
        return {
            i.memory.replace(" ", "")
            for i in body
            if kind in i.kinds and i.floats and not _STACK_REGISTERS & set(registers(i.memory))
        }

    return (addresses("load") & addresses("store")) - {""}


def _count_indirect(body: Sequence[CpuInstruction], written: Counter[str]) -> int:
    """Count accesses to floats whose address depends on an integer that the loop loads and steps through."""
    exchanged = {i.memory for i in body if "atomic" in i.kinds}  # values there are no indices
    indices: set[str] = set()
    for _ in range(2):  # an index may be used before the instruction that loads it for the next iteration
        for instruction in body:
            if instruction.floats:
                continue
            if instruction.memory:
                address = registers(instruction.memory)
                steps = (
                    any(register in written for register in address) and instruction.memory not in exchanged
                )
                if "load" in instruction.kinds and steps and not _STACK_REGISTERS & set(address):
                    indices |= instruction.writes - set(address)
            elif any(r in indices for operand in instruction.operands[1:] for r in registers(operand)):
                indices |= instruction.writes
    return sum(
        bool(indices & set(registers(instruction.memory)))
        for instruction in body
        if instruction.memory and (instruction.floats or "atomic" in instruction.kinds)
    )
