"""Records from plain dictionaries with only the fields that a test is about."""

from __future__ import annotations

from typing import Any

from kernelpro.records import (
    Ceilings,
    CompilerReport,
    CpuProfile,
    DeviceProperties,
    KernelCode,
    PowerReadings,
    Work,
)

_WORK = {"read_bytes": 0, "written_bytes": 0, "matrix_flops": 0.0}
_CEILINGS = {"cached_bandwidth": 0.0, "cache_bytes": 0, "rates": {}}
_READERS: dict[str, Any] = {
    "work": lambda data: Work.from_json(_WORK | data),
    "ceilings": lambda data: Ceilings.from_json(_CEILINGS | data),
    "device": DeviceProperties.from_json,
    "compiler": CompilerReport.from_json,
    "power": lambda data: PowerReadings.from_json(data) if data else None,
    "cpu": lambda data: CpuProfile.from_json({"cores": 2, "vector_bits": 128} | data),
    "code": lambda data: KernelCode.from_json(data) if data else None,
}


def typed(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a Profile or a Kernel, with dictionaries turned into the records that they describe."""
    return {
        name: _READERS[name](value) if name in _READERS and isinstance(value, dict) else value
        for name, value in fields.items()
    }
