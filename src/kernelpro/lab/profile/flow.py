"""From the text of a disassembly to the facts of each kernel: instruction mix, widths of accesses, loops, source lines.

1. `kernels` reads nvdisasm's text once and cuts every kernel into basic blocks: after a label, after a branch.
2. `facts` follows the branches from the entry. What is never reached is not counted: padding, the copies of
   shuffles for diverged warps, the slow paths of division and square root.
3. A loop is a natural one: a branch back to a block that every way to the branch passes. A branch from code that
   the compiler moved behind the kernel's end back into its middle is therefore none.
4. Loops that do no work of the kernel are left out, so that the innermost ones are those where its time goes. One that asks
   memory again and again whether it may go on is kept, and marked: it takes energy.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kernelpro.lab.profile import opcodes

_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)")
_ENTRY = re.compile(r'\s*\.other\s+([^,\s]+),@"STO_CUDA_ENTRY')
_LABEL = re.compile(r"([.$\w]+):\s*$")
_SOURCE = re.compile(r'//## File "([^"]*)", line (\d+)')
_CODE = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*)")
_INLINED = re.compile(r"\s\.loc\s.*//(.*@\[.*)")
_PLACE = re.compile(r"([^\s/]+):(\d+):\d+")
_TARGET = re.compile(r"\.L_\w+")
_CALLED = re.compile(r"`\(([^)]+)\)")

_JUMPS = {"BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"}
_ENDS = {"EXIT", "RET", "KILL"}

_WAITING = {"mbarrier", "branch", "alu", "constant", "other"}
"""All there is in a loop that waits for an mbarrier, or in one of fewer than `_RETRY` instructions that asks for registers."""
_RETRY = 5
_REDUCING = {"global_load", "local_store", "branch", "alu", "constant"}
"""All there is, with one load, in the loop by which sin, cos and tan reduce huge arguments."""
_ASKS = {"global_load", "shared_load", "atomic", "shared_atomic"}
_ASKING = _ASKS | {"alu", "branch", "membar", "constant", "fma32", "shuffle"}
_ADDRESS = re.compile(r"\[([^]]*)\]")
_REGISTER = re.compile(r"\bU?R\d+\b")
_PREDICATE = re.compile(r"!?U?P(?:T|\d+)")


@dataclass(slots=True)
class Instruction:
    kind: str
    width: int | None
    where: str
    opcode: str
    operands: str


@dataclass(slots=True)
class Block:
    label: str = ""
    instructions: list[Instruction] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    falls: bool = True
    """Whether control can go on to the next block."""


@dataclass(slots=True)
class Loop:
    header: int
    body: set[int]
    latch: int
    """The block with the branch back."""


def kernels(text: str, callers: dict[str, str]) -> dict[str, list[Block]]:
    """The basic blocks of every kernel in nvdisasm's text (`-c -gi`), by symbol; `callers` as from `inlined`."""
    found: dict[str, list[Block]] = {}
    entries: set[str] = set()
    blocks: list[Block] = []
    chain: list[tuple[str, str]] = []
    where, fresh = "", False
    for line in text.splitlines():
        line = line.lstrip()
        if line.startswith("/*"):
            if fresh:
                where, fresh = callers.get(where := _own(chain), where), False
            if (match := _CODE.match(line)) is None:
                continue
            guard, opcode, operands = match.groups()
            if opcode != "NOP" and guard not in ("!PT", "!UPT"):
                _append(blocks, guard, opcode, operands, where)
        elif line.startswith("//## File"):
            if not fresh:
                chain, fresh = [], True
            if match := _SOURCE.match(line):
                chain.append((match[1], match[2]))
        elif match := _LABEL.match(line):
            blocks.append(Block(match[1]))
        elif match := _SECTION.match(line):
            blocks = found[match[1]] = [Block()]
            where, fresh = "", False
        elif match := _ENTRY.match(line):
            entries.add(match[1])
    return {symbol: blocks for symbol, blocks in found.items() if symbol in entries}


def inlined(ptx: str) -> dict[str, str]:
    """Where the kernel calls what lies in another file, from Triton's comments: its cubins say nothing of inlining.

    `// standard.py:170:27 @[ standard.py:191:40 @[ candidate.py:16:29 ] ]` gives `standard.py:170` -> `candidate.py:16`.
    """
    callers: dict[str, str] = {}
    for line in _INLINED.findall(ptx):
        chain = _PLACE.findall(line)
        callers.setdefault(":".join(chain[0]), _own(chain))
    return callers


def _own(chain: list[tuple[str, str]]) -> str:
    """Of a place and the places into which it was inlined, the innermost in the author's file; where all are headers, the place."""
    own = next((file for file, _ in reversed(chain) if file.endswith((".cu", ".py"))), chain[0][0])
    line = next(line for file, line in chain if file == own)
    return f"{own.rsplit('/', 1)[-1]}:{line}" if line != "0" else ""


def _append(blocks: list[Block], guard: str | None, opcode: str, operands: str, where: str) -> None:
    block = blocks[-1]
    kind = opcodes.kind(opcode, operands)
    block.instructions.append(Instruction(kind, opcodes.width(opcode, kind), where, opcode, operands))
    if kind not in ("branch", "call"):
        return
    base = opcode.partition(".")[0]
    if base == "CALL" and (called := _CALLED.search(operands)):
        block.targets.append(called[1])
    elif (
        base in _JUMPS and ".DIV" not in opcode
    ):  # .DIV: taken by diverged warps only, to a copy of the code that follows
        block.targets += _TARGET.findall(operands)
        # A condition is a guard, or a predicate before the target. A jump through a table that could not be read goes on.
        block.falls = (
            guard is not None or not block.targets or (base == "BRA" and not operands.startswith("`("))
        )
    elif base in _ENDS:
        block.falls = guard is not None
    else:
        return
    blocks.append(Block())


def facts(blocks: list[Block], trigonometry: bool) -> dict[str, Any]:
    """`instructions`, `mix`, `widths`, `loops` and `where` of a kernel; `trigonometry`: whether its cubin has sin, cos or tan."""
    after = _successors(blocks)
    order = _reverse_postorder(after)
    loops = [
        loop for loop in _loops(after, order) if _works(_mix(_instructions(blocks, loop.body)), trigonometry)
    ]
    hot: list[Instruction] = []
    told = []
    for loop in loops:
        inside = _instructions(blocks, loop.body)
        innermost = not any(other.header in loop.body for other in loops if other is not loop)
        hot += inside if innermost else []
        told.append(
            {
                "innermost": innermost,
                "instructions": len(inside),
                "mix": _mix(inside),
                "widths": _widths(inside),
                "where": "".join(branch.where for branch in blocks[loop.latch].instructions[-1:]),
            }
            | ({"asks": True} if innermost and _asks(inside) else {})
        )
    everything = _instructions(blocks, order)
    where: dict[str, str] = {}
    for instruction in (*hot, *everything):
        if instruction.where:
            where.setdefault(instruction.kind, instruction.where)
    return {
        "instructions": len(everything),
        "mix": _mix(everything),
        "widths": _widths(everything),
        "loops": told,
        "where": where,
    }


def _instructions(blocks: list[Block], chosen: Iterable[int]) -> list[Instruction]:
    return [instruction for i in sorted(chosen) for instruction in blocks[i].instructions]


def _mix(instructions: list[Instruction]) -> dict[str, int]:
    return dict(Counter(i.kind for i in instructions).most_common())


def _widths(instructions: list[Instruction]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (kind, width), count in sorted(Counter((i.kind, i.width) for i in instructions if i.width).items()):
        found.setdefault(kind, {})[str(width)] = count
    return found


def _works(mix: dict[str, int], trigonometry: bool) -> bool:
    """Whether a loop does work of the kernel, rather than wait or reduce a huge argument of a trigonometric function."""
    waits = mix.keys() <= _WAITING and ("mbarrier" in mix or sum(mix.values()) < _RETRY)
    reduces = trigonometry and mix.get("global_load") == 1 and mix.keys() <= _REDUCING
    return not waits and not reduces


def _asks(loop: list[Instruction]) -> bool:
    """Whether a loop does nothing but look at the same places in memory until somebody has changed them, and does not sleep."""
    mix = _mix(loop)
    asks = [i for i in loop if i.kind in _ASKS]
    if (
        not asks
        or not mix.keys() <= _ASKING
        or mix.get("fma32", 0) > len(asks)
        or any(i.opcode == "NANOSLEEP" for i in loop)
    ):
        return False
    if any(i.kind == "global_load" and ".STRONG" not in i.opcode for i in loop):
        return False  # what another thread writes is not seen by it
    written = {name for i in loop if (name := _target(i))}
    steady: dict[str, bool] = {}

    def is_steady(text: str) -> bool:
        return all(steady.get(name, name not in written) for name in _REGISTER.findall(text))

    for i in loop:
        if i.kind in _ASKS and not all(map(is_steady, _ADDRESS.findall(i.operands))):
            return False
        if name := _target(i):
            steady[name] = i.kind in ("alu", "constant") and is_steady(i.operands.partition(name)[2])
    return True


def _target(instruction: Instruction) -> str:
    """The register that it writes; the first, where it writes several."""
    if instruction.kind in ("branch", "membar") or "SETP" in instruction.opcode:
        return ""
    operands = (part.strip(" ;") for part in instruction.operands.split(","))
    first = next((part for part in operands if not _PREDICATE.fullmatch(part)), "")
    found = _REGISTER.match(first)
    return found[0] if found else ""


def _successors(blocks: list[Block]) -> list[list[int]]:
    at = {block.label: i for i, block in enumerate(blocks) if block.label}
    return [
        [at[target] for target in block.targets if target in at]
        + ([i + 1] if block.falls and i + 1 < len(blocks) else [])
        for i, block in enumerate(blocks)
    ]


def _reverse_postorder(after: list[list[int]]) -> list[int]:
    """Blocks that the entry reaches, each before those that follow it (loops aside)."""
    seen, order, stack = {0}, [], [(0, iter(after[0]))]
    while stack:
        block, rest = stack[-1]
        if (following := next((b for b in rest if b not in seen), None)) is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(after[following])))
    return order[::-1]


def _loops(after: list[list[int]], order: list[int]) -> list[Loop]:
    """Natural loops in the order of the code; those with one header are one."""
    position = {block: i for i, block in enumerate(order)}
    before: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for following in after[block]:
            before[following].append(block)
    above = _dominators(order, position, before)

    def dominates(header: int, block: int) -> bool:
        while position[block] > position[header]:
            block = above[block]
        return block == header

    loops: dict[int, Loop] = {}
    for latch in order:
        for header in after[latch]:
            if position[header] <= position[latch] and dominates(header, latch):
                loop = loops.setdefault(header, Loop(header, {header}, latch))
                loop.latch = max(loop.latch, latch)
                pending = [latch]
                while pending:
                    if (block := pending.pop()) not in loop.body:
                        loop.body.add(block)
                        pending += before[block]
    return [loops[header] for header in sorted(loops)]


def _dominators(order: list[int], position: dict[int, int], before: dict[int, list[int]]) -> dict[int, int]:
    """The immediate dominator of every block, by intersection along the order until nothing changes."""
    above = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [b for b in before[block] if b in above]
            nearest = known[0]
            for other in known[1:]:
                while nearest != other:
                    if position[nearest] > position[other]:
                        nearest = above[nearest]
                    else:
                        other = above[other]
            if above.get(block) != nearest:
                above[block] = nearest
                changed = True
    return above
