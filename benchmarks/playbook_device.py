"""The playbook's first drafts of KernelBench problems on a GPU, timed directly, without the judge.

    python benchmarks/playbook_device.py --problems DIR --graphs DIR --out FILE.jsonl --ids 2/14,2/18

Finds what breaks at real size in little device time: each problem's first draft of every form and language
(or of `--forms`) is built, compared with eager float32, and timed beside eager (TF32) and torch.compile.
Workers compile at the same time; one at a time measures. `--graphs` has the operator graphs
(playbook_coverage.py writes them). The times are medians of calls with a cold cache by CUDA events: no
verdicts, no intervals. `--tiles` also times drafts of tiled products with other tiles: rows x columns x terms
x threads x pipeline stages.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from kernelpro.authors.author import Assignment
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.authors.playbook.schedule.design import Design, parse_design
from kernelpro.lab.tasks import parameters
from kernelpro.records import Graph, Task

LOCK = Path(tempfile.gettempdir()) / "playbook_device.lock"
_SECONDS = 40
"""For one draft or baseline, with its compilation."""


class OutOfTime(Exception):
    """An item took too long."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise OutOfTime(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def import_source(text: str, name: str) -> Any:
    """A module from source text, in a file that Triton can read."""
    path = Path(tempfile.mkdtemp()) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def measure(call: Callable[[], Any], flush: torch.Tensor) -> float:
    """Milliseconds of a call with a cold cache: the median of up to 20."""
    times: list[float] = []
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        torch.cuda.synchronize()
        begin = time.monotonic()
        while len(times) < 20 and (len(times) < 5 or time.monotonic() - begin < 0.5):
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def difference(output: Any, truth: Any) -> float:
    """The norm of the difference relative to the norm of the truth, the largest over all outputs."""
    pairs = zip(*(v if isinstance(v, (tuple, list)) else (v,) for v in (output, truth)), strict=True)
    return max(
        float(
            torch.linalg.vector_norm((o - t).float()) / torch.linalg.vector_norm(t.float()).clamp(min=1e-30)
        )
        for o, t in pairs
    )


def with_tiles(source: str, tiles: str) -> str:
    """The source with other tiles of its products, as far as its tunables allow them."""
    names = ("TILE_M", "TILE_N", "TILE_K", "THREADS", "PIPELINE_STAGES")
    products = set(re.findall(r"^TILE_M(\d+) = ", source, re.MULTILINE))
    for name, value in zip(names, tiles.split("x"), strict=True):
        for number in products:
            pattern = rf"^({name}{number} = )\d+(  # tune: .*\b{value}\b.*)$"
            source = re.sub(pattern, rf"\g<1>{value}\g<2>", source, flags=re.MULTILINE)
    return source


def claim(file: Path) -> int:
    """The number of the next problem that no worker has."""
    with file.open("a+") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        counter.seek(0)
        number = len(counter.read())
        counter.write(".")
        return number


class Trial:
    """One problem on the device."""

    def __init__(self, path: Path, options: argparse.Namespace):
        graphs, self.options = options.graphs, options
        self.task = Task.from_file(path, "train", None).for_target("cuda")
        module = import_source(self.task.source, f"task_{self.task.id}")
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        torch.manual_seed(0)
        with torch.device("cuda"), torch.no_grad():
            init = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
            self.model = module.Model(*init).cuda().train().requires_grad_(False)
            self.inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in module.get_inputs()]
        self.init = init
        self.graph = Graph.from_json(json.loads((graphs / f"{self.task.id}.json").read_text()))

    def run(self) -> Iterator[dict[str, Any]]:
        state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        with torch.no_grad():
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            truth = self.model(*self.inputs)
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
            yield self._row("eager tf32", lambda: self.model, truth)
            yield self._row("torch.compile", lambda: torch.compile(self.model), truth)
            self.model.load_state_dict(state)
            yield from self._drafts(state, truth)

    def _drafts(self, state: dict[str, torch.Tensor], truth: Any) -> Iterator[dict[str, Any]]:
        assignment = Assignment(0, "seed", self.task, "cuda", "tf32", 0.0, {}, graph=self.graph)
        seen = set()
        for number, draft in enumerate(Playbook().seed_drafts(assignment)):
            is_recurrent = "# playbook:" not in draft.source
            design = Design("cuda", (), form="recurrent") if is_recurrent else parse_design(draft.source)
            key = (design.form, design.language)
            if key in seen or (design.language == "cuda" and design.form == "channels_last"):
                continue
            if self.options.forms and design.form not in self.options.forms.split(","):
                continue
            if self.options.language and design.language != self.options.language:
                continue
            seen.add(key)
            sources = {"": draft.source}
            if design.language == "triton":
                sources |= {tiles: with_tiles(draft.source, tiles) for tiles in self.options.tiles}
            for tiles, source in {source: (tiles, source) for tiles, source in sources.items()}.values():

                def build(source: str = source, name: str = f"draft_{self.task.id}_{number}_{tiles}") -> Any:
                    module = import_source(source, name)
                    model = module.ModelNew(*self.init)
                    parameters.load_reference_state(model, {k: v.cpu() for k, v in state.items()})
                    return model.cuda()

                yield self._row(f"{design.form} {design.language} {tiles}".strip(), build, truth)

    def _row(self, name: str, build: Callable[[], Any], truth: Any) -> dict[str, Any]:
        row: dict[str, Any] = {"problem": self.task.name, "what": name}
        begin = time.monotonic()
        try:
            with time_limit(_SECONDS):
                model = build()
                output = model(*self.inputs)
                row["difference"] = difference(output, truth)
                del output
                row["ms"] = measure(lambda: model(*self.inputs), self.flush)
        except Exception as error:  # a draft may fail in any way, and the table shows how
            row["error"] = f"{type(error).__name__}: {error}"[:300]
            torch.cuda.empty_cache()
        row["seconds"] = round(time.monotonic() - begin, 1)
        return row


def work(paths: list[Path], options: argparse.Namespace) -> None:
    out: Path = options.out
    while (number := claim(out.with_suffix(".next"))) < len(paths):
        path = paths[number]
        try:
            for row in Trial(path, options).run():
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        except Exception as error:  # the next problem can still be tried
            with out.open("a") as file:
                file.write(json.dumps({"problem": path.stem, "error": repr(error)[:300]}) + "\n")
        torch.cuda.empty_cache()
        torch._dynamo.reset()


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        own = [row for row in rows if row["problem"] == problem]
        times = {row["what"]: row["ms"] for row in own if "ms" in row}
        baselines = [times[name] for name in ("eager tf32", "torch.compile") if name in times]
        parts = []
        for row in own:
            if "ms" not in row:
                parts.append(f"{row.get('what', '')}: {row.get('error', '')[:90]}")
                continue
            gain = f" {min(baselines) / row['ms']:.2f}x" if baselines else ""
            parts.append(f"{row['what']}: {row['ms']:.3f}{gain} ({row['difference']:.0e}, {row['seconds']}s)")
        lines.append(f"{problem}\n    " + "\n    ".join(parts))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--problems", type=Path, required=True, help="the folder with level1, level2, ...")
    parser.add_argument("--graphs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ids", required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--forms", default="", help="only these, such as implicit_gemm,library")
    parser.add_argument("--language", choices=["triton", "cuda"])
    parser.add_argument("--tiles", nargs="*", default=[], metavar="MxNxKxTHREADSxSTAGES")
    parser.add_argument("--part", type=int, default=-1)
    options = parser.parse_args()
    paths = [
        next((options.problems / f"level{level}").glob(f"{number}_*.py"))
        for level, _, number in (item.partition("/") for item in options.ids.split(","))
    ]
    if options.part >= 0:
        work(paths, options)
        return
    command = [sys.executable, *sys.argv]
    parts = [subprocess.Popen([*command, "--part", str(part)]) for part in range(options.workers)]
    deadline = time.monotonic() + options.seconds
    for process in parts:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.1))
        process.kill()
    print(table([json.loads(line) for line in options.out.read_text().splitlines()]))


if __name__ == "__main__":
    main()
