"""Find the KernelBench problems that can be scored, and compare with published lists of flawed problems.

    python benchmarks/kernelbench_probe.py --kernelbench DIR --runs-dir DIR [--small 1] [--out FILE]

Runs `kernelpro bench DIR --probe` over levels 1 to 3 in several processes. Whether a task can be scored
does not depend on timing, so each process has its own lock, and no times are reported. Inputs take up to 17
GB, and float64 several times that: one process handles the large problems one at a time, beside the
processes for small ones. Problems that ran out of memory are probed again, alone, at the end.

Prints the problems that cannot be scored with the reason, and a comparison with each list. Answers are kept
in the runs directory; the same command continues.
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
from kernelpro.suites import judging, problems  # noqa: E402
from kernelpro.suites.probe import probe_rows  # noqa: E402
from kernelpro.suites.results_log import LoggedResult  # noqa: E402

LEVELS = (1, 2, 3)
LARGE = 1 << 30
"""Bytes of inputs from which on a problem is large."""
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
"""Published lists: problems by level. KernelBench has changed some of these tasks since."""


def start_probe(
    arguments: argparse.Namespace, part: str, level: int, ids: Iterable[int]
) -> subprocess.Popen[bytes]:
    """Start a bench over some problems of a level, with its own folder and lock."""
    folder = arguments.runs_dir / part
    command = [
        sys.executable,
        "-m",
        "kernelpro",
        "bench",
        str(arguments.kernelbench),
        "--probe",
        "--quick",
        *(f"--no-baseline={name}" for name in ("eager_fp32", "eager_tf32", "compile")),
    ]
    command += ["--target", arguments.target, "--out", str(folder), "--format", "json", "--retry"]
    command += ["--ids", ",".join(map(str, ids)), f"--level={level}"]
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "KERNELPRO_LOCKS": str(folder / "locks")}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stderr").open("ab") as errors:
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )


def is_large(problem: problems.Problem) -> bool:
    """Whether the inputs are large, computed from tensors without data."""
    names: dict[str, Any] = {"__name__": "problem"}
    try:
        with torch.device("meta"):
            exec(problem.task.source, names)
            inputs = names["get_inputs"]()
    except Exception as error:  # the probe reports the same error
        print(f"{problem.label}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return False
    return sum(leaf.nbytes for leaf in inputs if isinstance(leaf, torch.Tensor)) > LARGE


class ProcessQueue:
    """Runs processes one after the other."""

    def __init__(self, starters: Iterable[Callable[[], subprocess.Popen[bytes]]]):
        self._pending = iter(starters)
        self.process: subprocess.Popen[bytes] | None = None

    def advance(self) -> bool:
        """Start the next process if none runs; returns whether one is running."""
        while self.process is None or self.process.poll() is not None:
            if (start := next(self._pending, None)) is None:
                return False
            self.process = start()
        return True


def watch(queues: list[ProcessQueue], runs_dir: Path, total: int, deadline: float) -> None:
    """Report progress until all processes have ended; interrupt them at the deadline."""
    reported = -1
    while [queue for queue in queues if queue.advance()]:
        if (done := len(read_answers(runs_dir))) != reported:
            print(f"{time.strftime('%H:%M:%S')} {done} of {total} answered", file=sys.stderr, flush=True)
            reported = done
        if time.monotonic() > deadline:
            for queue in queues:
                if queue.process and queue.process.poll() is None:
                    os.killpg(queue.process.pid, signal.SIGINT)
            break
        time.sleep(2)
    for queue in queues:
        if queue.process:
            queue.process.wait()


def read_answers(runs_dir: Path) -> dict[str, LoggedResult]:
    """The last answer for each job, from all processes; an error only if there is no other answer."""
    answers: dict[str, LoggedResult] = {}
    for path in sorted(runs_dir.glob("*/results.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = LoggedResult.from_json(json.loads(line))
            except ValueError:
                continue  # an incomplete line
            if entry.key not in answers or entry.result.error is None:
                answers[entry.key] = entry
    return answers


def lists_with(level: int, number: int) -> list[str]:
    """The published lists that contain a problem."""
    return [name for name, of_level in PUBLISHED.items() if number in of_level.get(level, ())]


def compare_lists(rows: list[dict[str, Any]]) -> list[str]:
    """Compare the probe with each published list, in words."""
    lines = []
    for name in PUBLISHED:
        listed = [row for row in rows if name in row["published"] and row["scorable"] is not None]
        rejected = [row for row in listed if not row["scorable"]]
        scored = ", ".join(row["problem"].split()[0] for row in listed if row["scorable"])
        lines.append(
            f"{name}: the probe rejects {len(rejected)} of {len(listed)}"
            + (f"; it scores {scored}" if scored else "")
        )
    unlisted = [row["problem"] for row in rows if row["scorable"] is False and not row["published"]]
    return [
        *lines,
        f"rejected, in no list: {len(unlisted)}" + (f" ({'; '.join(unlisted)})" if unlisted else ""),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kernelbench", type=Path, required=True, metavar="DIR", help="a checkout of KernelBench"
    )
    parser.add_argument("--runs-dir", type=Path, required=True, metavar="DIR", help="keep the answers here")
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--small",
        type=int,
        default=1,
        metavar="N",
        help="processes for small problems, beside one for large ones",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="stop after so long; the same command continues",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all answers here, as JSON")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.time_limit
    all_problems = problems.find_problems(str(arguments.kernelbench), (), "", arguments.target)
    scored_levels = [problem for problem in all_problems if problem.level in LEVELS]
    keys = {
        (problem.level, problem.number): [judging.BenchJob(problem, arguments.target, OPTIONS).key]
        for problem in scored_levels
    }

    def missing() -> list[problems.Problem]:
        answered = {
            key for key, entry in read_answers(arguments.runs_dir).items() if entry.result.error is None
        }
        return [
            problem for problem in scored_levels if answered.isdisjoint(keys[problem.level, problem.number])
        ]

    def queue(name: str, selected: list[problems.Problem]) -> ProcessQueue:
        """Level by level, the last first: its problems are the smallest."""
        ids = {
            level: [problem.number for problem in selected if problem.level == level]
            for level in reversed(LEVELS)
        }
        return ProcessQueue(
            partial(start_probe, arguments, f"{level}-{name}", level, ids[level])
            for level in ids
            if ids[level]
        )

    large = list(filter(is_large, missing()))
    small = [problem for problem in missing() if problem not in large]
    shares = [queue(f"small-{number}", small[number :: arguments.small]) for number in range(arguments.small)]
    watch([queue("large", large), *shares], arguments.runs_dir, len(scored_levels), deadline)
    if time.monotonic() < deadline:  # problems that ran out of memory beside others
        watch([queue("alone", missing())], arguments.runs_dir, len(scored_levels), deadline)
    probed = probe_rows(scored_levels, keys, read_answers(arguments.runs_dir))
    fields = ("problem", "task", "scorable", "reason", "precision")
    rows = [
        {name: row.to_json()[name] for name in fields}
        | {"published": lists_with(problem.level, problem.number)}
        for row, problem in zip(probed, scored_levels, strict=True)
    ]
    for row in rows:
        if row["scorable"] is not True:
            lists = f"  [{', '.join(row['published'])}]" if row["published"] else ""
            print(f"{row['problem']:60} {'no' if row['scorable'] is False else '?'}: {row['reason']}{lists}")
    counts = Counter(row["scorable"] for row in rows)
    summary = f"{counts[True]} can be scored, {counts[False]} cannot, {counts[None]} without an answer"
    print(f"\n{len(rows)} problems: {summary}")
    print("\n".join(compare_lists(rows)))
    if arguments.out:
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
            "compared": compare_lists(rows),
        }
        arguments.out.write_text(json.dumps(about | {"problems": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
