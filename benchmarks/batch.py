"""Judge many candidates of many tasks with one local pool.

The pool keeps each task prepared and builds waiting candidates while others are timed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from kernelpro.pools import local  # noqa: E402
from kernelpro.records import Candidate, Job, Options, Task, Verdict  # noqa: E402


def judge_all(
    work: Sequence[tuple[Path, Sequence[Candidate]]], target: Literal["cpu", "cuda"], options: Options
) -> Iterator[tuple[Path, Verdict]]:
    """Yield each task's path with a verdict, in order; jobs without a verdict are reported on stderr."""
    pairs = [(path, candidate) for path, candidates in work for candidate in candidates]
    tasks = {path: Task.from_file(path) for path, _ in work}
    jobs = [
        Job(str(number), "judge", tasks[path], candidate, target, options)
        for number, (path, candidate) in enumerate(pairs)
    ]
    for (path, candidate), result in zip(pairs, local.run_locally(jobs), strict=True):
        if result.verdict:
            yield path, result.verdict
        else:
            print(f"{candidate.name}: {result.error}", file=sys.stderr, flush=True)
