"""Whether this Python can do jobs at all: one that cannot would answer everything in a spool with errors."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterable

from kernelpro.lab.machine import Device
from kernelpro.records import BadInput


def check_torch(devices: Iterable[Device]) -> None:
    """Bad input where there is no torch, or none that can use the GPU. In a process of its own: this one has no torch in it."""
    if importlib.util.find_spec("torch") is None:
        raise BadInput(
            f"{sys.executable} has no torch: install it there (pip install torch), or use a Python that has it"
        )
    if any(device.gpu for device in devices):
        probe = subprocess.run(
            [sys.executable, "-c", "import torch; torch.cuda.init()"], capture_output=True, text=True
        )
        if probe.returncode:
            reason = (probe.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise BadInput(
                f"torch of {sys.executable} cannot use the GPU ({reason}): install one that can, or set CUDA_VISIBLE_DEVICES to "
                "nothing to do jobs for the processor"
            )
