"""What this machine has to compute with. Asked without torch, which takes seconds to import."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kernelpro.records import Target

_TEXT = 96
"""Bytes of a name or a UUID, as NVML bounds them."""


@dataclass(frozen=True)
class Gpu:
    uuid: str
    name: str


@dataclass(frozen=True)
class Device:
    """What one worker has to itself: a GPU, or the processor where there is none."""

    gpu: Gpu | None = None

    @property
    def label(self) -> str:
        return self.gpu.uuid if self.gpu else "cpu"

    def name_for(self, target: Target | None) -> str | None:
        """The hardware that a job for `target` would be timed on; None where there is no such hardware here."""
        if target == "cpu" or (target is None and not self.gpu):
            return cpu_name()
        return self.gpu.name if self.gpu else None


@lru_cache
def cpu_name() -> str:
    """The processor's model in words."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        if line.lower().startswith(("model name", "hardware")):
            return line.partition(":")[2].strip()
    return f"{platform.machine()}, {os.cpu_count()} cores"


def gpus() -> list[Gpu]:
    """The NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves, in its order."""
    found = _all_gpus()
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return found
    chosen = []
    for entry in filter(None, map(str.strip, wanted.split(","))):
        match = [gpu for index, gpu in enumerate(found) if entry == str(index) or gpu.uuid.startswith(entry)]
        if not match:  # as CUDA does: what follows an entry that is not there is not seen
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
    found = []
    for index in range(count.value):
        handle, name, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_TEXT), ctypes.create_string_buffer(_TEXT)
        failed = (
            nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
            or nvml.nvmlDeviceGetName(handle, name, _TEXT)
            or nvml.nvmlDeviceGetUUID(handle, uuid, _TEXT)
        )
        if not failed:
            found.append(Gpu(uuid.value.decode(), name.value.decode()))
    return found
