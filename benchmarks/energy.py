"""The energy meter on this GPU: how well it repeats, whether power sampled from outside agrees, whether it tells planted waste.

    python benchmarks/energy.py [--out FILE] [--pairs [NAME ...]]

1. `kernelpro energy`: the counter's step, latency, repeatability under a plain load.
2. A/A: the same kernel in two cells, five rounds: ten windows. Their spread; the ratio's interval should hold 1.
3. Pairs (energy_pairs/): the same kernel lean and with waste that hides behind what sets the time. The largest waste that costs
   less than 1 % of the time, in loops of calls as energy is measured, is found by timing; then both are measured in turn. The
   wasteful one should take more, with intervals apart. More waste than that would meet the board's power limit.
4. All the while another process reads NVML's power 20 times a second; over each window its integral is held against the counter.

About five minutes on an H200. With `--pairs` only 3 and 4, of these pairs or all. Exit code 0: everything is as it should be.
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
from kernelpro.lab.measure.errors import measure_errors  # noqa: E402
from kernelpro.lab.measure import environment, statistics  # noqa: E402
from kernelpro.lab.measure.bench import Bench  # noqa: E402
from kernelpro.lab.measure.participant import Participant  # noqa: E402
from kernelpro.lab.sandbox import gpu  # noqa: E402
from kernelpro.lab.sandbox.builds import Builds  # noqa: E402
from kernelpro.lab.sandbox.launcher import SandboxLauncher  # noqa: E402
from kernelpro.records import Candidate, Energy, Interval, Options, Target, Task  # noqa: E402

PAIRS = Path(__file__).parent / "energy_pairs"
_HZ = 20.0
_ROUNDS = 20
"""Single calls of both sides that are timed."""
_EQUAL = 1.007
"""Most that waste may cost in matching, so that a later measurement stays within 1 %."""
_WARM, _PACE = 0.3, 0.4
"""Seconds of a loop by which speeds are matched: thousands of calls, and time for the board's limit to act."""
_AGREE = 0.05
"""How far power sampled from outside may lie from the counter."""


# --- somebody else, who samples power ----------------------------------------------------------------------------------


def sample(path: Path, bus: str) -> None:
    """Lines of time and milliwatts, until stdin ends."""
    sensors = gpu.Sensors(bus)
    with path.open("w") as file:
        while not select.select([sys.stdin], [], [], 1 / _HZ)[0]:
            milliwatts = sensors.read()["power_mw"]
            if milliwatts is not None:
                file.write(f"{time.perf_counter():.6f} {milliwatts}\n")
                file.flush()


def agreement(path: Path, windows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sampled joules over counted ones, for each window."""
    samples = [tuple(map(float, line.split())) for line in path.read_text().splitlines()]
    ratios = []
    for window in windows:
        first, last = window["started_at"], window["started_at"] + window["seconds"]
        inside = [power / 1e3 for at, power in samples if first <= at <= last]
        if len(inside) >= _HZ / 2 and not window["rejection"]:
            ratios.append(statistics.mean(inside) * window["seconds"] / window["joules"])
    if not ratios:
        return {"windows": 0}
    return {
        "windows": len(ratios),
        "median": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "samples_a_second": len(samples) / max(1e-9, samples[-1][0] - samples[0][0]),
    }


# --- one task and the kernels for it -----------------------------------------------------------------------------------


class Table:
    """A task with everything that measuring a kernel of it takes."""

    def __init__(self, task: Task, target: Target, launcher: SandboxLauncher, builds: Builds):
        options = Options(effort="quick", baselines=("eager_fp32",))
        self.bench = Bench(task, target, options, launcher, builds)
        self.bench.open(lambda stage: None)
        self.seeds = [self.bench.new_seed() for _ in range(24)]
        self._limit = Tolerance(self.bench.oracle, self.bench.precision, self.bench.new_seed()).limits[
            "as given"
        ]

    def check(self, outputs: list[torch.Tensor], seed: int) -> None:
        errors = measure_errors(outputs, self.bench.oracle.truth(seed))
        if self._limit.share_used(errors) > 1:
            raise SystemExit(f"{self.bench.task.name}: a kernel is wrong: {errors.where}")

    def seat(self, source: str) -> Participant:
        """A kernel in a cell, loaded, its first output checked."""
        participant = self.bench.start_candidate()
        self.bench.load_candidate(participant, Candidate(source))
        participant.prepare(300.0, tidy=True)
        self.check(
            participant.call(self.bench.inputs(self.seeds[0]), self.bench.output_spec, 300.0).outputs,
            self.seeds[0],
        )
        return participant

    def times(self, *sides: Participant) -> list[torch.Tensor]:
        """Milliseconds a call, in turn."""
        found: list[list[float]] = [[] for _ in sides]
        for seed in random.sample(self.seeds, _ROUNDS):
            inputs = self.bench.inputs(seed)
            for index in random.sample(range(len(sides)), len(sides)):
                sides[index].prepare(60.0, warm=True)
                found[index].append(sides[index].call(inputs, self.bench.output_spec, 60.0).sample.own_ms)
        return [torch.tensor(values, dtype=torch.float64) for values in found]

    def ready(self, side: Side) -> None:
        """Inputs in all its buffers, and the side warm: before its loops."""
        for index, seed in enumerate(random.sample(self.seeds, side.buffer_sets)):
            side.participant.write_inputs(index, self.bench.inputs(seed))
        side.participant.prepare(60.0, warm=True)

    def pace(self, side: Side) -> float:
        """Seconds a call, in a loop."""
        self.ready(side)
        for seconds in (_WARM, _PACE):
            side.participant.start_loop(side.buffer_sets, side.batch_calls)
            time.sleep(seconds)
            loop = side.participant.stop_loop(self.bench.output_spec, 60.0)
        return loop.seconds / loop.calls

    def side(self, name: str, participant: Participant, ms: torch.Tensor) -> Side:
        participant.process.freeze()
        return Side(name, participant, float(ms.median()), self.check)

    def compared(
        self, counter: EnergyCounter, one: Participant, other: Participant, effort: Any
    ) -> tuple[dict[str, Any], Energy]:
        """Times and energy of `one` over `other`."""
        times, *sides = self.timed(one, other)
        return times, self.energy(counter, *sides, effort)

    def timed(self, one: Participant, other: Participant) -> tuple[dict[str, Any], Side, Side]:
        """The times of `one` over `other`, and both, ready for a meter."""
        ours, theirs = self.times(one, other)
        ratio = statistics.ratio_interval((ours / theirs).log())
        times = {"ms": float(theirs.median()), "time_ratio": ratio.to_json()}
        return times, self.side("candidate", one, ours), self.side("lean", other, theirs)

    def energy(self, counter: EnergyCounter, one: Side, other: Side, effort: Any) -> Energy:
        self.bench.options = Options(effort=effort, baselines=("eager_fp32",))
        return compare(self.bench, counter, one, other, self.seeds, lambda stage: None)


def wasteful(source: str, amount: int) -> str:
    return re.sub(r"^WASTE = \d+", f"WASTE = {amount}", source, flags=re.M)


def matched(table: Table, source: str, wastes: list[int], lean: Participant) -> tuple[int, Participant]:
    """The largest waste that takes as long as none, in its cell."""
    for amount in wastes:
        table.bench.builds.begin(Candidate(wasteful(source, amount)), table.bench.target, table.bench.options)
    chosen: tuple[int, Participant] | None = None
    seen = []
    for amount in wastes:
        participant = table.seat(wasteful(source, amount))
        seen.append(slower(table, participant, lean))
        if seen[-1] > _EQUAL:
            participant.close()
            break
        if chosen:
            chosen[1].close()
        chosen = amount, participant
    if chosen is None:
        told = ", ".join(f"{amount}: {ratio - 1:+.1%}" for amount, ratio in zip(wastes, seen, strict=False))
        raise SystemExit(f"{table.bench.task.name}: all waste costs time ({told})")
    return chosen


def slower(table: Table, one: Participant, other: Participant) -> float:
    """Time of `one` over `other`'s, in loops."""
    _, *sides = table.timed(one, other)
    paces: dict[str, list[float]] = {side.name: [] for side in sides}
    for ordered in (sides, sides[::-1]):  # whoever runs second finds a warmer board
        for side in ordered:
            paces[side.name].append(table.pace(side))
    ours, theirs = paces.values()
    return sum(ours) / sum(theirs)


# --- the three questions -----------------------------------------------------------------------------------------------


def repeatability(counter: EnergyCounter, table: Table, source: str) -> dict[str, Any]:
    one, other = table.seat(source), table.seat(source)
    try:
        times, energy = table.compared(counter, one, other, "normal")
    finally:
        one.close()
        other.close()
    joules = [window.joules_per_call for window in energy.windows if not window.rejection]
    return times | {
        "windows": len(joules),
        "joules_per_call": statistics.median(joules),
        "spread": statistics.stdev(joules) / statistics.median(joules),
        "range": (max(joules) - min(joules)) / statistics.median(joules),
        "a_a": energy.ratio["energy"].to_json(),
        "energy": energy.to_json(),
    }


def pair(counter: EnergyCounter, table: Table, source: str, wastes: list[int]) -> dict[str, Any]:
    lean = table.seat(wasteful(source, 0))
    try:
        amount, other = matched(table, source, wastes, lean)
        try:
            times, energy = table.compared(counter, other, lean, "quick")
        finally:
            other.close()
    finally:
        lean.close()
    apart = energy.joules["lean"].high < energy.joules["candidate"].low and energy.ratio["energy"].low > 1
    return times | {
        "waste": amount,
        "energy": energy.to_json(),
        "more": energy.ratio["energy"].value - 1,
        "apart": apart,
    }


def about(path: Path) -> dict[str, str]:
    line = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    return dict(part.strip().partition(": ")[::2] for part in line.split("|"))


def run(chosen: argparse.Namespace, samples: Path, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    counter = find_counter("cuda")
    launcher = SandboxLauncher()
    builds = Builds(launcher)
    found: dict[str, Any] = {"pairs": {}}
    windows: list[dict[str, Any]] = []
    if chosen.pairs is None:
        found["calibration"] = calibrate("cuda", lambda stage: None).to_json()
        print(f"calibration: {json.dumps(found['calibration'])}", flush=True)
    try:
        files = [PAIRS / f"{name}.py" for name in chosen.pairs or ()] or sorted(PAIRS.glob("*_behind_*.py"))
        tables: dict[str, list[Path]] = {}
        for path in files:
            tables.setdefault(about(path)["task"], []).append(path)
        for task, paths in tables.items():
            table = Table(Task.from_file(PAIRS / f"{task}.py"), "cuda", launcher, builds)
            try:
                if chosen.pairs is None and "a_a" not in found:
                    found["a_a"] = tried(lambda t=table, p=paths[0]: repeatability(counter, t, p.read_text()))
                    windows += found["a_a"].get("energy", {}).get("windows", [])
                    print_a_a(found["a_a"])
                    keep(found)
                for path in paths:
                    wastes = [int(amount) for amount in about(path)["wastes"].split(",") if int(amount)]
                    row = tried(lambda t=table, p=path, w=wastes: pair(counter, t, p.read_text(), w))
                    found["pairs"][path.stem] = row
                    windows += row.get("energy", {}).get("windows", [])
                    print_pair(path.stem, row)
                    keep(found)
            finally:
                table.bench.close()
    finally:
        builds.close()
        launcher.close()
    found["agreement"] = agreement(samples, windows)
    return found


def tried(question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """An answer, or why there is none; the other questions are asked all the same."""
    begun = time.perf_counter()
    try:
        answer = question()
    except (Exception, SystemExit) as reason:  # whatever it is, it is printed, and makes the exit code 1
        answer = {"failed": f"{type(reason).__name__}: {reason}"}
    return answer | {"seconds": round(time.perf_counter() - begun, 1)}


def shown(ratio: dict[str, float], unit: float = 1.0, digits: int = 4) -> str:
    value, low, high = (f"{ratio[name] / unit:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def in_loops(row: dict[str, Any]) -> Interval:
    """Time of the wasteful one over the lean one's, while their energy was measured, over rounds."""
    times: dict[str, list[float]] = {"candidate": [], "lean": []}
    for window in row["energy"]["windows"]:
        if not window["rejection"]:
            times[window["side"]].append(window["call_seconds"])
    return student.ratio_interval([ours / theirs for ours, theirs in zip(*times.values(), strict=False)])


def print_a_a(row: dict[str, Any]) -> None:
    text = row.get("failed") or (
        f"{row['windows']} windows, spread {row['spread']:.2%}, range {row['range']:.2%}; ratio {shown(row['a_a'])}"
    )
    print(f"A/A: {text}; {row['seconds']} s", flush=True)


def print_pair(name: str, row: dict[str, Any]) -> None:
    text = row.get("failed", "")
    if not text:
        joules = row["energy"]["joules"]
        both = " against ".join(f"{shown(joules[side], 1e-3, 2)} mJ" for side in ("candidate", "lean"))
        text = f"waste {row['waste']}, {row['ms']:.4f} ms, time {shown(row['time_ratio'])}, "
        text += f"in loops {shown(in_loops(row).to_json())}, "
        text += f"energy {shown(row['energy']['ratio']['energy'])}, {both}, {'apart' if row['apart'] else 'NOT apart'}"
    print(f"{name}: {text}; {row['seconds']} s", flush=True)


def as_it_should_be(found: dict[str, Any]) -> list[str]:
    """What is not."""
    wrong = []
    a_a = found.get("a_a")
    if a_a and ("failed" in a_a or not a_a["a_a"]["low"] <= 1 <= a_a["a_a"]["high"]):
        wrong.append("A/A does not hold 1")
    good = [
        name
        for name, row in found["pairs"].items()
        if row.get("apart") and abs(in_loops(row).value - 1) <= 0.01
    ]
    if len(good) < len(found["pairs"]):
        wrong.append(f"{len(good)} of {len(found['pairs'])} pairs are equally fast and apart in energy")
    median = found["agreement"].get("median")
    if median is None or abs(median - 1) > _AGREE:
        wrong.append(f"sampled power over counted energy is {median}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pairs", nargs="*", help="neither calibration nor A/A: only these pairs, or all")
    parser.add_argument("--sample", nargs=2, metavar=("FILE", "BUS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.sample:
        sample(Path(chosen.sample[0]), chosen.sample[1])
        return 0
    if unknown := [name for name in chosen.pairs or () if not (PAIRS / f"{name}.py").exists()]:
        parser.error(f"no pair is called {', '.join(unknown)}: see {PAIRS.name}/")
    begun = time.perf_counter()
    try:
        find_counter("cuda")
    except NoEnergyCounter as reason:
        print(f"no energy here: {reason}", file=sys.stderr)
        return 2

    def keep(found: dict[str, Any]) -> None:
        if chosen.out:
            place = {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": " ".join(sys.argv),
                "environment": environment.snapshot("cuda"),
                "seconds": round(time.perf_counter() - begun, 1),
            }
            chosen.out.write_text(json.dumps(place | found, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "power"
        command = [sys.executable, __file__, "--sample", str(samples), environment.pci_bus_id()]
        other = subprocess.Popen(command, stdin=subprocess.PIPE)
        try:
            found = run(chosen, samples, keep)
        finally:
            assert other.stdin
            other.stdin.close()
            other.wait(timeout=30)
    print(f"sampled over counted: {json.dumps(found['agreement'])}")
    wrong = as_it_should_be(found)
    for line in wrong:
        print(f"not as it should be: {line}")
    keep(found | {"wrong": wrong})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
