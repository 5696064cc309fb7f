"""The devices of this machine, queried without importing torch, which takes seconds."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kernelpro.records import Target

_MAX_TEXT = 96
"""NVML's limit on the bytes of a name or UUID."""
_ARM_CORES = {
    "0xd08": "Cortex-A72",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2",
    "0xd83": "Neoverse-V3AE",
    "0xd84": "Neoverse-V3",
    "0xd8e": "Neoverse-N3",
}
"""Arm's cores by part number: /proc/cpuinfo has no model name on Arm."""
_VECTOR_EXTENSIONS = (
    *(
        ("asimd", "NEON"),
        ("asimdhp", "NEON-fp16"),
        ("asimddp", "dotprod"),
        ("bf16", "bf16"),
        ("i8mm", "i8mm"),
    ),
    *(("sve", "SVE"), ("sve2", "SVE2"), ("avx", "AVX"), ("avx2", "AVX2"), ("fma", "FMA"), ("f16c", "F16C")),
    *(
        ("avx512f", "AVX-512F"),
        ("avx512bw", "AVX-512BW"),
        ("avx512_bf16", "AVX-512-BF16"),
        ("avx512_vnni", "AVX-512-VNNI"),
    ),
    ("amx_tile", "AMX"),
)


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU."""

    uuid: str
    name: str


@dataclass(frozen=True)
class Device:
    """The device of one worker: a GPU, or the CPU (`gpu` is None)."""

    gpu: Gpu | None = None

    @property
    def label(self) -> str:
        """A GPU's UUID, or `cpu`."""
        return self.gpu.uuid if self.gpu else "cpu"

    def name_for(self, target: Target | None) -> str | None:
        """The name of the hardware that runs jobs with this target; None if this device cannot run them."""
        if target == "cpu" or (target is None and not self.gpu):
            return cpu_name()
        return self.gpu.name if self.gpu else None


def cpu_name() -> str:
    """The CPU's model name."""
    return cpu_model_name(cpu_facts())


def cpu_model_name(facts: Mapping[str, str]) -> str:
    """The model name from the fields of /proc/cpuinfo."""
    if not facts:
        return platform.processor()
    if given := facts.get("model name") or facts.get("hardware"):
        return given
    design = _ARM_CORES.get(facts.get("cpu part", "")) if facts.get("cpu implementer") == "0x41" else None
    return f"{f'{design} ({platform.machine()})' if design else platform.machine()}, {os.cpu_count()} cores"


@lru_cache
def cpu_facts() -> dict[str, str]:
    """The fields of the first CPU in /proc/cpuinfo, keys in lower case."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    rows = (row.partition(":") for row in text.splitlines())
    values: dict[str, str] = {}
    for key, _, value in rows:
        values.setdefault(key.strip().lower(), value.strip())
    return values


def vector_extensions(facts: Mapping[str, str]) -> str:
    """The vector extensions of a CPU with these /proc/cpuinfo fields, such as `AVX2 FMA`."""
    flags = set((facts.get("flags") or facts.get("features", "")).split())
    found = [name for flag, name in _VECTOR_EXTENSIONS if flag in flags]
    return " ".join(found) or "unknown"


def clock_mhz(facts: Mapping[str, str], root: Path = Path("/sys/devices/system/cpu/cpu0")) -> int | None:
    """The maximum clock, else the current clock; None if neither is known, as in many virtual machines."""
    try:
        return int((root / "cpufreq/cpuinfo_max_freq").read_text()) // 1000
    except (OSError, ValueError):
        current = facts.get("cpu mhz", "")
        return round(float(current)) if current else None


def caches(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> str:
    """The data caches in words; empty if unknown.

    `L1 64 KiB a core, L2 1 MiB a core, L3 32 MiB shared by 2; lines of 64 bytes`
    """
    levels, line = {}, ""
    try:
        for place in root.glob("index*"):
            level, kind, size, line, sharing = (
                (place / name).read_text().strip()
                for name in ("level", "type", "size", "coherency_line_size", "shared_cpu_list")
            )
            if kind != "Instruction":
                spans = [[int(end) for end in span.split("-")] for span in sharing.split(",")]
                users = sum(span[-1] - span[0] + 1 for span in spans)
                kib = int(size.removesuffix("K"))
                amount = f"{kib >> 10} MiB" if kib >= 1024 and kib % 1024 == 0 else f"{kib} KiB"
                levels[level] = f"L{level} {amount} " + (f"shared by {users}" if users > 1 else "a core")
    except (OSError, ValueError):
        return ""
    return ", ".join(levels[level] for level in sorted(levels)) + f"; lines of {line} bytes" if levels else ""


def gpus() -> list[Gpu]:
    """The visible NVIDIA GPUs, in the order of CUDA_VISIBLE_DEVICES."""
    all_gpus = _all_gpus()
    selection = os.environ.get("CUDA_VISIBLE_DEVICES")
    if selection is None:
        return all_gpus
    chosen = []
    for entry in filter(None, map(str.strip, selection.split(","))):
        match = [
            gpu for index, gpu in enumerate(all_gpus) if entry == str(index) or gpu.uuid.startswith(entry)
        ]
        if not match:  # as in CUDA, entries after an invalid one are invisible
            break
        chosen += match[:1]
    return chosen


def _all_gpus() -> list[Gpu]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    gpus_found = []
    for index in range(count.value):
        handle, name, uuid = (
            ctypes.c_void_p(),
            ctypes.create_string_buffer(_MAX_TEXT),
            ctypes.create_string_buffer(_MAX_TEXT),
        )
        failed = (
            nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
            or nvml.nvmlDeviceGetName(handle, name, _MAX_TEXT)
            or nvml.nvmlDeviceGetUUID(handle, uuid, _MAX_TEXT)
        )
        if not failed:
            gpus_found.append(Gpu(uuid.value.decode(), name.value.decode()))
    return gpus_found
