"""Judge a whole suite in little device time: one line of JSON per problem, stopped and continued at will.

    python benchmarks/judge_suite.py kernelbench:DIR --out OUT --seconds 500
    python benchmarks/judge_suite.py kernels:h100.json --out OUT --seconds 500
    python benchmarks/judge_suite.py --table OUT/rows.jsonl ...

Every problem of a suite is prepared, probed and judged. The candidate is torch.compile's own code for the
reference (the reference itself where there is none), so that an honest judge passes all of them; kernels:PATH
judges the kernels of the collection instead. While the device is measuring, `--ahead` processes compile the
next references (lab/compile_ahead) and the worker builds the next candidates.

Where torch.compile's code is clearly not as fast as itself, its source and the baseline's go to OUT/differ.

`OUT/rows.jsonl` gets a row when a problem is done; `OUT/results.jsonl` the whole result, from which
`kernelpro bench kernels:PATH --out OUT` makes its table. Problems that have a row there, or in a file of
`--previous`, are skipped. Levels are interleaved: a run that ends early has covered all of them.

`--sample N` draws N problems at random, with `--max-gb` among those whose eager call needs no more memory.
`--free-gb` occupies the device's memory up to that rest first, as if the device were smaller; the contexts of
processes that compile ahead come on top.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from suite_rows import format_tables, read_rows

from kernelpro.lab.compile_ahead import AheadCompilers, AheadRequest, AheadResult
from kernelpro.lab.sandbox.extensions import uses_extensions
from kernelpro.pools.local import LocalPool
from kernelpro.records import Candidate, Job, Options, Result, StudyData, digest
from kernelpro.suites.judging import BenchJob
from kernelpro.suites.problems import Problem, find_problems, interleave
from kernelpro.suites.published import find_published, is_published
from kernelpro.suites.results_log import LoggedResult, ResultsLog

Row = dict[str, Any]
MAX_IN_POOL = 12
"""Judgements in the pool: enough to keep the device busy, few enough to lose little at the end."""
AHEAD_CONTEXT_GB = 0.7
"""Device memory of a process that compiles ahead."""
WORKER_LOG_BYTES = 4000
"""Of a worker's error output in a row without a verdict."""


@dataclass
class Item:
    """A problem on its way through the stages."""

    problem: Problem
    published: Candidate | None = None
    ahead: AheadResult = field(default_factory=AheadResult)
    key: str = ""

    def candidate(self) -> tuple[str, Candidate]:
        """What is judged, and what it is."""
        if self.published:
            return "published", self.published
        name = self.problem.task.name
        if self.ahead.seed:
            return "torch.compile", Candidate(self.ahead.seed, f"{name}_compiled")
        task = self.problem.task
        source = f"{task.source}\n\n\nclass ModelNew({task.entry}):\n    pass\n"
        return "reference", Candidate(source, f"{name}_reference")


def find_items(options: argparse.Namespace, judge: Options) -> list[Item]:
    """All problems of the suite with the keys of their rows."""
    arguments = (options.suite, (), options.ids, options.target)
    if is_published(options.suite):
        items = [Item(kernel.problem, kernel.candidate) for kernel in find_published(*arguments)]
    else:
        items = [Item(problem) for problem in find_problems(*arguments)]
        items = [item for item in items if item.problem.level in (0, 1, 2, 3)]
    for item in items:
        what = item.published.id if item.published else f"own, ahead: {options.ahead > 0}"
        item.key = digest(item.problem.task.id, what, options.target, judge.nondefault_json())
    return items


def builds_extension(item: Item) -> bool:
    """Whether a published kernel is an extension, which takes a minute to build."""
    return bool(item.published and uses_extensions(item.published.source))


# --- the device ------------------------------------------------------------------------------------------


class MemoryWatch:
    """The device's used memory twice a second, as nvidia-smi reports it."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._process: subprocess.Popen[str] | None = None
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "500"]
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process and self._process.stdout
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self._samples.append((time.monotonic(), int(line) * 2**20 / 1e9))

    def peak_gb(self, since: float) -> float | None:
        """The most memory in use since a point in time."""
        return max((round(used, 2) for at, used in list(self._samples) if at >= since), default=None)

    def close(self) -> None:
        """Stop watching."""
        if self._process:
            self._process.kill()


BALLAST = """
import sys, torch
free = torch.cuda.mem_get_info()[0] - int(float(sys.argv[1]) * 1e9)
blocks = [torch.empty(2**28, dtype=torch.uint8, device="cuda") for _ in range(max(0, free) // 2**28)]
print(torch.cuda.mem_get_info()[0] / 1e9, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def ballast(free_gb: float | None) -> Iterator[float | None]:
    """Occupy the device's memory until so much is free; gives what is free then."""
    if free_gb is None:
        yield None
        return
    process = subprocess.Popen(
        [sys.executable, "-c", BALLAST, str(free_gb)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit("--free-gb: the memory could not be occupied; see the error above")
        yield float(line)
    finally:
        process.stdin.close()
        process.wait()


# --- the run ---------------------------------------------------------------------------------------------


class SuiteRun:
    """Problems wait for their compilation, then for the judge; each that is done becomes a row."""

    def __init__(self, options: argparse.Namespace, judge: Options, items: list[Item], done: set[str]):
        self.options, self.judge = options, judge
        self.items = items
        self.done = done
        self.started = time.monotonic()
        self.deadline = self.started + options.seconds
        self.ready: deque[Item] = deque()
        self.compiling: dict[Future[AheadResult], Item] = {}
        self.judging: dict[Future[Result], tuple[Item, str, BenchJob]] = {}
        self.studied: dict[Future[Result], Item] = {}
        self.last_done = self.started
        self.rows = 0
        self.accepted = 0

    def run(self) -> bool:
        """Judge everything that is missing; returns whether all of it was done in time."""
        options, out = self.options, self.options.out
        self.progress = os.fdopen(os.dup(2), "w")
        self.worker_log = out / "worker.log"
        with self.worker_log.open("ab") as log:
            os.dup2(log.fileno(), 2)  # workers inherit it: their tracebacks are part of the results
        self.file = (out / "rows.jsonl").open("a", encoding="utf-8")
        self.stages = (out / "stages.log").open("a", encoding="utf-8")
        ahead = AheadCompilers(options.ahead, out / "ahead.log") if options.ahead else None
        memory = MemoryWatch() if options.target == "cuda" else None
        try:
            with ResultsLog(out) as results, LocalPool(warn=self.say) as pool:
                self.results, self.pool, self.memory = results, pool, memory
                # the worker starts while the first references compile
                pool.submit(Job("environment", "environment", target=options.target))
                return self._loop(ahead)
        finally:
            if ahead:
                ahead.close()
            if memory:
                memory.close()
            self.file.close()
            self.stages.close()

    def _loop(self, ahead: AheadCompilers | None) -> bool:
        limit = self.options.sample or len(self.items)
        for item in filter(builds_extension, self.items):
            assert item.published
            # all builds start now; the items that need none are judged first
            self.pool.build_ahead(item.problem.task, self.options.target, self.judge, (item.published,))
        waiting = deque(self.items)
        while True:
            # a sample looks at problems until enough of them are small enough
            while waiting and len(self.compiling) < 2 * max(1, self.options.ahead):
                if self.accepted + len(self.compiling) >= limit:
                    break
                item = waiting.popleft()
                if ahead is None:
                    self._accept(item)
                else:
                    request = AheadRequest(item.problem.task, self.options.target)
                    self.compiling[ahead.submit(request)] = item
            while self.ready and len(self.judging) < MAX_IN_POOL:
                self._submit(self.ready.popleft())
            futures = [*self.compiling, *self.judging, *self.studied]
            if not futures:
                return True
            if time.monotonic() > self.deadline:
                self.say(f"time is up: {len(self.items) - self.rows} left; the same command continues")
                return False
            for future in wait(futures, timeout=0.5, return_when=FIRST_COMPLETED).done:
                if future in self.compiling:
                    item = self.compiling.pop(future)
                    item.ahead = future.result()
                    spent = f"{time.monotonic() - self.started:5.0f} s"
                    seconds = f"{item.ahead.seconds.get('compile', 0.0):6.1f} s"
                    why = f" {item.ahead.reason[:80]}" if item.ahead.reason else ""
                    self.say(f"{spent} {item.problem.label[:50]:50} {'compiled':13} {seconds}{why}")
                    self._accept(item)
                elif future in self.studied:
                    self._keep_sources(self.studied.pop(future), future.result())
                else:
                    self._finish(*self.judging.pop(future), future.result())

    def _accept(self, item: Item) -> None:
        needed, limit = item.ahead.eager_bytes, self.options.max_gb
        if limit is not None and (needed is None or needed > limit * 1e9):
            return
        self.accepted += 1
        if item.key not in self.done:
            self.ready.append(item)

    def _submit(self, item: Item) -> None:
        what, candidate = item.candidate()
        job = BenchJob(item.problem, self.options.target, self.judge, candidate)
        label = item.problem.label[:50]
        future = self.pool.submit(job.job(), lambda report: self._note_stage(label, report.stage))
        self.judging[future] = item, what, job

    def _note_stage(self, label: str, stage: str) -> None:
        """Write a stage of a job to OUT/stages.log, which shows where a job that does not end stays."""
        self.stages.write(f"{time.monotonic() - self.started:7.1f} s {label:50} {stage}\n")
        self.stages.flush()

    def _finish(self, item: Item, what: str, job: BenchJob, result: Result) -> None:
        now = time.monotonic()
        result, label = replace(result, job=job.key), item.problem.label
        self.results.add(LoggedResult(job.key, result, result.device_seconds, problem=label))
        row = make_row(item, what, result)
        row["wall_s"] = round(now - self.last_done, 2)
        row["used_gb"] = self.memory.peak_gb(self.last_done) if self.memory else None
        if result.lost or result.error:
            row["worker_log"] = self._worker_log_tail()
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        self._study_if_different(item, what, result)
        self.last_done, self.rows = now, self.rows + 1
        spent = f"{now - self.started:5.0f} s"
        self.say(f"{spent} {item.problem.label[:50]:50} {row['status']:13} {row['device_s']:6.1f} s")

    def _study_if_different(self, item: Item, what: str, result: Result) -> None:
        ratio = result.verdict.speedup.get("compile") if result.verdict else None
        if what == "torch.compile" and ratio and not ratio.low <= 1 <= ratio.high:
            options, task = self.judge, item.problem.task
            job = Job("study", "study", task, target=self.options.target, options=options)
            self.studied[self.pool.submit(replace(job, seed_baselines=("compile",)))] = item

    def _keep_sources(self, item: Item, result: Result) -> None:
        folder = self.options.out / "differ"
        folder.mkdir(exist_ok=True)
        sources = {"candidate": item.ahead.seed}
        if isinstance(result.data, StudyData):
            sources |= {seed.baseline: seed.source for seed in result.data.seeds}
        for name, source in sources.items():
            (folder / f"{item.problem.task.name}_{name}.py").write_text(source, encoding="utf-8")

    def _worker_log_tail(self) -> str:
        data = self.worker_log.read_bytes()[-WORKER_LOG_BYTES:]
        return data.decode(errors="replace")

    def say(self, line: str) -> None:
        """Print a line of progress."""
        print(line, file=self.progress, flush=True)


def make_row(item: Item, what: str, result: Result) -> Row:
    """What is kept of a result."""
    verdict = result.verdict
    row: Row = {
        "key": item.key,
        "problem": item.problem.label,
        "level": item.problem.level,
        "candidate": what,
        "status": verdict.status.value if verdict else "error",
        "reason": (verdict.reason if verdict else result.error) or "",
        "device_s": result.device_seconds,
        "eager_gb": round(item.ahead.eager_bytes / 1e9, 3) if item.ahead.eager_bytes else None,
        "ahead": item.ahead.seconds,
        "ahead_reason": item.ahead.reason,
        "lost": result.lost,
    }
    if verdict:
        measured = verdict.measurement
        row |= {
            "speedup": {name: ratio.to_json() for name, ratio in verdict.speedup.items()},
            "times": {name: time.to_json() for name, time in verdict.times.items()},
            "faster": verdict.faster,
            "error": verdict.error,
            "error_of_limit": verdict.error_of_limit,
            "own_share": verdict.own_share,
            "peak_gb": round(verdict.peak_bytes / 1e9, 3) if verdict.peak_bytes is not None else None,
            "notes": list(verdict.notes),
            "seconds": measured.seconds,
            "preparation_s": measured.preparation_seconds,
            "torch": verdict.environment.torch,
            "hardware": verdict.environment.device,
        }
    return row


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("suite", nargs="?", help="kernelbench:DIR, kernels:PATH, builtin or a folder of tasks")
    add("--out", type=Path, metavar="DIR", help="folder of the results")
    add("--table", type=Path, nargs="+", metavar="FILE", help="print these rows as Markdown, and end")
    add("--previous", type=Path, nargs="*", default=[], metavar="FILE", help="skip problems of these rows")
    add("--retry", action="store_true", help="repeat problems whose row is an error")
    add("--target", choices=("cuda", "cpu"), default="cuda")
    add("--ids", default="", help="only these problems: 1-20,33 of each level, or 1/1-20,2/33")
    add("--seconds", type=float, default=float("inf"), metavar="N", help="stop after so long")
    add("--ahead", type=int, default=6, metavar="N", help="processes that compile ahead; 0: none")
    add("--effort", choices=("quick", "normal", "full"), default="quick")
    add("--baselines", default=",".join(Options().baselines), metavar="NAME,...")
    add("--sample", type=int, metavar="N", help="only N problems, drawn at random")
    add("--seed", type=int, default=0, help="of the sample")
    add("--max-gb", type=float, metavar="GB", help="only problems whose eager call needs no more")
    add("--free-gb", type=float, metavar="GB", help="leave only so much of the device's memory free")
    options = parser.parse_args()
    if not options.table and not (options.suite and options.out):
        parser.error("give a suite and --out, or --table")
    if options.max_gb is not None and not options.ahead:
        parser.error("--max-gb needs --ahead: these processes compute the memory")
    return options


def main() -> int:
    options = parse_arguments()
    if options.table:
        print(format_tables(read_rows(options.table)))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    judge = Options(effort=options.effort, baselines=tuple(options.baselines.split(",")))
    items = find_items(options, judge)
    if options.sample:
        random.Random(options.seed).shuffle(items)
    else:
        items = sorted(interleave(items, lambda item: item.problem.level), key=builds_extension)
    rows = read_rows([options.out / "rows.jsonl", *options.previous])
    done = {row["key"] for row in rows if not (options.retry and (row["status"] == "error" or row["lost"]))}
    if not options.sample:
        items = [item for item in items if item.key not in done]
    print(f"{len(items)} problems to look at, {len(done)} done before", file=sys.stderr, flush=True)
    started = time.monotonic()
    rest = options.free_gb and options.free_gb + AHEAD_CONTEXT_GB * options.ahead
    with ballast(rest) as free:
        if free is not None:
            print(f"{free:.1f} GB of the device's memory are free", file=sys.stderr, flush=True)
        complete = SuiteRun(options, judge, items, done).run()
    print(format_tables(read_rows([options.out / "rows.jsonl"])))
    print(f"\nThis call took {time.monotonic() - started:.0f} s.")
    return 0 if complete else 3


if __name__ == "__main__":
    sys.exit(main())
