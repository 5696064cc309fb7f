"""Which problems of KernelBench can be scored, by the judge's own probe, against the lists that others have published.

    python benchmarks/kernelbench_probe.py --kernelbench DIR --home DIR [--out FILE] [--small 1] [--seconds 500]

`kernelpro bench DIR --probe` over levels 1 to 3, in several processes at a time: whether a task can be scored does not depend on
the clock, so each process has a lock of its own, and no time is told here. Inputs have up to 17 GB, and float64 takes several times
that: of the large ones one is asked at a time, beside small ones. What is answered lies in the home, and the same command goes on;
what found no room beside the others is asked again, alone, when all else is answered.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from kernelpro.records import Options  # noqa: E402
from kernelpro.suites import judging, probe, problems  # noqa: E402
from kernelpro.suites.results_log import LoggedResult  # noqa: E402

LEVELS = (1, 2, 3)
LARGE = 1 << 30
"""Bytes of inputs."""
OPTIONS = Options(effort="quick", baselines=())
PUBLISHED: dict[str, dict[int, tuple[int, ...]]] = {
    "the output is zero": {2: (9, 23, 80, 83)},
    "zeros pass": {1: (23, 37), 2: (38,)},
    "work can be skipped": {1: (94, 95, 96, 98, 99, 100)},
    "the output is random": {2: (66, 83)},
    "left out by METR": {
        1: (8, 12, 23, 37, 39, 50, 77, 90, 95, 97),
        2: (9, 13, 23, 27, 36, 38, 41, 44, 45, 49, 58, 66, 77, 80, 83, 84, 89, 91, 93, 96),
        3: (3, 5, 7, 11, 12, 18, 28, 32, 34, 35, 45, 46, 47),
    },
}
"""Level -> problems. Some of these tasks were changed by KernelBench since."""


def probe(chosen: argparse.Namespace, part: str, level: int, ids: Iterable[int]) -> subprocess.Popen[bytes]:
    """A bench over some problems of a level, in a folder and with a lock of its own."""
    folder = chosen.home / part
    command = [
        sys.executable,
        "-m",
        "kernelpro",
        "bench",
        str(chosen.kernelbench),
        "--probe",
        "--quick",
        *(f"--no-baseline={name}" for name in ("eager_fp32", "eager_tf32", "compile")),
    ]
    command += ["--target", chosen.target, "--out", str(folder), "--format", "json", "--retry"]
    command += ["--ids", ",".join(map(str, ids)), f"--level={level}"]
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "KERNELPRO_LOCKS": str(folder / "locks")}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )


def is_large(problem: problems.Problem) -> bool:
    """Asked of tensors without data."""
    names: dict[str, Any] = {"__name__": "problem"}
    try:
        with torch.device("meta"):
            exec(problem.task.source, names)
            inputs = names["get_inputs"]()
    except Exception as error:  # whatever a problem raises, the probe will tell
        print(f"{problem.label}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return False
    return sum(leaf.nbytes for leaf in inputs if isinstance(leaf, torch.Tensor)) > LARGE


class Chain:
    """Processes one after the other."""

    def __init__(self, parts: Iterable[Callable[[], subprocess.Popen[bytes]]]):
        self._parts = iter(parts)
        self.process: subprocess.Popen[bytes] | None = None

    def goes_on(self) -> bool:
        while self.process is None or self.process.poll() is not None:
            if (begin := next(self._parts, None)) is None:
                return False
            self.process = begin()
        return True


def watch(running: list[Chain], home: Path, total: int, until: float) -> None:
    """Tell how far they are until all have ended or the time is up."""
    told = -1
    while [chain for chain in running if chain.goes_on()]:
        if (done := len(answered(home))) != told:
            print(f"{time.strftime('%H:%M:%S')} {done} of {total} answered", file=sys.stderr, flush=True)
            told = done
        if time.monotonic() > until:
            for chain in running:
                if chain.process and chain.process.poll() is None:
                    os.killpg(chain.process.pid, signal.SIGINT)
            break
        time.sleep(2)
    for chain in running:
        if chain.process:
            chain.process.wait()


def answered(home: Path) -> dict[str, LoggedResult]:
    """The last answer to each question, whichever process gave it; an error only where there is nothing better."""
    found: dict[str, LoggedResult] = {}
    for path in sorted(home.glob("*/results.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = LoggedResult.from_json(json.loads(line))
            except ValueError:
                continue  # cut short
            if entry.key not in found or entry.result.error is None:
                found[entry.key] = entry
    return found


def published(level: int, number: int) -> list[str]:
    return [name for name, of_level in PUBLISHED.items() if number in of_level.get(level, ())]


def compared(rows: list[dict[str, Any]]) -> list[str]:
    """In words: what was published, and what the probe says of it."""
    lines = []
    for name in PUBLISHED:
        known = [row for row in rows if name in row["published"] and row["scorable"] is not None]
        found = [row for row in known if not row["scorable"]]
        left = ", ".join(row["problem"].split()[0] for row in known if row["scorable"])
        lines.append(
            f"{name}: the probe refuses {len(found)} of {len(known)}"
            + (f"; it scores {left}" if left else "")
        )
    more = [row["problem"] for row in rows if row["scorable"] is False and not row["published"]]
    return [*lines, f"refused, and in no list: {len(more)}" + (f" ({'; '.join(more)})" if more else "")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kernelbench", type=Path, required=True, metavar="DIR", help="a checkout of KernelBench"
    )
    parser.add_argument("--home", type=Path, required=True, metavar="DIR", help="answers are kept here")
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--small",
        type=int,
        default=1,
        metavar="N",
        help="processes for small problems, beside one for large ones",
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after so long; the same command goes on"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything here, as JSON")
    chosen = parser.parse_args()
    until = time.monotonic() + chosen.seconds
    there = problems.find_problems(str(chosen.kernelbench), (), "", chosen.target)
    every = [problem for problem in there if problem.level in LEVELS]
    keys = {(p.level, p.number): [judging.BenchJob(p, chosen.target, OPTIONS).key] for p in every}

    def missing() -> list[problems.Problem]:
        known = {key for key, entry in answered(chosen.home).items() if entry.result.error is None}
        return [p for p in every if known.isdisjoint(keys[p.level, p.number])]

    def chain(name: str, wanted: list[problems.Problem]) -> Chain:
        """Level by level, the last first: its problems are the smallest."""
        ids = {level: [p.number for p in wanted if p.level == level] for level in reversed(LEVELS)}
        return Chain(
            partial(probe, chosen, f"{level}-{name}", level, ids[level]) for level in ids if ids[level]
        )

    large = list(filter(is_large, missing()))
    small = [problem for problem in missing() if problem not in large]
    shares = [chain(f"small-{number}", small[number :: chosen.small]) for number in range(chosen.small)]
    watch([chain("large", large), *shares], chosen.home, len(every), until)
    if time.monotonic() < until:  # they may have been in each other's way
        watch([chain("alone", missing())], chosen.home, len(every), until)
    found = probe.probe_rows(every, keys, answered(chosen.home))
    told = ("problem", "task", "scorable", "reason", "precision")
    rows = [
        {name: row.to_json()[name] for name in told} | {"published": published(problem.level, problem.number)}
        for row, problem in zip(found, every, strict=True)
    ]
    for row in rows:
        if row["scorable"] is not True:
            lists = f"  [{', '.join(row['published'])}]" if row["published"] else ""
            print(f"{row['problem']:60} {'no' if row['scorable'] is False else '?'}: {row['reason']}{lists}")
    counts = Counter(row["scorable"] for row in rows)
    print(
        f"\n{len(rows)} problems: {counts[True]} can be scored, {counts[False]} cannot, {counts[None]} not run or not answered"
    )
    print("\n".join(compared(rows)))
    if chosen.out:
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
            "compared": compared(rows),
        }
        chosen.out.write_text(json.dumps(about | {"problems": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
