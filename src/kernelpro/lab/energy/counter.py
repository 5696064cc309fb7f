"""Energy counters. A GPU has NVML's total-energy counter (the whole board, since the driver was loaded). A
CPU has RAPL if the kernel exposes it (packages and memory). Both counters grow in steps and do not change
between two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from kernelpro.lab.measure import environment
from kernelpro.lab.sandbox import gpu
from kernelpro.records import Target

DeviceState = dict[str, int | None]
_POWERCAP, _CPUS, _THERMAL = (
    Path("/sys/class/powercap"),
    Path("/sys/devices/system/cpu"),
    Path("/sys/class/thermal"),
)
_ZONE_NAMES = ("package", "dram")
"""Names of disjoint RAPL zones. Others overlap: `core` and `uncore` are part of their package, and `psys`
contains everything."""
_MMIO_SUFFIX = "-mmio"
"""Zones with this suffix read the same registers through memory-mapped I/O."""


class NoEnergyCounter(Exception):
    """There is no readable energy counter, or it failed. The message is one line that says what to do."""


class EnergyCounter(Protocol):
    """A counter of energy, and the sensors of its device."""

    name: str

    def joules(self) -> float:
        """Return the energy in joules since an arbitrary but fixed time."""

    def state(self) -> DeviceState:
        """Return clocks, temperature and throttling, with the keys of gpu.Sensors.read; empty if unknown."""


class NvmlCounter:
    """NVML's total-energy counter of a board."""

    name = "NVML total energy of the board"

    def __init__(self, sensors: gpu.Sensors):
        self._sensors = sensors
        if sensors.energy_mj() is None:
            raise NoEnergyCounter(
                "NVML reports no total energy: it needs the driver's libnvidia-ml and a GPU of Volta or later"
            )

    def joules(self) -> float:
        """Return the energy since the driver was loaded."""
        value = self._sensors.energy_mj()
        if value is None:
            raise NoEnergyCounter("NVML stopped reporting total energy")
        return value / 1e3

    def state(self) -> DeviceState:
        """Return the readings of NVML's sensors."""
        return self._sensors.read()


class CpuSensors:
    """A CPU's clock, temperature and throttling, if Linux exposes them.

    Reads only the first core of each package.
    """

    def __init__(self, cpus: Path = _CPUS, thermal: Path = _THERMAL):
        first_cores: dict[str, Path] = {}
        for core in sorted(cpus.glob("cpu[0-9]*"), key=lambda path: (len(path.name), path.name)):
            first_cores.setdefault(_read_text(core / "topology/physical_package_id"), core)
        cores, zones = first_cores.values(), thermal.glob("thermal_zone*")
        self._clock_files = [core / "cpufreq/scaling_cur_freq" for core in cores]
        self._throttle_files = [core / "thermal_throttle/package_throttle_count" for core in cores]
        self._temperature_files = [
            zone / "temp" for zone in zones if _read_text(zone / "type") == "x86_pkg_temp"
        ]
        self._last_throttle_counts = _read_integers(self._throttle_files)

    def read(self) -> DeviceState:
        """Return the highest clock and temperature, and whether a package was throttled since the last
        call."""
        clocks = _read_integers(self._clock_files)
        temperatures = _read_integers(self._temperature_files)
        throttle_counts = _read_integers(self._throttle_files)
        throttled = throttle_counts > self._last_throttle_counts  # as lists: counts only grow
        self._last_throttle_counts = throttle_counts
        return {
            "sm_mhz": max(clocks) // 1000 if clocks else None,
            "memory_mhz": None,
            "temperature_c": max(temperatures) // 1000 if temperatures else None,
            "throttle": gpu.HARDWARE_THERMAL * throttled if throttle_counts else None,
        }


class RaplCounter:
    """The RAPL counters of all CPU packages and their memory."""

    def __init__(self, root: Path = _POWERCAP, sensors: CpuSensors | None = None):
        self._sensors = sensors or CpuSensors()
        zones = (path for path in sorted(root.glob("*:*")) if _MMIO_SUFFIX not in path.name)
        self._zones = [path for path in zones if _read_text(path / "name").startswith(_ZONE_NAMES)]
        if not self._zones:
            raise NoEnergyCounter(
                f"Linux exposes no energy counter: {root} has no RAPL zone"
                " (ARM and most virtual machines have none)"
            )
        for zone in self._zones:
            try:
                (zone / "energy_uj").read_text()
            except OSError as error:
                raise NoEnergyCounter(
                    f"the CPU's energy counter is not readable ({zone / 'energy_uj'}: {error.strerror}): "
                    f"run sudo chmod a+r {root}/*/energy_uj"
                ) from None
        self.name = "RAPL " + " + ".join(_read_text(zone / "name") for zone in self._zones)
        self._wrap_ranges = [int(_read_text(zone / "max_energy_range_uj") or 0) for zone in self._zones]
        self._last_values = self._read_zones()
        self._total_uj = 0

    def _read_zones(self) -> list[int]:
        try:
            return [int((zone / "energy_uj").read_text()) for zone in self._zones]
        except OSError as error:
            raise NoEnergyCounter(f"the CPU's energy counter became unreadable ({error.strerror})") from None

    def joules(self) -> float:
        """Return the energy since this object was created."""
        values = self._read_zones()
        for before, after, wrap_range in zip(self._last_values, values, self._wrap_ranges, strict=True):
            wrapped = after < before  # the counter restarts at 0 beyond its range
            self._total_uj += after - before + (max(wrap_range, before) if wrapped else 0)
        self._last_values = values
        return self._total_uj / 1e6

    def state(self) -> DeviceState:
        """Return the readings of the CPU's sensors."""
        return self._sensors.read()


def find_counter(target: Target) -> EnergyCounter:
    """Return the energy counter of a target. Raises NoEnergyCounter."""
    if target == "cpu":
        return RaplCounter()
    if not torch.cuda.is_available():
        raise NoEnergyCounter(
            "no CUDA device is visible to torch: run on a machine with a GPU, or use --target cpu"
        )
    return NvmlCounter(environment.sensors())


def _read_integers(paths: list[Path]) -> list[int]:
    """Read the integers in those files that are readable."""
    return [int(text) for path in paths if (text := _read_text(path)).isdigit()]


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
