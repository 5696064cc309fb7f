"""Properties of the device that thresholds derive from."""

from __future__ import annotations

import os
from typing import Any

import torch

from kernelpro.lab import machine
from kernelpro.lab.measure import environment
from kernelpro.lab.measure.physics import Ceilings
from kernelpro.lab.profile import cpu_join

_BLOCKS_PER_SM = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24}
"""By compute capability; 32 on all others since 5.0."""
_DOUBLE_RATE = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""Chips whose FP64 rate is half of FP32's; a 32nd or 64th elsewhere."""


def device(target: str, ceilings: Ceilings) -> dict[str, Any]:
    """See the record: names are ours, numbers the driver's."""
    if target == "cpu":
        clock = machine.clock_mhz(machine.cpu_facts())
        return {
            "name": machine.cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "vector_bits": cpu_join.vector_bits(),
            "vector_extensions": machine.vector_extensions(machine.cpu_facts()),
            "caches": machine.caches() or f"{ceilings.cache_bytes >> 10} KiB in all",
            **({"clock_mhz": clock} if clock else {}),
        }
    p: Any = torch.cuda.get_device_properties(0)
    chip = (p.major, p.minor)
    return {
        "name": p.name,
        "capability": f"{p.major}.{p.minor}",
        "sms": p.multi_processor_count,
        "warp": p.warp_size,
        "sector": 32,
        "max_threads_per_sm": p.max_threads_per_multi_processor,
        "max_warps_per_sm": p.max_threads_per_multi_processor // p.warp_size,
        "max_blocks_per_sm": _BLOCKS_PER_SM.get(chip, 32),
        "registers_per_sm": p.regs_per_multiprocessor,
        "shared_per_sm": p.shared_memory_per_multiprocessor,
        "shared_per_block_max": p.shared_memory_per_block_optin,
        "l2_bytes": p.L2_cache_size,
        "fp32_to_fp64": 2 if chip in _DOUBLE_RATE else 64,
        "dram_bandwidth": ceilings.bandwidth,
        "clock_mhz": environment.sensors().most_mhz(),
    }
