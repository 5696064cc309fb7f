"""Many candidates of many tasks, judged by one local pool in one go: it stays warm, and what waits is built meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from kernelpro.pools import local  # noqa: E402
from kernelpro.records import Candidate, Job, Options, Task, Verdict  # noqa: E402


def judged(
    work: Sequence[tuple[Path, Sequence[Candidate]]], target: Literal["cpu", "cuda"], options: Options
) -> Iterator[tuple[Path, Verdict]]:
    """Each task's file with a verdict, in the order of the work; a job without a verdict is told and left out."""
    pairs = [(path, candidate) for path, candidates in work for candidate in candidates]
    tasks = {path: Task.from_file(path) for path, _ in work}
    jobs = [
        Job(str(number), "judge", tasks[path], candidate, target, options)
        for number, (path, candidate) in enumerate(pairs)
    ]
    for (path, candidate), result in zip(pairs, local.run(jobs), strict=True):
        if result.verdict:
            yield path, result.verdict
        else:
            print(f"{candidate.name}: {result.error}", file=sys.stderr, flush=True)
