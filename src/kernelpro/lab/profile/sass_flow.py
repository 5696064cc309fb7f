"""Derives the facts of each kernel from a disassembly: instruction mix, access widths, loops, source lines.

1. `parse_kernels` reads nvdisasm's text once and splits every kernel into basic blocks, after labels and
   branches.
2. `analyze_kernel` follows the branches from the entry. Unreachable code is not counted: padding, the copies
   of shuffles for diverged warps, the slow paths of division and square root.
3. Loops are natural loops: the target of the backward branch dominates the branch. A branch from code that
   the compiler moved behind the kernel's end back into its middle is therefore not a loop.
4. Loops that only wait, or only reduce huge arguments of sin, cos and tan, are ignored, so that the innermost
   loops are those that take the time. A loop that polls memory is kept and marked: it costs energy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kernelpro.lab.profile import sass_opcodes
from kernelpro.records import InstructionKind, KernelCode, KernelLoop

_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)")
_ENTRY = re.compile(r'\s*\.other\s+([^,\s]+),@"STO_CUDA_ENTRY')
_LABEL = re.compile(r"([.$\w]+):\s*$")
_SOURCE = re.compile(r'//## File "([^"]*)", line (\d+)')
_CODE = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*)")
_INLINED = re.compile(r"\s\.loc\s.*//(.*@\[.*)")
_LOCATION = re.compile(r"([^\s/]+):(\d+):\d+")
_TARGET = re.compile(r"\.L_\w+")
_CALL_TARGET = re.compile(r"`\(([^)]+)\)")

_JUMP_OPCODES = {"BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"}
_END_OPCODES = {"EXIT", "RET", "KILL"}

_WAIT_KINDS = {"mbarrier", "branch", "alu", "constant", "other"}
"""The only kinds of instructions in a loop that waits for an mbarrier or retries a register allocation."""
_MAX_RETRY_INSTRUCTIONS = 5
_ARGUMENT_REDUCTION_KINDS = {"global_load", "local_store", "branch", "alu", "constant"}
"""The only kinds in the loop that reduces huge arguments of sin, cos and tan. It has exactly one load."""
_POLL_KINDS = {"global_load", "shared_load", "atomic", "shared_atomic"}
_POLL_LOOP_KINDS = _POLL_KINDS | {"alu", "branch", "membar", "constant", "fma32", "shuffle"}
_ADDRESS = re.compile(r"\[([^]]*)\]")
_REGISTER = re.compile(r"\bU?R\d+\b")
_PREDICATE = re.compile(r"!?U?P(?:T|\d+)")


@dataclass(slots=True)
class SassInstruction:
    """One instruction."""

    kind: InstructionKind
    width: int | None
    where: str
    opcode: str
    operands: str


@dataclass(slots=True)
class BasicBlock:
    """A sequence of instructions without branches."""

    label: str = ""
    instructions: list[SassInstruction] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    falls_through: bool = True
    """Whether control can continue with the next block."""


@dataclass(slots=True)
class NaturalLoop:
    """A loop, by indices of its blocks."""

    header: int
    body: set[int]
    latch: int
    """The block with the backward branch."""


def parse_kernels(text: str, call_sites: dict[str, str]) -> dict[str, list[BasicBlock]]:
    """Return the basic blocks of every kernel in nvdisasm's text (`-c -gi`), by symbol.

    `call_sites` is the result of `inline_call_sites`.
    """
    blocks_by_symbol: dict[str, list[BasicBlock]] = {}
    entries: set[str] = set()
    blocks: list[BasicBlock] = []
    inline_chain: list[tuple[str, str]] = []
    where, new_location = "", False
    for line in text.splitlines():
        line = line.lstrip()
        if line.startswith("/*"):
            if new_location:
                where, new_location = call_sites.get(where := _own_line(inline_chain), where), False
            if (match := _CODE.match(line)) is None:
                continue
            guard, opcode, operands = match.groups()
            if opcode != "NOP" and guard not in ("!PT", "!UPT"):
                _append(blocks, guard, opcode, operands, where)
        elif line.startswith("//## File"):
            if not new_location:
                inline_chain, new_location = [], True
            if match := _SOURCE.match(line):
                inline_chain.append((match[1], match[2]))
        elif match := _LABEL.match(line):
            blocks.append(BasicBlock(match[1]))
        elif match := _SECTION.match(line):
            blocks = blocks_by_symbol[match[1]] = [BasicBlock()]
            where, new_location = "", False
        elif match := _ENTRY.match(line):
            entries.add(match[1])
    return {symbol: blocks for symbol, blocks in blocks_by_symbol.items() if symbol in entries}


def inline_call_sites(ptx: str) -> dict[str, str]:
    """Map each inlined line to the kernel's own line, from the comments in Triton's PTX.

    Triton's cubins do not record inlining. For example, `// standard.py:170:27 @[ standard.py:191:40 @[
    candidate.py:16:29 ] ]` maps `standard.py:170` to `candidate.py:16`."""
    call_sites: dict[str, str] = {}
    for line in _INLINED.findall(ptx):
        inline_chain = _LOCATION.findall(line)
        call_sites.setdefault(":".join(inline_chain[0]), _own_line(inline_chain))
    return call_sites


def _own_line(inline_chain: list[tuple[str, str]]) -> str:
    """Return the innermost line of an inlining chain that is in the author's file; if all lines are in
    headers, the first one."""
    own_file = next((file for file, _ in reversed(inline_chain) if file.endswith((".cu", ".py"))), None)
    own_file = own_file or inline_chain[0][0]
    line = next(line for file, line in inline_chain if file == own_file)
    return f"{own_file.rsplit('/', 1)[-1]}:{line}" if line != "0" else ""


def _append(blocks: list[BasicBlock], guard: str | None, opcode: str, operands: str, where: str) -> None:
    block = blocks[-1]
    kind = sass_opcodes.kind(opcode, operands)
    block.instructions.append(
        SassInstruction(kind, sass_opcodes.width(opcode, kind), where, opcode, operands)
    )
    if kind not in ("branch", "call"):
        return
    base = opcode.partition(".")[0]
    if base == "CALL" and (called := _CALL_TARGET.search(operands)):
        block.targets.append(called[1])
    elif (
        base in _JUMP_OPCODES and ".DIV" not in opcode
    ):  # .DIV: diverged warps jump to a copy of the next code
        block.targets += _TARGET.findall(operands)
        # A jump is conditional if it has a guard or a predicate before the target. A jump through an unknown
        # table is taken to fall through.
        block.falls_through = (
            guard is not None or not block.targets or (base == "BRA" and not operands.startswith("`("))
        )
    elif base in _END_OPCODES:
        block.falls_through = guard is not None
    else:
        return
    blocks.append(BasicBlock())


def analyze_kernel(blocks: list[BasicBlock], has_trig: bool) -> KernelCode:
    """Return instruction counts, access widths, loops and source lines of a kernel.

    `has_trig`: its cubin contains sin, cos or tan.
    """
    successors = _successors(blocks)
    order = _reverse_postorder(successors)
    loops = [
        loop
        for loop in _natural_loops(successors, order)
        if _is_work_loop(_mix(_instructions(blocks, loop.body)), has_trig)
    ]
    hot_instructions: list[SassInstruction] = []
    kernel_loops: list[KernelLoop] = []
    for loop in loops:
        instructions = _instructions(blocks, loop.body)
        innermost = not any(other.header in loop.body for other in loops if other is not loop)
        hot_instructions += instructions if innermost else []
        kernel_loops.append(
            KernelLoop(
                mix=_mix(instructions),
                instructions=len(instructions),
                innermost=innermost,
                widths=_widths(instructions),
                where="".join(branch.where for branch in blocks[loop.latch].instructions[-1:]),
                asks=innermost and _is_polling_loop(instructions),
            )
        )
    all_instructions = _instructions(blocks, order)
    where: dict[InstructionKind, str] = {}
    for instruction in (*hot_instructions, *all_instructions):
        if instruction.where:
            where.setdefault(instruction.kind, instruction.where)
    return KernelCode(
        mix=_mix(all_instructions),
        instructions=len(all_instructions),
        widths=_widths(all_instructions),
        loops=tuple(kernel_loops),
        where=where,
    )


def _instructions(blocks: list[BasicBlock], indices: Iterable[int]) -> list[SassInstruction]:
    return [instruction for i in sorted(indices) for instruction in blocks[i].instructions]


def _mix(instructions: list[SassInstruction]) -> dict[InstructionKind, int]:
    return dict(Counter(i.kind for i in instructions).most_common())


def _widths(instructions: list[SassInstruction]) -> dict[InstructionKind, dict[str, int]]:
    widths: dict[InstructionKind, dict[str, int]] = {}
    for (kind, width), count in sorted(Counter((i.kind, i.width) for i in instructions if i.width).items()):
        widths.setdefault(kind, {})[str(width)] = count
    return widths


def _is_work_loop(mix: dict[InstructionKind, int], has_trig: bool) -> bool:
    """Whether a loop does work of the kernel. False if it only waits, or reduces a huge argument of sin, cos
    or tan."""
    waits_for_barrier = mix.keys() <= _WAIT_KINDS and (
        "mbarrier" in mix or sum(mix.values()) < _MAX_RETRY_INSTRUCTIONS
    )
    reduces_argument = has_trig and mix.get("global_load") == 1 and mix.keys() <= _ARGUMENT_REDUCTION_KINDS
    return not waits_for_barrier and not reduces_argument


def _is_polling_loop(loop: list[SassInstruction]) -> bool:
    """Whether a loop only polls fixed addresses until another thread changes them, without sleeping."""
    mix = _mix(loop)
    polls = [i for i in loop if i.kind in _POLL_KINDS]
    if (
        not polls
        or not mix.keys() <= _POLL_LOOP_KINDS
        or mix.get("fma32", 0) > len(polls)
        or any(i.opcode == "NANOSLEEP" for i in loop)
    ):
        return False
    if any(i.kind == "global_load" and ".STRONG" not in i.opcode for i in loop):
        return False  # a weak load may never see what another thread writes
    written = {name for i in loop if (name := _destination(i))}
    invariant: dict[str, bool] = {}

    def is_invariant(text: str) -> bool:
        return all(invariant.get(name, name not in written) for name in _REGISTER.findall(text))

    for i in loop:
        if i.kind in _POLL_KINDS and not all(map(is_invariant, _ADDRESS.findall(i.operands))):
            return False
        if name := _destination(i):
            invariant[name] = i.kind in ("alu", "constant") and is_invariant(i.operands.partition(name)[2])
    return True


def _destination(instruction: SassInstruction) -> str:
    """Return the register that an instruction writes, or the first of several; empty if it writes none."""
    if instruction.kind in ("branch", "membar") or "SETP" in instruction.opcode:
        return ""
    operands = (part.strip(" ;") for part in instruction.operands.split(","))
    first = next((part for part in operands if not _PREDICATE.fullmatch(part)), "")
    match = _REGISTER.match(first)
    return match[0] if match else ""


def _successors(blocks: list[BasicBlock]) -> list[list[int]]:
    index = {block.label: i for i, block in enumerate(blocks) if block.label}
    return [
        [index[target] for target in block.targets if target in index]
        + ([i + 1] if block.falls_through and i + 1 < len(blocks) else [])
        for i, block in enumerate(blocks)
    ]


def _reverse_postorder(successors: list[list[int]]) -> list[int]:
    """Return the blocks that are reachable from the entry, each before its successors except along backward
    branches."""
    visited, order, stack = {0}, [], [(0, iter(successors[0]))]
    while stack:
        block, rest = stack[-1]
        if (successor := next((b for b in rest if b not in visited), None)) is None:
            order.append(block)
            stack.pop()
        else:
            visited.add(successor)
            stack.append((successor, iter(successors[successor])))
    return order[::-1]


def _natural_loops(successors: list[list[int]], order: list[int]) -> list[NaturalLoop]:
    """Return the natural loops in code order. Loops with the same header are merged."""
    position = {block: i for i, block in enumerate(order)}
    predecessors: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for following in successors[block]:
            predecessors[following].append(block)
    dominators = _dominators(order, position, predecessors)

    def dominates(header: int, block: int) -> bool:
        while position[block] > position[header]:
            block = dominators[block]
        return block == header

    loops: dict[int, NaturalLoop] = {}
    for latch in order:
        for header in successors[latch]:
            if position[header] <= position[latch] and dominates(header, latch):
                loop = loops.setdefault(header, NaturalLoop(header, {header}, latch))
                loop.latch = max(loop.latch, latch)
                pending = [latch]
                while pending:
                    if (block := pending.pop()) not in loop.body:
                        loop.body.add(block)
                        pending += predecessors[block]
    return [loops[header] for header in sorted(loops)]


def _dominators(
    order: list[int], position: dict[int, int], predecessors: dict[int, list[int]]
) -> dict[int, int]:
    """Return the immediate dominator of every block, by the algorithm of Cooper, Harvey and Kennedy."""
    dominators = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            processed = [b for b in predecessors[block] if b in dominators]
            nearest = processed[0]
            for other in processed[1:]:
                while nearest != other:
                    if position[nearest] > position[other]:
                        nearest = dominators[nearest]
                    else:
                        other = dominators[other]
            if dominators.get(block) != nearest:
                dominators[block] = nearest
                changed = True
    return dominators
