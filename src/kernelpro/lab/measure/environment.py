"""A snapshot of the hardware and software on which a verdict was measured."""

from __future__ import annotations

import platform
import subprocess
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import kernelpro
from kernelpro.lab.languages import cuda
from kernelpro.lab.machine import cpu_name
from kernelpro.lab.sandbox import gpu
from kernelpro.records import Environment


@lru_cache
def snapshot(device: str) -> Environment:
    """Hardware and versions of this machine."""
    host = Environment(
        kernelpro=kernelpro.__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        system=f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        cpu=cpu_name(),
        threads=torch.get_num_threads(),
    )
    if device != "cuda":
        return host
    properties = torch.cuda.get_device_properties(0)
    return replace(
        host,
        gpu=properties.name,
        compute_capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        driver=sensors().driver(),
        cuda=torch.version.cuda,
        nvcc=_first_line(cuda.nvcc(), "release"),
        triton=_triton_version(),
    )


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def pci_bus_id() -> str:
    """The GPU's PCI address, as NVML writes it."""
    properties: Any = torch.cuda.get_device_properties(0)
    return f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


@lru_cache
def sensors() -> gpu.Sensors:
    """The sensors of the GPU in use."""
    return gpu.Sensors(pci_bus_id())


def cpu_load(seconds: float) -> float:
    """The used share of all cores' time, measured for `seconds`; 0 if the system does not report it."""

    def busy_and_total() -> tuple[int, int]:
        times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(times) - times[3] - times[4], sum(times)

    try:
        busy, total = busy_and_total()
        time.sleep(seconds)
        later_busy, later_total = busy_and_total()
    except (OSError, ValueError):
        return 0.0
    return (later_busy - busy) / max(1, later_total - total)


def _first_line(program: str | None, word: str) -> str | None:
    if program is None:
        return None
    output = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    return next((line.strip() for line in output.splitlines() if word in line), None)
