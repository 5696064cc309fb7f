"""The time account: a call's time, divided into parts that add up to it.

`gpu.py` and `cpu.py` divide the time; `parts.py` describes the parts. The division depends on the share of a
unit's peak that good kernels reach. It is computed for a low, a usual and a high value of that share; the
spread is the uncertainty of each part.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kernelpro.diagnose.account import cpu, gpu
from kernelpro.diagnose.kernel_names import display_name
from kernelpro.records import AccountPart, PartKind, Profile

ATTAINABLE = (0.80, gpu.USUAL, 0.95)
"""Share of a unit's nominal peak that good kernels reach: low, usual and high (see counters.ATTAINABLE)."""
_MEASURED = 0.05
"""Relative uncertainty of parts that are measured rather than modeled."""


@dataclass(frozen=True)
class Account:
    """The parts of a call; the floor first, then by size."""

    parts: tuple[AccountPart, ...]

    @property
    def total_ms(self) -> float:
        """The time of a call."""
        return sum(part.ms for part in self.parts)

    def ms(self, kinds: Collection[PartKind], kernel: str | None = None) -> float:
        """Milliseconds in parts of these kinds, of one kernel or of all."""
        return sum(part.ms for part in self.parts if part.part in kinds and kernel in (None, part.kernel))

    def share(self, kinds: Collection[PartKind], kernel: str) -> float:
        """Share of a kernel's time in parts of these kinds, 0 to 1."""
        total = sum(part.ms for part in self.parts if part.kernel == kernel)
        return self.ms(kinds, kernel) / total if total else 0.0

    @property
    def surplus(self) -> tuple[AccountPart, ...]:
        """All parts but the floor."""
        return tuple(part for part in self.parts if part.part != "floor")


def make_account(profile: Profile) -> Account:
    """The account of a profile; empty where nothing was measured."""
    if profile.time_ms <= 0:
        return Account(())
    parts = _cpu_parts(profile) if profile.target == "cpu" else _gpu_parts(profile)
    parts = [part for part in parts if part.ms > 0]
    return Account(tuple(sorted(parts, key=lambda part: (part.part != "floor", -part.ms, part.kernel))))


def _cpu_parts(profile: Profile) -> list[AccountPart]:
    profiled = profile.cpu
    if profiled is None:
        return []
    return [
        _measured(part, ms, cpu.part_lines(profiled, part))
        for part, ms in cpu.call_parts(profile, profiled).items()
    ]


def _gpu_parts(profile: Profile) -> list[AccountPart]:
    call, kernels_ms = gpu.call_parts(profile)
    parts = [_measured(part, ms) for part, ms in call.items()]
    device_us = sum(kernel.microseconds for kernel in profile.kernels)
    if not device_us:
        return parts
    floor = min(profile.floor_ms, kernels_ms)
    for kernel in profile.kernels:
        share = kernel.microseconds / device_us
        divisions = [
            gpu.kernel_parts(profile, kernel, kernels_ms * share, floor * share, attainable)
            for attainable in ATTAINABLE
        ]
        name = display_name(kernel, profile.kernels)
        for part in dict.fromkeys(part for division in divisions for part in division):
            values = [division[part] for division in divisions]
            lines = gpu.part_lines(kernel, part)
            parts.append(AccountPart(part, values[1], min(values), max(values), name, lines))
    return parts


def _measured(part: PartKind, ms: float, lines: tuple[str, ...] = ()) -> AccountPart:
    return AccountPart(part, ms, (1 - _MEASURED) * ms, (1 + _MEASURED) * ms, lines=lines)


WAITING_PARTS: tuple[PartKind, ...] = (*gpu.WAITING, "waiting")
"""Parts in which warps wait."""
TRAFFIC_PARTS: tuple[PartKind, ...] = (
    *("dram_traffic", "cache_traffic"),
    *("waiting_for_memory", "waiting_for_memory_queue"),
)
"""Parts that shrink with the bytes that a kernel moves."""
NATIVE_PARTS: tuple[PartKind, ...] = cpu.NATIVE
"""Parts of native code on the CPU."""
ACCOUNT_METRICS = gpu.METRICS
"""Hardware counters of the account."""
