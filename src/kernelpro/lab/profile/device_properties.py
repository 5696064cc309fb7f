"""Device properties, from which diagnostics derive their thresholds."""

from __future__ import annotations

import os
from typing import Any

import torch

from kernelpro.lab import machine
from kernelpro.lab.measure import environment
from kernelpro.lab.profile import cpu_shares
from kernelpro.records import Ceilings, DeviceProperties

_BLOCKS_PER_SM = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24}
"""Maximum resident blocks by compute capability; 32 for all others since 5.0."""
_FAST_FP64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""Compute capabilities whose FP64 rate is half the FP32 rate; for others it is 1/32 or 1/64."""


def device_properties(target: str, ceilings: Ceilings) -> DeviceProperties:
    """Return the properties of the target's device."""
    if target == "cpu":
        clock = machine.clock_mhz(machine.cpu_facts())
        return DeviceProperties(
            name=machine.cpu_name(),
            cores=len(os.sched_getaffinity(0)),
            threads=torch.get_num_threads(),
            vector_bits=cpu_shares.vector_bits(),
            vector_extensions=machine.vector_extensions(machine.cpu_facts()),
            caches=machine.caches() or f"{ceilings.cache_bytes >> 10} KiB in total",
            clock_mhz=clock or None,
        )
    properties: Any = torch.cuda.get_device_properties(0)
    capability = (properties.major, properties.minor)
    return DeviceProperties(
        name=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        sms=properties.multi_processor_count,
        warp=properties.warp_size,
        sector=32,
        max_threads_per_sm=properties.max_threads_per_multi_processor,
        max_warps_per_sm=properties.max_threads_per_multi_processor // properties.warp_size,
        max_blocks_per_sm=_BLOCKS_PER_SM.get(capability, 32),
        registers_per_sm=properties.regs_per_multiprocessor,
        shared_per_sm=properties.shared_memory_per_multiprocessor,
        shared_per_block_max=properties.shared_memory_per_block_optin,
        l2_bytes=properties.L2_cache_size,
        fp32_to_fp64=2 if capability in _FAST_FP64 else 64,
        dram_bandwidth=ceilings.bandwidth,
        clock_mhz=environment.sensors().max_mhz(),
    )
