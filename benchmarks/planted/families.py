"""All families, by target."""

from __future__ import annotations

from planted import cpu_blocks, cpu_maps, cpu_rows, gpu_cute, gpu_map, gpu_rows, gpu_triton
from planted.case import Family

CPU: tuple[Family, ...] = (*cpu_maps.FAMILIES, *cpu_rows.FAMILIES, *cpu_blocks.FAMILIES)
CUDA: tuple[Family, ...] = (*gpu_map.FAMILIES, *gpu_rows.FAMILIES, *gpu_triton.FAMILIES, *gpu_cute.FAMILIES)
