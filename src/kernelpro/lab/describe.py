"""What a worker reports about its machine and about a prepared task."""

from __future__ import annotations

import torch

from kernelpro.lab.energy.counter import NoEnergyCounter, find_counter
from kernelpro.lab.judge.judge import Judge
from kernelpro.lab.measure import environment
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.profile.device_properties import device_properties
from kernelpro.records import BadInput, EnvironmentData, Hardware, ProbeData, ShapeTimes, Target


def describe_environment(target: Target, sandbox: str) -> EnvironmentData:
    """Describe the machine. `sandbox`: the level that it supports. Raises BadInput if it lacks the target."""
    if target == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "no CUDA device is visible to torch here: use --target cpu, or run where there is a GPU"
        )
    snapshot = environment.snapshot(target)
    try:
        return EnvironmentData(snapshot, sandbox, energy_counter=find_counter(target).name)
    except NoEnergyCounter as reason:
        return EnvironmentData(snapshot, sandbox, energy_error=str(reason))


def probe_data(judge: Judge, timed: bool) -> ProbeData:
    """What a prepared judge knows about its task. `timed`: include the times of the baselines."""
    scorable, bench = judge.not_scorable is None, judge.bench
    names = judge.baselines.variants if timed and scorable else ()
    baselines = {name: judge.baselines.time_ms(name) for name in names}
    return ProbeData(
        scorable=scorable,
        reason=judge.not_scorable or "",
        precision=bench.precision,
        unit=bench.unit,
        hardware=_hardware(bench),
        work=bench.work,
        tolerance={name: limit.norm for name, limit in judge.tolerance.limits.items()},
        dropped=judge.tolerance.skipped,
        baselines=baselines,
        floor_ms=bench.floor_ms if scorable else None,
        stage_seconds=judge.preparation_seconds,
        shapes=(ShapeTimes(bench.shape, 1.0, baselines, floor_ms=bench.floor_ms),) if scorable else (),
    )


def _hardware(bench: Bench) -> Hardware:
    """The device and its measured ceilings, for authors."""
    device, ceilings = device_properties(bench.target, bench.ceilings), bench.ceilings
    versions = environment.snapshot(bench.target).known()
    words = {
        name.replace("_", " "): str(value)
        for name, value in device.to_json().items()
        if value is not None and name not in ("name", "dram_bandwidth")
    }
    words |= {name: str(versions[name]) for name in ("torch", "nvcc", "triton") if name in versions}
    return Hardware(device.name, ceilings.bandwidth, ceilings.cached_bandwidth, ceilings.rates, words)
