"""Check the energy meter on this GPU: repeatability, agreement with sampled power, planted waste.

    python benchmarks/energy.py [--out FILE] [--pairs [NAME ...]]

1. Calibration, as `kernelpro doctor --energy`: the counter's step, latency, repeatability under a plain
   load.
2. A/A control: the same kernel in two sandboxes, five rounds, ten windows. Reports the spread of the
   windows; the interval of the energy ratio should contain 1.
3. Pairs (energy_pairs/): the same kernel lean and with waste that hides behind the bottleneck. The largest
   waste that costs less than 1 % of the time, in loops as energy is measured, is found by timing; more
   waste would reach the board's power limit. Then both kernels are measured in alternation. The wasteful
   one should take more energy, with intervals that do not overlap.
4. Meanwhile another process samples NVML's power 20 times a second. Its integral over each window is
   compared with the counter.

Takes about five minutes on an H200. `--pairs` runs only 3 and 4, for these pairs or all. Exit code 0: all
checks passed; 1: some failed; 2: no energy counter.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402

from kernelpro.lab.energy import student  # noqa: E402
from kernelpro.lab.energy.calibrate import calibrate  # noqa: E402
from kernelpro.lab.energy.counter import EnergyCounter, NoEnergyCounter, find_counter  # noqa: E402
from kernelpro.lab.energy.meter import compare  # noqa: E402
from kernelpro.lab.energy.window import Side  # noqa: E402
from kernelpro.lab.judge.tolerance import Tolerance  # noqa: E402
from kernelpro.lab.measure import environment  # noqa: E402
from kernelpro.lab.measure.bench import Bench  # noqa: E402
from kernelpro.lab.measure.errors import measure_errors  # noqa: E402
from kernelpro.lab.measure.participant import Participant  # noqa: E402
from kernelpro.lab.measure.statistics import SYSTEMATIC, ratio_interval  # noqa: E402
from kernelpro.lab.sandbox import gpu  # noqa: E402
from kernelpro.lab.sandbox.builds import Builds  # noqa: E402
from kernelpro.lab.sandbox.launcher import SandboxLauncher  # noqa: E402
from kernelpro.records import Candidate, Effort, Energy, Interval, Options, Target, Task  # noqa: E402

PAIRS = Path(__file__).parent / "energy_pairs"
_SAMPLES_PER_SECOND = 20.0
_ROUNDS = 20
"""Single calls of both sides that are timed."""
_MAX_TIME_RATIO = 1.007
"""Largest time ratio when waste is arguments, so that a later measurement stays within 1 %."""
_WARM_UP_SECONDS, _LOOP_SECONDS = 0.3, 0.4
"""The loops that match speeds: thousands of calls, and long enough for the board's power limit to act."""
_MAX_DISAGREEMENT = 0.05
"""Largest difference between sampled power and the counter."""


# --- Power sampled by another process ------------------------------------------------------------------


def sample_power(path: Path, bus: str) -> None:
    """Write lines of time and milliwatts until stdin ends."""
    sensors = gpu.Sensors(bus)
    with path.open("w") as file:
        while not select.select([sys.stdin], [], [], 1 / _SAMPLES_PER_SECOND)[0]:
            milliwatts = sensors.read()["power_mw"]
            if milliwatts is not None:
                file.write(f"{time.perf_counter():.6f} {milliwatts}\n")
                file.flush()


def agreement(path: Path, windows: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratio of sampled to counted joules over the windows."""
    samples = [tuple(map(float, line.split())) for line in path.read_text().splitlines()]
    ratios = []
    for window in windows:
        first, last = window["started_at"], window["started_at"] + window["seconds"]
        watts = [power / 1e3 for at, power in samples if first <= at <= last]
        if len(watts) >= _SAMPLES_PER_SECOND / 2 and not window["rejection"]:
            ratios.append(statistics.mean(watts) * window["seconds"] / window["joules"])
    if not ratios:
        return {"windows": 0}
    return {
        "windows": len(ratios),
        "median": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "samples_per_second": len(samples) / max(1e-9, samples[-1][0] - samples[0][0]),
    }


# --- A task and its kernels ----------------------------------------------------------------------------


class EnergyBench:
    """A prepared task on which kernels are timed and their energy is compared."""

    def __init__(self, task: Task, target: Target, launcher: SandboxLauncher, builds: Builds):
        options = Options(effort="quick", baselines=("eager_fp32",))
        self.bench = Bench(task, target, options, launcher, builds)
        self.bench.open(lambda stage: None)
        self.seeds = [self.bench.new_seed() for _ in range(24)]
        self._limit = Tolerance(self.bench.oracle, self.bench.precision, self.bench.new_seed()).limits[
            "as given"
        ]

    def check(self, outputs: list[torch.Tensor], seed: int) -> None:
        """Exit if a kernel's outputs are wrong."""
        errors = measure_errors(outputs, self.bench.oracle.truth(seed))
        if self._limit.share_used(errors) > 1:
            raise SystemExit(f"{self.bench.task.name}: wrong output of a kernel: {errors.where}")

    def start(self, source: str) -> Participant:
        """Load a kernel in a sandbox and check its first output."""
        participant = self.bench.start_candidate()
        self.bench.load_candidate(participant, Candidate(source))
        participant.prepare(300.0, collect=True)
        self.check(
            participant.call(self.bench.inputs(self.seeds[0]), self.bench.output_spec, 300.0).outputs,
            self.seeds[0],
        )
        return participant

    def call_times(self, *sides: Participant) -> list[torch.Tensor]:
        """Milliseconds per call of each side, called in alternation."""
        times: list[list[float]] = [[] for _ in sides]
        for seed in random.sample(self.seeds, _ROUNDS):
            inputs = self.bench.inputs(seed)
            for index in random.sample(range(len(sides)), len(sides)):
                sides[index].prepare(60.0, warm=True)
                times[index].append(sides[index].call(inputs, self.bench.output_spec, 60.0).sample.own_ms)
        return [torch.tensor(values, dtype=torch.float64) for values in times]

    def prepare_loop(self, side: Side) -> None:
        """Write inputs to all buffers of a side and warm it up."""
        for index, seed in enumerate(random.sample(self.seeds, side.buffer_sets)):
            side.participant.write_inputs(index, self.bench.inputs(seed))
        side.participant.prepare(60.0, warm=True)

    def loop_seconds_per_call(self, side: Side) -> float:
        """Seconds per call in a loop."""
        self.prepare_loop(side)
        for seconds in (_WARM_UP_SECONDS, _LOOP_SECONDS):
            side.participant.start_loop(side.buffer_sets, side.batch_calls)
            time.sleep(seconds)
            loop = side.participant.stop_loop(self.bench.output_spec, 60.0)
        return loop.seconds / loop.calls

    def make_side(self, name: str, participant: Participant, ms: torch.Tensor) -> Side:
        """A frozen participant, ready for the energy meter."""
        participant.process.freeze()
        return Side(name, participant, float(ms.median()), self.check)

    def compare(
        self, counter: EnergyCounter, candidate: Participant, lean: Participant, effort: Effort
    ) -> tuple[dict[str, Any], Energy]:
        """Times and energy of `candidate` over `lean`."""
        times, candidate_side, lean_side = self.compare_times(candidate, lean)
        return times, self.compare_energy(counter, candidate_side, lean_side, effort)

    def compare_times(self, candidate: Participant, lean: Participant) -> tuple[dict[str, Any], Side, Side]:
        """Times of `candidate` over `lean`, and both as sides for the energy meter."""
        candidate_ms, lean_ms = self.call_times(candidate, lean)
        ratio = ratio_interval((candidate_ms / lean_ms).log(), SYSTEMATIC["cuda"])
        times = {"ms": float(lean_ms.median()), "time_ratio": ratio.to_json()}
        candidate_side = self.make_side("candidate", candidate, candidate_ms)
        return times, candidate_side, self.make_side("lean", lean, lean_ms)

    def compare_energy(self, counter: EnergyCounter, candidate: Side, lean: Side, effort: Effort) -> Energy:
        """Energy of `candidate` over `lean`, measured in alternation."""
        self.bench.options = Options(effort=effort, baselines=("eager_fp32",))
        return compare(self.bench, counter, candidate, lean, self.seeds, lambda stage: None)


def with_waste(source: str, amount: int) -> str:
    """The source of a pair with this amount of waste; 0 is the lean kernel."""
    return re.sub(r"^WASTE = \d+", f"WASTE = {amount}", source, flags=re.M)


def find_free_waste(
    kernels: EnergyBench, source: str, wastes: list[int], lean: Participant
) -> tuple[int, Participant]:
    """Find the largest waste that costs no time; returns it with its kernel, loaded."""
    for amount in wastes:
        kernels.bench.builds.begin(
            Candidate(with_waste(source, amount)), kernels.bench.target, kernels.bench.options
        )
    free: tuple[int, Participant] | None = None
    ratios = []
    for amount in wastes:
        participant = kernels.start(with_waste(source, amount))
        ratios.append(loop_time_ratio(kernels, participant, lean))
        if ratios[-1] > _MAX_TIME_RATIO:
            participant.close()
            break
        if free:
            free[1].close()
        free = amount, participant
    if free is None:
        costs = ", ".join(
            f"{amount}: {ratio - 1:+.1%}" for amount, ratio in zip(wastes, ratios, strict=False)
        )
        raise SystemExit(f"{kernels.bench.task.name}: every amount of waste costs time ({costs})")
    return free


def loop_time_ratio(kernels: EnergyBench, candidate: Participant, lean: Participant) -> float:
    """Time of a call of `candidate` over `lean`, in loops."""
    _, *sides = kernels.compare_times(candidate, lean)
    seconds = {side.name: 0.0 for side in sides}
    for order in (sides, sides[::-1]):  # the side that runs second runs on a warmer board
        for side in order:
            seconds[side.name] += kernels.loop_seconds_per_call(side)
    return seconds["candidate"] / seconds["lean"]


# --- The measurements ----------------------------------------------------------------------------------


def measure_repeatability(counter: EnergyCounter, kernels: EnergyBench, source: str) -> dict[str, Any]:
    """A/A control: the same kernel on both sides."""
    first, second = kernels.start(source), kernels.start(source)
    try:
        times, energy = kernels.compare(counter, first, second, "normal")
    finally:
        first.close()
        second.close()
    joules = [window.joules_per_call for window in energy.windows if not window.rejection]
    return times | {
        "windows": len(joules),
        "joules_per_call": statistics.median(joules),
        "spread": statistics.stdev(joules) / statistics.median(joules),
        "range": (max(joules) - min(joules)) / statistics.median(joules),
        "a_a": energy.ratio["energy"].to_json(),
        "energy": energy.to_json(),
    }


def measure_pair(
    counter: EnergyCounter, kernels: EnergyBench, source: str, wastes: list[int]
) -> dict[str, Any]:
    """The energy of the wasteful kernel of a pair over the lean one."""
    lean = kernels.start(with_waste(source, 0))
    try:
        amount, wasteful = find_free_waste(kernels, source, wastes, lean)
        try:
            times, energy = kernels.compare(counter, wasteful, lean, "quick")
        finally:
            wasteful.close()
    finally:
        lean.close()
    apart = energy.joules["lean"].high < energy.joules["candidate"].low and energy.ratio["energy"].low > 1
    return times | {
        "waste": amount,
        "energy": energy.to_json(),
        "more": energy.ratio["energy"].value - 1,
        "apart": apart,
    }


def read_header(path: Path) -> dict[str, str]:
    """Parse the first line of a pair's file: `# task: NAME | wastes: 0, 8, ... | summary: ...`."""
    line = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    return dict(part.strip().partition(": ")[::2] for part in line.split("|"))


def run(
    arguments: argparse.Namespace, samples: Path, save: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Make all measurements, and save the results after each."""
    counter = find_counter("cuda")
    launcher = SandboxLauncher()
    builds = Builds(launcher)
    results: dict[str, Any] = {"pairs": {}}
    windows: list[dict[str, Any]] = []
    if arguments.pairs is None:
        results["calibration"] = calibrate("cuda", lambda stage: None).to_json()
        print(f"calibration: {json.dumps(results['calibration'])}", flush=True)
    try:
        files = [PAIRS / f"{name}.py" for name in arguments.pairs or ()] or sorted(
            PAIRS.glob("*_behind_*.py")
        )
        tasks: dict[str, list[Path]] = {}
        for path in files:
            tasks.setdefault(read_header(path)["task"], []).append(path)
        for task, paths in tasks.items():
            kernels = EnergyBench(Task.from_file(PAIRS / f"{task}.py"), "cuda", launcher, builds)
            try:
                if arguments.pairs is None and "a_a" not in results:
                    source = paths[0].read_text()
                    results["a_a"] = run_guarded(partial(measure_repeatability, counter, kernels, source))
                    windows += results["a_a"].get("energy", {}).get("windows", [])
                    print_a_a(results["a_a"])
                    save(results)
                for path in paths:
                    wastes = [int(amount) for amount in read_header(path)["wastes"].split(",") if int(amount)]
                    row = run_guarded(partial(measure_pair, counter, kernels, path.read_text(), wastes))
                    results["pairs"][path.stem] = row
                    windows += row.get("energy", {}).get("windows", [])
                    print_pair(path.stem, row)
                    save(results)
            finally:
                kernels.bench.close()
    finally:
        builds.close()
        launcher.close()
    results["agreement"] = agreement(samples, windows)
    return results


def run_guarded(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a measurement; if it fails, return the reason under `failed`, so that the others still run."""
    started = time.perf_counter()
    try:
        row = measure()
    except (Exception, SystemExit) as error:  # printed, and makes the exit code 1
        row = {"failed": f"{type(error).__name__}: {error}"}
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def format_interval(interval: dict[str, float], unit: float = 1.0, digits: int = 4) -> str:
    """`value [low, high]`, divided by `unit`."""
    value, low, high = (f"{interval[name] / unit:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def loop_time_interval(row: dict[str, Any]) -> Interval:
    """Time of the wasteful kernel over the lean one, while their energy was measured."""
    times: dict[str, list[float]] = {"candidate": [], "lean": []}
    for window in row["energy"]["windows"]:
        if not window["rejection"]:
            times[window["side"]].append(window["call_seconds"])
    return student.ratio_interval([wasteful / lean for wasteful, lean in zip(*times.values(), strict=False)])


def print_a_a(row: dict[str, Any]) -> None:
    """Print the result of the A/A control."""
    text = row.get("failed", "")
    if not text:
        text = f"{row['windows']} windows, spread {row['spread']:.2%}, range {row['range']:.2%}; "
        text += f"ratio {format_interval(row['a_a'])}"
    print(f"A/A: {text}; {row['seconds']} s", flush=True)


def print_pair(name: str, row: dict[str, Any]) -> None:
    """Print the result of a pair."""
    text = row.get("failed", "")
    if not text:
        joules = row["energy"]["joules"]
        both = " against ".join(
            f"{format_interval(joules[side], 1e-3, 2)} mJ" for side in ("candidate", "lean")
        )
        text = f"waste {row['waste']}, {row['ms']:.4f} ms, time {format_interval(row['time_ratio'])}, "
        text += f"in loops {format_interval(loop_time_interval(row).to_json())}, "
        text += f"energy {format_interval(row['energy']['ratio']['energy'])}, {both}, "
        text += "apart" if row["apart"] else "NOT apart"
    print(f"{name}: {text}; {row['seconds']} s", flush=True)


def failed_checks(results: dict[str, Any]) -> list[str]:
    """Describe the checks that failed."""
    failures = []
    a_a = results.get("a_a")
    if a_a and ("failed" in a_a or not a_a["a_a"]["low"] <= 1 <= a_a["a_a"]["high"]):
        failures.append("the interval of the A/A control does not contain 1")
    separated = [
        name
        for name, row in results["pairs"].items()
        if row.get("apart") and abs(loop_time_interval(row).value - 1) <= 0.01
    ]
    if len(separated) < len(results["pairs"]):
        failures.append(
            f"{len(separated)} of {len(results['pairs'])} pairs are equally fast and apart in energy"
        )
    median = results["agreement"].get("median")
    if median is None or abs(median - 1) > _MAX_DISAGREEMENT:
        failures.append(f"sampled power over counted energy is {median}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures here, as JSON")
    parser.add_argument("--pairs", nargs="*", metavar="NAME", help="only these pairs, or all; no A/A control")
    parser.add_argument("--sample", nargs=2, metavar=("FILE", "BUS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sample:
        sample_power(Path(arguments.sample[0]), arguments.sample[1])
        return 0
    if unknown := [name for name in arguments.pairs or () if not (PAIRS / f"{name}.py").exists()]:
        parser.error(f"unknown pair {', '.join(unknown)}: see {PAIRS.name}/")
    started = time.perf_counter()
    try:
        find_counter("cuda")
    except NoEnergyCounter as reason:
        print(f"energy cannot be measured: {reason}", file=sys.stderr)
        return 2

    def save(results: dict[str, Any]) -> None:
        if arguments.out:
            about = {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": " ".join(sys.argv),
                "environment": environment.snapshot("cuda").to_json(),
                "seconds": round(time.perf_counter() - started, 1),
            }
            arguments.out.write_text(json.dumps(about | results, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "power"
        command = [sys.executable, __file__, "--sample", str(samples), environment.pci_bus_id()]
        sampler = subprocess.Popen(command, stdin=subprocess.PIPE)
        try:
            results = run(arguments, samples, save)
        finally:
            assert sampler.stdin
            sampler.stdin.close()
            sampler.wait(timeout=30)
    print(f"sampled power over the counter: {json.dumps(results['agreement'])}")
    failures = failed_checks(results)
    for line in failures:
        print(f"failed: {line}")
    save(results | {"failures": failures})
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
