"""Counters of energy. A GPU has NVML's total-energy counter (whole board, since the driver was loaded); a CPU has RAPL where
the kernel shows it (packages and memory). Both only ever grow, in steps: what lies between two steps cannot be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from kernelpro.lab.measure import environment
from kernelpro.lab.sandbox import gpu
from kernelpro.records import Target

State = dict[str, int | None]
_POWERCAP, _CPUS, _THERMAL = (
    Path("/sys/class/powercap"),
    Path("/sys/devices/system/cpu"),
    Path("/sys/class/thermal"),
)
_COUNTED = ("package", "dram")
"""RAPL zones that do not contain each other; `core` and `uncore` are parts of their package, `psys` holds everything."""
_TWIN = "-mmio"
"""The same zones once more, by another way to the same registers."""


class NoCounter(Exception):
    """This machine counts no energy that we may read, or stopped to; the message is one sentence with what to do."""


class Counter(Protocol):
    name: str

    def joules(self) -> float:
        """Since some moment in the past."""

    def state(self) -> State:
        """Clocks, temperature and throttling now, as gpu.Sensors.read gives them; empty where nobody knows."""


class Nvml:
    name = "NVML total energy of the board"

    def __init__(self, sensors: gpu.Sensors):
        self._sensors = sensors
        if sensors.energy_mj() is None:
            raise NoCounter(
                "NVML gives no total energy here: it needs the driver's libnvidia-ml and a GPU since Volta"
            )

    def joules(self) -> float:
        value = self._sensors.energy_mj()
        if value is None:
            raise NoCounter("NVML gave no total energy any more, which it had given before")
        return value / 1e3

    def state(self) -> State:
        return self._sensors.read()


class Cores:
    """A CPU's clock, temperature and throttling, as far as Linux shows them: of the first core of each package, to be quick."""

    def __init__(self, cpus: Path = _CPUS, thermal: Path = _THERMAL):
        firsts: dict[str, Path] = {}
        for core in sorted(cpus.glob("cpu[0-9]*"), key=lambda path: (len(path.name), path.name)):
            firsts.setdefault(_text(core / "topology" / "physical_package_id"), core)
        self._clocks = [core / "cpufreq" / "scaling_cur_freq" for core in firsts.values()]
        self._slowed = [core / "thermal_throttle" / "package_throttle_count" for core in firsts.values()]
        self._zones = [
            zone / "temp" for zone in thermal.glob("thermal_zone*") if _text(zone / "type") == "x86_pkg_temp"
        ]
        self._before = _numbers(self._slowed)

    def read(self) -> State:
        clocks, degrees, slowed = (_numbers(paths) for paths in (self._clocks, self._zones, self._slowed))
        more, self._before = slowed > self._before, slowed  # counts only grow
        return {
            "sm_mhz": max(clocks) // 1000 if clocks else None,
            "memory_mhz": None,
            "temperature_c": max(degrees) // 1000 if degrees else None,
            "throttle": gpu.HARDWARE_THERMAL * more if slowed else None,
        }


class Rapl:
    def __init__(self, root: Path = _POWERCAP, cores: Cores | None = None):
        self._cores = cores or Cores()
        zones = (path for path in sorted(root.glob("*:*")) if _TWIN not in path.name)
        self._zones = [path for path in zones if _text(path / "name").startswith(_COUNTED)]
        if not self._zones:
            raise NoCounter(
                f"this CPU counts no energy that Linux shows: {root} has no RAPL zone (ARM and most virtual machines have none)"
            )
        for zone in self._zones:
            try:
                (zone / "energy_uj").read_text()
            except OSError as error:
                how = f"let it be read: sudo chmod a+r {root}/*/energy_uj"
                raise NoCounter(
                    f"the CPU's energy counter is closed ({zone / 'energy_uj'}: {error.strerror}); {how}"
                ) from None
        self.name = "RAPL " + " + ".join(_text(zone / "name") for zone in self._zones)
        self._ranges = [int(_text(zone / "max_energy_range_uj") or 0) for zone in self._zones]
        self._last = self._read()
        self._total = 0

    def _read(self) -> list[int]:
        try:
            return [int((zone / "energy_uj").read_text()) for zone in self._zones]
        except OSError as error:
            raise NoCounter(
                f"the CPU's energy counter could not be read any more ({error.strerror})"
            ) from None

    def joules(self) -> float:
        now = self._read()
        for before, after, size in zip(self._last, now, self._ranges, strict=True):
            turned = after < before  # it starts again at 0 beyond its range
            self._total += after - before + (max(size, before) if turned else 0)
        self._last = now
        return self._total / 1e6

    def state(self) -> State:
        return self._cores.read()


def find(target: Target) -> Counter:
    """The counter of this target, or NoCounter."""
    if target == "cpu":
        return Rapl()
    if not torch.cuda.is_available():
        raise NoCounter(
            "no CUDA device is visible to torch here: there is no GPU whose energy could be counted"
        )
    return Nvml(environment.sensors())


def _numbers(paths: list[Path]) -> list[int]:
    """Of files that can be read."""
    return [int(text) for path in paths if (text := _text(path)).isdigit()]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
