"""SASS instructions from Ampere (sm_80) to Blackwell (sm_100): their kind and the bits they move per thread.

The table maps an opcode without its suffixes to a kind. An opcode of the uniform datapath (UIADD3, UFADD) has
the kind of the opcode without its U. Opcodes that are not in the table are `other`. `kind` handles opcodes
that have more than one use."""

from __future__ import annotations

from kernelpro.records import InstructionKind

_OPCODES_BY_KIND: dict[InstructionKind, str] = {
    "fma32": """
        FFMA FADD FMUL FMNMX FMNMX3 FSEL FSET FSETP FCHK FSWZADD FFMA32I FADD32I FMUL32I FFMA2 FADD2
        FMUL2""",
    "fp64": "DADD DMUL DFMA DSETP DMNMX",
    "half": "HFMA2 HADD2 HMUL2 HMNMX2 HSET2 HSETP2 HFMA2_32I HADD2_32I HMUL2_32I VHMNMX",
    # mma.sync; QMMA and OMMA are for 8- and 4-bit floats
    "hmma": "HMMA QMMA OMMA",
    # asynchronous: wgmma, and its successor tcgen05
    "hgmma": "HGMMA QGMMA IGMMA BGMMA UTCHMMA UTCQMMA UTCIMMA UTCOMMA UTCMXQMMA",
    "imma": "IMMA BMMA",
    "dmma": "DMMA",
    "special": "MUFU",
    "convert": "F2F F2I F2FP F2IP I2F I2FP I2I I2IP FRND",
    "alu": """
        IADD IADD3 IADD32I IMAD IMAD32I IMUL IMNMX IABS ISETP ISCADD ISAD IDP IDP4A LEA LOP LOP3
        LOP32I SHF SHL SHR SEL PRMT MOV MOV32I BMSK BREV FLO POPC SGXT VIADD VIADDMNMX VIMNMX
        VIMNMX3 VABSDIFF VABSDIFF4 VSEL PLOP3 PSETP P2R R2P S2R CS2R S2UR R2UR UP2UR UR2UP P2UR CLEA
        LEPC ELECT""",
    "branch": """
        BRA BRX BRXU JMP JMX JMXU BREAK BSSY BSYNC BMOV EXIT RET KILL BPT WARPSYNC YIELD NANOSLEEP
        RPCMOV ENDCOLLECTIVE PREEXIT ACQBULK""",
    "call": "CALL",
    # barriers of a block and of a cluster
    "barrier": "BAR B2R UCGABAR_ARV UCGABAR_WAIT",
    "mbarrier": "SYNCS ARRIVES UTCBAR",
    "membar": "MEMBAR FENCE ERRBAR CGAERRBAR CCTL CCTLL CCTLT",
    "shuffle": "SHFL REDUX CREDUX VOTE VOTEU MATCH",
    "atomic": "ATOM ATOMG RED REDG",
    "shared_atomic": "ATOMS REDS REDAS",
    "global_load": "LDG LD",
    "global_store": "STG ST",
    "shared_load": "LDS LDSM",
    "shared_store": "STS STSM STAS",
    "local_load": "LDL",
    "local_store": "STL",
    "async_copy": "LDGSTS",
    "tma": "UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UTMACMDFLUSH UBLKCP UBLKPF UBLKRED",
    "constant": "LDC ULDC LDCU",
}
_KIND_BY_OPCODE = {opcode: kind for kind, opcodes in _OPCODES_BY_KIND.items() for opcode in opcodes.split()}

_MEMORY_KINDS = {kind for kind in _OPCODES_BY_KIND if kind.endswith(("_load", "_store", "_copy"))}
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


def kind(opcode: str, operands: str) -> InstructionKind:
    """Return the kind of an instruction. `opcode` includes its suffixes."""
    base, _, suffixes = opcode.partition(".")
    result = _KIND_BY_OPCODE.get(base) or _KIND_BY_OPCODE.get(base.removeprefix("U"), "other")
    if result == "half":
        if base == "HADD2" and "F32" in suffixes.split("."):
            return "convert"  # half to float
        if "-RZ, RZ," in operands:
            return "alu"  # loads a constant through the half pipe, to relieve the others
    if result == "call" and "slowpath" in operands:
        return "slow_path"  # the slow path of a correctly rounded division or square root
    if result == "hgmma" and "gdesc[URZ]" in operands:
        return "other"  # a fence between serialized products, which multiplies nothing
    return result


def width(opcode: str, kind: InstructionKind) -> int | None:
    """Return the number of bits that each thread moves; None if the instruction does not access memory."""
    if kind not in _MEMORY_KINDS:
        return None
    base, *suffixes = opcode.split(".")
    if base in ("LDSM", "STSM"):  # ldmatrix: 32 bits per thread and matrix; the last suffix is the count
        return 32 * int(suffixes[-1]) if suffixes and suffixes[-1] in ("2", "4") else 32
    return next((_WIDTHS[suffix] for suffix in suffixes if suffix in _WIDTHS), 32)
