"""Environment variables, limits, files and folders of the processes under test."""

from __future__ import annotations

import os
from collections.abc import Collection

import torch

from kernelpro.lab.sandbox.completion import CompletionPage
from kernelpro.lab.sandbox.memory import Region
from kernelpro.lab.sandbox.process import ResourceLimits
from kernelpro.records import Target, folders

_HOST_MEMORY_SHARE = 0.75
"""The default memory limit of a candidate, as a share of the machine's memory."""


def are_compiled(variants: Collection[str]) -> bool:
    """Whether a compiler runs for these baselines."""
    return any(not name.startswith("eager") for name in variants)


def file_descriptors(regions: list[Region], page: CompletionPage | None) -> tuple[int, ...]:
    """The file descriptors that a child needs: of the regions on a CPU, of the completion page on a GPU."""
    return (*(region.fd for region in regions if region.fd is not None), *((page.fd,) if page else ()))


def thread_variables() -> dict[str, str]:
    """Variables that give a child as many threads as this process has."""
    return {"OMP_NUM_THREADS": str(torch.get_num_threads())}


def candidate_limits(memory_gib: float, target: Target) -> ResourceLimits:
    """The limits of a candidate's process; `memory_gib`: the user's, or 0."""
    host = int(_HOST_MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return ResourceLimits(int(memory_gib * 2**30) or host, address_space=target == "cpu")


def compiler_cache_dir() -> str:
    """The compiler cache of baselines, which is kept between runs: the reference is the user's own and
    trusted."""
    path = folders.cache("compiled")
    path.mkdir(parents=True, exist_ok=True)
    return str(path)
