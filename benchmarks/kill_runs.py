"""Check that a run that is killed repeatedly ends like an undisturbed one.

    python benchmarks/kill_runs.py [--kills 50] [--candidates 40] [--seed 1] [--out FILE]

Writes C++ candidates of clearly different speed (and some that are wrong, do not build or repeat another),
and searches them twice with the real judge on the CPU: once undisturbed, and once in a process that gets
SIGKILL at random moments and is resumed each time. The trees must be equal (parent, action, source,
status), no step may be missing, and a kill may cost at most the judgements that it interrupted. Prints the
counts; exit code 0 if all checks passed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from kernelpro.engine.store import RunStore  # noqa: E402
from kernelpro.records import Limits, Options, RunConfig, Step, Task  # noqa: E402

TASK = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1

def get_inputs():
    return [torch.randn(256, 1024)]

def get_init_inputs():
    return []
"""
KERNEL = '''
import torch
from kernelpro import runtime

lib = runtime.cpp(r"""
extern "C" void go(const float* x, float* y, long n) {{
    for (int again = 0; again < {times}; ++again) {{
        asm volatile("" ::: "memory");
        for (long i = 0; i < n; ++i) y[i] = (x[i] > 0 ? x[i] : 0) * 2 + {added};
    }}
}}
""")

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.go(x, y, x.numel())
        return y
'''


def write_candidates(folder: Path, count: int) -> None:
    """Write candidates: a quarter is wrong, broken or repeated; the others differ by a fifth in speed."""
    folder.mkdir(parents=True)
    for index in range(count):
        kind = {1: "wrong", 5: "broken", 9: "repeated"}.get(index % 12, "good")
        times = round(1.2 ** ((index * 5) % 23) * 2)
        text = KERNEL.format(times=times if kind != "repeated" else 2, added="2" if kind == "wrong" else "1")
        if kind == "broken":
            text = text.replace("long n", "long m")
        (folder / f"{index:03}.py").write_text(text)


def command(runs_dir: Path, *words: str) -> list[str]:
    """The kernelpro command with these words."""
    return [sys.executable, "-m", "kernelpro", *words, "--runs-dir", str(runs_dir), "--json"]


def environment(folder: Path) -> dict[str, str]:
    """The environment of a run: its own data and cache folders."""
    return os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def create_run(folder: Path, runs_dir: Path, candidates: int, policy: str) -> list[str]:
    """Create a quick run, without compiler seeds or final judgements; returns its command."""
    config = RunConfig(
        task=Task.from_file(folder / "task.py"),
        target="cpu",
        author=f"files:{folder / 'candidates'}",
        policy=policy,
        limits=Limits(candidates, stop_at_floor=0.0),
        options=Options(effort="quick", baselines=("eager_fp32",)),
        compile_seed=False,
        finalists=0,
    )
    RunStore.create(runs_dir, config, "run").close()
    return command(runs_dir, "resume", "run-1")


def run_undisturbed(folder: Path, candidates: int, policy: str) -> list[Step]:
    """The steps of a run without kills."""
    runs_dir = folder / "plain"
    subprocess.run(
        create_run(folder, runs_dir, candidates, policy),
        env=environment(folder),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return RunStore.open(runs_dir, "run-1").steps()


def run_with_kills(
    folder: Path, candidates: int, policy: str, kills: int, rng: random.Random
) -> tuple[list[Step], dict[str, Any]]:
    """The same run, killed at random moments: half of them while it starts, half while it judges."""
    runs_dir, log = folder / "killed", folder / "events"
    words, done, judged = create_run(folder, runs_dir, candidates, policy), 0, 0
    while True:
        with log.open("w") as sink:
            process = subprocess.Popen(words, env=environment(folder), stdout=sink, stderr=subprocess.DEVNULL)
        if done < kills:
            if rng.random() < 0.5:
                while process.poll() is None and not _judgements(log):
                    time.sleep(0.01)
                time.sleep(rng.uniform(0.0, 1.5))
            else:
                time.sleep(rng.uniform(0.2, 3.0))
        if done < kills and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            done += 1
        process.wait()
        judged += _judgements(log)
        if process.returncode == 0:
            break
    return RunStore.open(runs_dir, "run-1").steps(), {"kills": done, "judged": judged}


def _judgements(log: Path) -> int:
    """Judgements that the log says were started."""
    return log.read_text(errors="replace").count('"phase":"judging"')


def tree_of(steps: list[Step]) -> list[tuple[Any, ...]]:
    """What must be equal in both runs."""
    return [
        (
            step.number,
            step.parent,
            step.action,
            step.source,
            step.verdict.status if step.verdict else step.note,
            step.stage,
        )
        for step in steps
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="times that the run is killed")
    parser.add_argument("--candidates", type=int, default=40, help="candidates of the run")
    parser.add_argument("--policy", default="epsilon-greedy", help="search policy")
    parser.add_argument("--seed", type=int, default=1, help="seed of the kills")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result here, as JSON")
    arguments = parser.parse_args()
    started = time.time()
    with tempfile.TemporaryDirectory(prefix="kill-runs-") as name:
        folder = Path(name)
        (folder / "task.py").write_text(TASK)
        write_candidates(folder / "candidates", arguments.candidates)
        plain = run_undisturbed(folder, arguments.candidates, arguments.policy)
        steps, about = run_with_kills(
            folder, arguments.candidates, arguments.policy, arguments.kills, random.Random(arguments.seed)
        )
    needed = sum(1 for step in steps if step.verdict)
    result = about | {
        "equal": tree_of(plain) == tree_of(steps),
        "steps": len(steps),
        "verdicts": needed,
        "seconds": round(time.time() - started),
    }
    print(json.dumps(result))
    for expected, actual in zip(tree_of(plain), tree_of(steps), strict=False):
        if expected != actual:
            print("differs:", expected, actual)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if about["kills"] < arguments.kills:
        sys.exit(f"the run ended after {about['kills']} kills: give more --candidates")
    sys.exit(0 if result["equal"] and needed <= about["judged"] <= needed + 2 * about["kills"] else 1)


if __name__ == "__main__":
    main()
