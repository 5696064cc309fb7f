"""A snapshot of where a verdict was reached."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import kernelpro
from kernelpro.lab.judge import gpu
from kernelpro.lab.languages import cuda


@lru_cache
def snapshot(device: str) -> dict[str, Any]:
    """Hardware and versions, as plain data."""
    found: dict[str, Any] = {
        "kernelpro": kernelpro.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "driver": sensors().driver(),
            "cuda": torch.version.cuda,
            "nvcc": _first_line(cuda.nvcc(), "release"),
        }
        try:
            import triton

            found["triton"] = triton.__version__
        except ImportError:
            pass
    return found


@lru_cache
def sensors() -> gpu.Sensors:
    properties: Any = torch.cuda.get_device_properties(0)
    return gpu.Sensors(f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0")


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


def _first_line(program: str | None, word: str) -> str | None:
    if program is None:
        return None
    output = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    return next((line.strip() for line in output.splitlines() if word in line), None)
