"""Machine instructions of x86-64 and aarch64 in one vocabulary: their kinds, and the registers they use.

The first operand is the destination (objdump's Intel syntax on x86-64), so that both machines are handled
alike: `vfmadd231ps ymm0,ymm1,YMMWORD PTR [rax]` and `fmla v0.4s, v1.4s, v2.4s` are of the same kinds, except
that the first also loads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from kernelpro.records.cpu_profile import CpuInstructionKind

_ARM_FLOAT = re.compile(
    r"f(add|sub|n?mul|mla|mls|n?madd|n?msub|div|sqrt|maxn?m?|minn?m?|abs|abd|neg|cm\w+|rint\w|recp\w|rsqrt\w|addp|maxn?mp|minn?mp|cvtz\w)"
)
_X86_FLOAT = re.compile(
    r"v?(add|sub|mul|div|sqrt|max|min|rcp|rcp14|rsqrt|rsqrt14|round|rndscale|hadd|u?comi|cmp\w*|fn?m(add|sub)(132|213|231)?)(ss|sd|ps|pd)"
)
_ARM_ATOMIC = re.compile(r"(lda?x|stl?x)[rp][bh]?|cas\w*|swp\w*|(ld|st)(add|clr|eor|set|[su]max|[su]min)\w*")
_ARM_BRANCH = re.compile(r"b(\.\w+)?|cbn?z|tbn?z")
_ARM_LOAD, _ARM_STORE = re.compile(r"(ld|prf)\w*"), re.compile(r"st\w*")
_LANE = re.compile(r"\}\[\d+\]")
_SHAPE = re.compile(r"\bv\d+\.(\d+)([bhsd])\b")
_SCALABLE = re.compile(r"\bz\d+\.([bhsd])\b")
_X86_LANE = re.compile(r"v?insertps|v?extractps|v?p(insr|extr)[dq]")
"""Instructions that load or store one lane of a vector if an operand is in memory."""
_X86_BITS = {"xmm": 128, "ymm": 256, "zmm": 512}
_X86_FULL_NAMES = {f"e{r}": f"r{r}" for r in ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")}
_X86_NO_RESULT = re.compile(r"cmp|test|v?u?comi\w+|j\w+|ret|nop\w*|push|prefetch\w*|call")
_ARM_NO_RESULT = re.compile(
    r"cmp|cmn|tst|ccmp|ccmn|fc?cmpe?|b|bl|blr|br|ret|nop|cbn?z|tbn?z|b\..*|st.*|prfm|dmb|dsb"
)
_REGISTER = re.compile(
    r"\b([xyz]mm\d+|[vqdshbz]\d+|[xw]\d+|[xw]zr|sp|r\d+[dwb]?|[re](?:ax|bx|cx|dx|si|di|bp|sp))\b"
)
_BYTES = {"BYTE": 1, "WORD": 2, "DWORD": 4, "QWORD": 8, "XMMWORD": 16, "YMMWORD": 32, "ZMMWORD": 64}
_ARM_BYTES = {"b": 1, "h": 2, "s": 4, "w": 4, "d": 8, "x": 8, "q": 16}


@dataclass(frozen=True)
class CpuInstruction:
    """One line of a disassembly."""

    address: int
    name: str
    operands: tuple[str, ...]
    line: str = ""
    """`kernel.cpp:12`; empty without line information."""
    arm: bool = True

    @cached_property
    def kinds(self) -> frozenset[CpuInstructionKind]:
        """All kinds that apply."""
        return frozenset(self._arm_kinds() if self.arm else self._x86_kinds())

    def _arm_kinds(self) -> set[CpuInstructionKind]:
        name, text = self.name, " ".join(self.operands)
        kinds: set[CpuInstructionKind] = set()
        if name in ("bl", "blr"):
            return {"atomic", "call"} if "<__aarch64_" in text else {"call"}
        if _ARM_BRANCH.fullmatch(name):
            return {"branch"}
        if _ARM_ATOMIC.fullmatch(name):
            return {"atomic", "load", "store"}
        if _ARM_FLOAT.fullmatch(name):
            vector = bool(_SHAPE.search(text) or _SCALABLE.search(text))
            kinds.add("vector_float" if vector else "scalar_float")
            if name in ("fmla", "fmls", "fmadd", "fmsub", "fnmadd", "fnmsub"):
                kinds.add("fma")
            if name in ("fdiv", "fsqrt"):
                kinds.add("division")
            if re.search(r"\bd\d+\b|\.2?d\b", text):
                kinds.add("double")
        elif name in ("sdiv", "udiv"):
            kinds.add("integer_division")
        elif name in ("fcvtl", "fcvtl2", "fcvtn", "fcvtn2") or (name == "fcvt" and re.search(r"\bd\d", text)):
            kinds.add("convert")
        elif _ARM_LOAD.fullmatch(name):
            kinds.add("load")
            if _LANE.search(text) or re.search(r"\[x\d+, z", text):
                kinds.add("gather")
        elif _ARM_STORE.fullmatch(name):
            kinds.add("store")
            if _LANE.search(text):
                kinds.add("gather")
        return kinds

    def _x86_kinds(self) -> set[CpuInstructionKind]:
        name, text = self.name, " ".join(self.operands)
        kinds: set[CpuInstructionKind] = set()
        if name == "call":
            return {"call"}
        if name.startswith("j"):
            return {"branch"}
        if name.startswith("lock"):
            return {"atomic", "load", "store"}
        if name == "xchg" and "[" in text:
            return {"atomic", "load", "store"}
        if match := _X86_FLOAT.fullmatch(name):
            kinds.add("vector_float" if match[match.lastindex or 0].startswith("p") else "scalar_float")
            if "fm" in name or "fnm" in name:
                kinds.add("fma")
            if "div" in name or ("sqrt" in name and "rsqrt" not in name):
                kinds.add("division")
            if name.endswith(("sd", "pd")):
                kinds.add("double")
        elif name in ("div", "idiv"):
            kinds.add("integer_division")
        elif re.fullmatch(r"v?cvt(ss2sd|sd2ss|ps2pd|pd2ps)x?", name):
            kinds.add("convert")
        elif re.search(r"gather|scatter", name) or (_X86_LANE.fullmatch(name) and "[" in text):
            kinds.add("gather")
        if "[" in text and name not in ("lea", "nop", "nopw"):
            stores = "mov" in name or "extr" in name or "scatter" in name
            kinds.add("store" if stores and "[" in self.operands[0] else "load")
        return kinds

    @cached_property
    def bits(self) -> int:
        """Width of the vectors in bits; 0 if it is no vector arithmetic. Scalable vectors count as 128."""
        if "vector_float" not in self.kinds:
            return 0
        text = " ".join(self.operands)
        if not self.arm:
            return max((_X86_BITS[w] for w in re.findall(r"\b([xyz]mm)\d", text)), default=128)
        sizes = {"b": 8, "h": 16, "s": 32, "d": 64}
        return max((int(count) * sizes[kind] for count, kind in _SHAPE.findall(text)), default=128)

    @cached_property
    def memory(self) -> str:
        """The address operand without its brackets; empty if there is none."""
        match = re.search(r"\[([^\]]*)\]", _LANE.sub("}", " ".join(self.operands)))
        return match[1] if match and self.name not in ("lea", "nop", "nopw") else ""

    @cached_property
    def size(self) -> int:
        """Number of bytes that it loads or stores; 0 if it does not access memory."""
        if not self.memory:
            return 0
        text = " ".join(self.operands)
        if not self.arm:
            return next((_BYTES[w] for w in re.findall(r"\b([XYZDQ]?(?:MM)?WORD|BYTE) PTR", text)), 4)
        if shape := re.search(r"\{v\d+\.(\d*)([bhsd])", text):
            return int(shape[1] or 1) * _ARM_BYTES[shape[2]]
        return _ARM_BYTES.get(self.operands[0][:1], 16) * (
            2 if self.name in ("ldp", "stp", "ldnp", "stnp") else 1
        )

    @cached_property
    def floats(self) -> bool:
        """Whether it uses floating-point registers."""
        return any(register.startswith("v") for operand in self.operands for register in registers(operand))

    @cached_property
    def writes(self) -> frozenset[str]:
        """Registers that it writes."""
        if not self.operands:
            return frozenset()
        written: set[str] = set()
        if self.arm:
            if not _ARM_NO_RESULT.fullmatch(self.name):
                count = 2 if self.name in ("ldp", "ldnp", "ldpsw") else 1
                written.update(
                    r for operand in self.operands[:count] if "[" not in operand for r in registers(operand)
                )
            if self.memory and (self.operands[-1].endswith("!") or not self.operands[-1].endswith("]")):
                written.update(registers(self.memory)[:1])
        elif not _X86_NO_RESULT.fullmatch(self.name) and "[" not in self.operands[0]:
            written.update(registers(self.operands[0]))
        return frozenset(written)

    def step(self, register: str) -> int | str | None:
        """Return what it adds to `register`: a number of bytes or the name of a register; None if unknown."""
        if self.memory and self.arm and registers(self.memory)[:1] == (register,):
            last = self.operands[-1]
            if last.endswith("!"):
                return _parse_number(last.rstrip("!]").split(",")[-1])
            return _parse_number(last) if last.startswith("#") else next(iter(registers(last)), None)
        if self.name in ("add", "adds", "sub", "subs", "inc", "dec"):
            sign = -1 if self.name in ("sub", "subs", "dec") else 1
            if len(self.operands) == 1:
                return sign
            if len(self.operands) == 3 and registers(self.operands[1])[:1] != (register,):
                return None
            value = _parse_number(self.operands[-1])
            return sign * value if value is not None else next(iter(registers(self.operands[-1])), None)
        return None


def registers(text: str) -> tuple[str, ...]:
    """Return the full registers in an operand: x1 for w1; v0 for s0, q0 and ymm0."""
    return tuple(
        _full_register(name)
        for name in _REGISTER.findall(re.sub(r"(?<=[vz]\d)\.\w+|(?<=[vz]\d\d)\.\w+", "", text))
    )


def _full_register(name: str) -> str:
    if "mm" in name:
        return "v" + name[3:]
    if name[0] in "vqdshbz" and name[1:].isdigit():
        return "v" + name[1:]
    if name[0] == "w":
        return "x" + name[1:]
    if name in _X86_FULL_NAMES:
        return _X86_FULL_NAMES[name]
    return name.rstrip("dwb") if name[0] == "r" and name[1:2].isdigit() else name


def _parse_number(text: str) -> int | None:
    text = text.strip().lstrip("#")
    try:
        return int(text, 0)
    except ValueError:
        return None
