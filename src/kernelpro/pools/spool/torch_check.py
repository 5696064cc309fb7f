"""Checks that this Python can run jobs. One that cannot would answer every job of a spool with an error."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterable

from kernelpro.lab.machine import Device
from kernelpro.records import BadInput


def check_torch(devices: Iterable[Device]) -> None:
    """Raise BadInput if torch is missing or cannot use the GPU.

    A child process imports torch, because this process never does.
    """
    if importlib.util.find_spec("torch") is None:
        raise BadInput(
            f"{sys.executable} has no torch: install it (pip install torch), or use a Python that has it"
        )
    if any(device.gpu for device in devices):
        probe = subprocess.run(
            [sys.executable, "-c", "import torch; torch.cuda.init()"], capture_output=True, text=True
        )
        if probe.returncode:
            reason = (probe.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise BadInput(
                f"torch of {sys.executable} cannot use the GPU ({reason}): install one that can, "
                "or set CUDA_VISIBLE_DEVICES= to run jobs for the CPU"
            )
