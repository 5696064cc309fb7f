"""Energy counters: sums over zones, energy between two updates, errors without a counter, and calibration."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from in_process import WarmCommand

from kernelpro.cli.doctor import calibration_text
from kernelpro.lab.energy.counter import CpuSensors, NoEnergyCounter, RaplCounter, find_counter
from kernelpro.lab.energy.updates import (
    MAX_UNCERTAINTY,
    CounterTrace,
    CounterUpdate,
    UnresolvedEnergy,
    UpdatePeriod,
    poll,
    poll_idle,
)
from kernelpro.lab.sandbox import gpu
from kernelpro.records import EnergyData

HERE = Path(__file__).parent
with_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")


def zone(root: Path, place: str, name: str, microjoules: int = 0, most: int = 2**32) -> Path:
    folder = root / place
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    return folder / "energy_uj"


def put(path: Path, value: int) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(str(value))
    partial.replace(path)


@contextmanager
def powered(path: Path, watts: float, step: float) -> Iterator[None]:
    """A zone that counts: updated every `step` seconds."""
    stop, begun = threading.Event(), time.perf_counter()

    def run() -> None:
        while not stop.wait(step):
            put(path, int(1e6 * watts * (time.perf_counter() - begun)))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# --- RAPL ------------------------------------------------------------------------------------------------------------


def test_packages_and_memory_are_added_and_parts_of_a_package_are_not(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 5_000_000)
    core = zone(tmp_path, "intel-rapl:0:0", "core", 7_000_000)
    whole = zone(tmp_path, "intel-rapl:1", "psys", 7_000_000)
    counter = RaplCounter(tmp_path)
    for path, value in ((package, 3_000_000), (memory, 5_500_000), (core, 9_000_000), (whole, 9_000_000)):
        put(path, value)
    assert counter.joules() == pytest.approx(2.5) and counter.name == "RAPL package-0 + dram"


def test_zones_that_are_shown_twice_count_once(tmp_path: Path) -> None:
    paths = [zone(tmp_path, f"{way}:0", "package-0") for way in ("intel-rapl", "intel-rapl-mmio")]
    counter = RaplCounter(tmp_path)
    for path in paths:
        put(path, 1_000_000)
    assert counter.joules() == pytest.approx(1.0)


def test_a_counter_without_a_known_range_never_goes_back(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000)
    (path.parent / "max_energy_range_uj").unlink()
    counter = RaplCounter(tmp_path)
    put(path, 500_000)
    assert counter.joules() == pytest.approx(0.5)


def test_a_counter_that_disappears_raises(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0")
    counter = RaplCounter(tmp_path)
    path.unlink()
    with pytest.raises(NoEnergyCounter, match="became unreadable"):
        counter.joules()


def test_a_counter_that_begins_again_at_zero_loses_nothing(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000, most=10_000_000)
    counter = RaplCounter(tmp_path)
    put(path, 500_000)
    assert counter.joules() == pytest.approx(1.5)


def test_a_cpus_clock_temperature_and_throttling_are_read_where_linux_shows_them(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    cpus, thermal = tmp_path / "cpus", tmp_path / "thermal"
    assert RaplCounter(tmp_path, CpuSensors(cpus, thermal)).state() == {
        "sm_mhz": None,
        "memory_mhz": None,
        "temperature_c": None,
        "throttle": None,
    }
    shown = {f"cpu{n}/topology/physical_package_id": n // 2 for n in range(4)}
    shown |= {f"cpu{n}/cpufreq/scaling_cur_freq": 0 for n in (1, 3)}
    shown |= {"cpu0/cpufreq/scaling_cur_freq": 2_400_000, "cpu2/cpufreq/scaling_cur_freq": 3_100_000}
    shown |= {f"cpu{n}/thermal_throttle/package_throttle_count": 5 for n in (0, 2)}
    for name, value in shown.items():
        (cpus / name).parent.mkdir(parents=True, exist_ok=True)
        (cpus / name).write_text(f"{value}\n")
    for number, (kind, value) in enumerate((("x86_pkg_temp", 61_000), ("acpitz", 99_000))):
        (thermal / f"thermal_zone{number}").mkdir(parents=True)
        (thermal / f"thermal_zone{number}" / "type").write_text(f"{kind}\n")
        (thermal / f"thermal_zone{number}" / "temp").write_text(f"{value}\n")
    counter = RaplCounter(tmp_path, CpuSensors(cpus, thermal))
    calm = {"sm_mhz": 3100, "memory_mhz": None, "temperature_c": 61, "throttle": 0}
    assert counter.state() == calm
    put(cpus / "cpu2/thermal_throttle/package_throttle_count", 6)
    assert (counter.state()["throttle"] or 0) & gpu.SLOWDOWN and counter.state() == calm


def test_a_cpu_without_rapl_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoEnergyCounter, match="has no RAPL zone"):
        RaplCounter(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_the_error_for_an_unreadable_counter_names_the_remedy(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0").chmod(0)
    with pytest.raises(NoEnergyCounter, match="sudo chmod a\\+r"):
        RaplCounter(tmp_path)


# --- updates ---------------------------------------------------------------------------------------------------------


def test_between_updates_coarse_counters_are_exact(tmp_path: Path) -> None:
    """Updates every 80 ms in a window of 0.4 s: read at arbitrary times, the energy is wrong by up to 20 %."""
    path = zone(tmp_path, "intel-rapl:0", "package-0")
    with powered(path, watts=50.0, step=0.08):
        trace = poll(RaplCounter(tmp_path), lambda trace, elapsed: trace.duration() >= 0.4)
    assert trace.span().watts == pytest.approx(50.0, rel=0.05)
    assert trace.period().seconds == pytest.approx(0.08, rel=0.25)


def test_windows_are_as_long_as_the_counter_needs() -> None:
    assert UpdatePeriod(0.1, 0.001, 0.001).window_seconds == 2.0
    assert (
        2 * 0.01 / MAX_UNCERTAINTY
        < UpdatePeriod(0.1, 0.009, 0.001).window_seconds
        < 4 * 0.01 / MAX_UNCERTAINTY
    )
    assert UpdatePeriod(1.0, 0.001, 0.001).window_seconds == 5.0
    with pytest.raises(UnresolvedEnergy, match="windows of 60 s"):
        _ = UpdatePeriod(1.0, 0.1, 0.0).window_seconds


def test_a_trace_reports_its_uncertainty() -> None:
    trace = CounterTrace(
        [CounterUpdate(1.0, 100.0, 0.001), CounterUpdate(2.0, 150.0, 0.001), CounterUpdate(3.0, 300.0, 0.003)]
    )
    span = trace.span(jitter=0.002)
    assert span.watts == pytest.approx(100.0) and span.uncertainty == pytest.approx(0.004)


@pytest.mark.parametrize("late", [1, 4])
def test_spans_begin_and_end_at_the_sharpest_updates(late: int) -> None:
    """The first readings and the last were late."""
    updates = [CounterUpdate(0.1 * n, 10.0 * n, 0.001 if late <= n <= 20 - late else 0.03) for n in range(21)]
    span = CounterTrace(updates).span()
    assert (
        span.seconds == pytest.approx(2.0 - 0.2 * late)
        and span.watts == pytest.approx(100.0)
        and span.uncertainty < 0.002
    )


def test_a_slightly_sharper_update_is_not_worth_a_shorter_window() -> None:
    updates = [CounterUpdate(0.1 * n, 10.0 * n, 0.00099 if n in (4, 16) else 0.001) for n in range(21)]
    assert CounterTrace(updates).span().seconds == pytest.approx(2.0)


def test_a_counter_without_updates_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    monkeypatch.setattr("kernelpro.lab.energy.updates._MAX_STILL_SECONDS", 0.2)
    with pytest.raises(UnresolvedEnergy, match="updated 0 times"):
        poll_idle(RaplCounter(tmp_path), 0.1)


# --- NVML ------------------------------------------------------------------------------------------------------------

CALIBRATE = """
import pathlib, sys
from kernelpro.lab.energy import calibrate, updates
from kernelpro.lab.energy.counter import NvmlCounter
from kernelpro.lab.sandbox.gpu import Sensors
updates.MIN_WINDOW_SECONDS = 0.4
calibrate._IDLE_SECONDS, calibrate._LOAD_SECONDS, calibrate._WINDOWS = 1.0, 1.5, 4
report = calibrate.calibrate("cpu", lambda stage: None, NvmlCounter(Sensors("00000000:01:00.0")))
pathlib.Path(sys.argv[1]).write_text(report.dumps())
"""


def run_calibration(folder: Path) -> EnergyData:
    """Calibrate with a fake libnvidia-ml."""
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-O1",
        str(HERE / "fake_nvml.c"),
        "-o",
        str(folder / "libnvidia-ml.so.1"),
    ]
    subprocess.run(command, check=True)
    env = os.environ | {"LD_LIBRARY_PATH": str(folder), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", CALIBRATE, str(folder / "report.json")], env=env, check=True)
    return EnergyData.from_json(json.loads((folder / "report.json").read_text()))


@with_gcc
def test_calibration_finds_the_update_period_and_the_power_of_a_load(tmp_path: Path) -> None:
    report = run_calibration(tmp_path)
    idle, load, control = report.idle, report.load, report.control
    assert idle and load and control, report.error
    assert idle.period_s == pytest.approx(0.1, rel=0.1)
    assert idle.watts < load.watts <= 100 + 300 * (os.cpu_count() or 1)
    assert load.joules_per_update == pytest.approx(load.watts * load.period_s, rel=0.05)
    assert load.sm_mhz == 1980 and load.temperature_c == 41
    assert control.low <= 1 <= control.high and report.latency_s and report.latency_s > 0
    text = calibration_text(report)
    assert (
        "SM MHz 1980, C 41" in text
        and f"{load.watts:.0f} W under load" in text
        and "repeatability 4 windows" in text
    )


@pytest.mark.together
def test_doctor_reports_the_calibration_or_why_there_is_none(warm_kernelpro: WarmCommand) -> None:
    done = warm_kernelpro("doctor", "--energy", "--target", "cpu")
    assert "Traceback" not in done.stderr
    if done.returncode == 0:
        assert "repeatability" in done.stdout
    else:
        assert done.returncode == 1 and done.stderr.startswith("no energy counter for target cpu: ")


def test_no_gpu_no_counter() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(NoEnergyCounter, match="no CUDA device"):
        find_counter("cuda")
