"""What the time account is worth to a model: prompts with guidance, with raw counters, and with neither.

    python benchmarks/guidance_prompts.py write DIR      # prompts, from profiles recorded on an H200
    python benchmarks/guidance_prompts.py judge DIR [--effort quick] [--out FILE]    # the answers, on a GPU

`write` makes DIR/TASK/ARM/prompt.md for each task and arm: the task, a slow kernel for it and its time; `raw`
adds its hardware counters, stalls by line and launch configuration, `guided` the account and the findings.
The defect is named nowhere. Give each prompt to a fresh conversation of the same model (an inbox will do),
and save its answer, a complete candidate, as DIR/TASK/ARM/1.py (and 2.py, ... at equal numbers for all arms).
`judge` judges all answers, task by task, and prints the best time of each arm as a Markdown table. FILE gets
a line of JSON for each answer as it is judged; answers in it are not judged again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from pathlib import Path
from typing import Any

from batch import ROOT

from kernelpro.diagnose import guidance, runner
from kernelpro.diagnose.diagnostics import registry
from kernelpro.pools import local
from kernelpro.records import Candidate, Effort, Job, Options, Profile, Task

DEFECTS = ROOT / "tests" / "defects"
TASKS = (
    *("d_barrier_stall", "d_bank_conflicts", "d_excess_traffic", "d_missing_reuse"),
    *("d_narrow_access", "d_occupancy_limiter", "d_special_functions", "d_uncoalesced_access"),
)
ARMS = ("unguided", "raw", "guided")
_HEAD = """Write a faster kernel for this task on an NVIDIA H200. Answer with one complete Python file that
defines `ModelNew` with the interface of `Model`; it may use the same languages as the kernel below. It must
compute the same result within the usual tolerance of its precision.

## Task

```python
{task}
```

## The present kernel: {ms:.4f} ms; the least possible time is {floor:.4f} ms

```python
{source}
```
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("write", "judge"))
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--effort", choices=("quick", "normal", "full"), default="full")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append a line of JSON for each answer")
    arguments = parser.parse_args()
    if arguments.action == "write":
        record = json.loads(gzip.decompress((DEFECTS / "recorded" / "h200.json.gz").read_bytes()))
        for name in TASKS:
            write(arguments.folder / name, task_of(name), Profile.from_json(record[name]))
    else:
        rows = judge(arguments.folder, arguments.effort, arguments.out)
        print_table(rows)


def task_of(name: str) -> Task:
    """The task that the first line of a defect names."""
    fields = (DEFECTS / "gpu" / f"{name}.py").read_text(encoding="utf-8").splitlines()[0].split(" | ")
    task = next(field.removeprefix("task: ") for field in fields if field.startswith("task: "))
    return Task.from_file(DEFECTS / "tasks" / f"{task}.py")


def write(folder: Path, task: Task, profile: Profile) -> None:
    """Write the prompts of one task."""
    lines = profile.source.splitlines()
    source = "\n".join(lines[1:] if lines[0].startswith("# defect:") else lines)
    head = _HEAD.format(task=task.source, ms=profile.time_ms, floor=profile.floor_ms, source=source)
    diagnosis = runner.diagnose(profile, registry().values())
    sections = {
        "unguided": "",
        "raw": f"\n## Its hardware counters\n\n{raw_counters(profile)}\n",
        "guided": f"\n## Its diagnosis\n\n{guidance.write(diagnosis)}\n",
    }
    for arm in ARMS:
        (folder / arm).mkdir(parents=True, exist_ok=True)
        (folder / arm / "prompt.md").write_text(head + sections[arm], encoding="utf-8")


def raw_counters(profile: Profile) -> str:
    """All that was measured of the kernels, without any conclusion."""
    rows = []
    for kernel in profile.kernels:
        rows.append(
            f"{kernel.name}: {kernel.microseconds:.1f} us, {kernel.launches:g} launches, grid {kernel.grid}, "
            f"block {kernel.block}, {kernel.registers} registers"
        )
        rows += [f"- {metric}: {value:g}" for metric, value in sorted(kernel.metrics.items())]
        rows += [
            f"- {line.where}: {line.share:.0%} of the samples, stalls "
            + ", ".join(f"{reason} {share:.0%}" for reason, share in line.stalls.items())
            for line in kernel.lines
            if line.where
        ]
    return "\n".join(rows)


def judge(folder: Path, effort: Effort, out: Path | None) -> list[dict[str, Any]]:
    """Judge all answers that are not in `out` yet; returns a row for each."""
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out and out.exists() else []
    finished = {(row["task"], row["arm"], row["answer"]) for row in rows}
    answers = [
        (name, arm, path)
        for name in TASKS
        for arm in ARMS
        for path in sorted((folder / name / arm).glob("[0-9]*.py"))
        if (name, arm, path.name) not in finished
    ]
    options = Options(effort=effort, baselines=("eager_fp32",))
    jobs = [
        Job(str(path), "judge", task_of(name), Candidate.from_file(path), "cuda", options)
        for name, _, path in answers
    ]
    for (name, arm, path), result in zip(answers, local.run_locally(jobs), strict=True):
        verdict = result.verdict
        times = verdict.times if verdict else {}
        row = {
            "task": name,
            "arm": arm,
            "answer": path.name,
            "ms": times["candidate"].value if "candidate" in times else None,
            "status": str(verdict.status) if verdict else "error",
            "reason": verdict.reason if verdict else result.error,
        }
        print("{task} {arm} {answer}: {ms} ms, {status}: {reason}".format(**row), flush=True)
        rows.append(row)
        if out:
            with out.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the best time of each arm, and the geometric means."""
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row["task"], row["arm"]
        best[key] = min(row["ms"] or math.inf, best.get(key, math.inf))
    print(f"\n| task | {' | '.join(f'{arm}, ms' for arm in ARMS)} |\n|{'---|' * (len(ARMS) + 1)}")
    for name in TASKS:
        print(f"| {name} | {' | '.join(f'{best.get((name, arm), math.inf):.4f}' for arm in ARMS)} |")
    for arm in ARMS[:-1]:
        ratios = [
            best[name, arm] / best[name, "guided"]
            for name in TASKS
            if math.isfinite(best.get((name, arm), math.inf) + best.get((name, "guided"), math.inf))
        ]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"guided over {arm}: {mean:.3f}x over {len(ratios)} tasks in which both passed")


if __name__ == "__main__":
    main()
