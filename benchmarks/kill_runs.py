"""A run that is killed again and again ends like one that is not.

    python benchmarks/kill_runs.py [--kills 50] [--candidates 40] [--seed 1] [--out FILE]

Makes a folder of C++ candidates of clearly different speed (and some that are wrong, do not build or repeat another),
searches it twice with the real judge on the CPU: once undisturbed, and once in a process that gets SIGKILL at random
moments and is resumed each time. Then compares: the trees must be equal (parent, action, source, status), no step may
be missing, and no candidate may have been judged more often than kills that hit it while it was being judged explain.
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
    """Every fourth is wrong, does not build, or is a repetition; the others differ by a fifth in speed from the next."""
    folder.mkdir(parents=True)
    for index in range(count):
        kind = {1: "wrong", 5: "broken", 9: "again"}.get(index % 12, "good")
        times = round(1.2 ** ((index * 5) % 23) * 2)
        text = KERNEL.format(times=times if kind != "again" else 2, added="2" if kind == "wrong" else "1")
        if kind == "broken":
            text = text.replace("long n", "long m")
        (folder / f"{index:03}.py").write_text(text)


def command(home: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "kernelpro", *words, "--runs-dir", str(home), "--json"]


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def begin(folder: Path, home: Path, candidates: int, policy: str) -> list[str]:
    """A run that is quick to judge: kills are what this is about. What the seeds of the compiler would cost is left out."""
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
    RunStore.create(home, config, "run").close()
    return command(home, "resume", "run-1")


def undisturbed(folder: Path, candidates: int, policy: str) -> list[Step]:
    home = folder / "plain"
    subprocess.run(
        begin(folder, home, candidates, policy),
        env=environment(folder),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return RunStore.open(home, "run-1").steps()


def killed(
    folder: Path, candidates: int, policy: str, kills: int, dice: random.Random
) -> tuple[list[Step], dict[str, Any]]:
    """The same, with SIGKILL at random moments: half of them while the run starts, half while it judges its next candidate."""
    home, log = folder / "killed", folder / "events"
    words, done, judged = begin(folder, home, candidates, policy), 0, 0
    while True:
        with log.open("w") as sink:
            process = subprocess.Popen(words, env=environment(folder), stdout=sink, stderr=subprocess.DEVNULL)
        if done < kills:
            if dice.random() < 0.5:
                while process.poll() is None and not _judging(log):
                    time.sleep(0.01)
                time.sleep(dice.uniform(0.0, 1.5))
            else:
                time.sleep(dice.uniform(0.2, 3.0))
        if done < kills and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            done += 1
        process.wait()
        judged += _judging(log)
        if process.returncode == 0:
            break
    return RunStore.open(home, "run-1").steps(), {"kills": done, "judged": judged}


def _judging(log: Path) -> int:
    return log.read_text(errors="replace").count('"phase":"judging"')


def tree(steps: list[Step]) -> list[tuple[Any, ...]]:
    return [
        (s.number, s.parent, s.action, s.source, s.verdict.status if s.verdict else s.note, s.stage)
        for s in steps
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--candidates", type=int, default=40)
    parser.add_argument("--policy", default="epsilon-greedy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    begun = time.time()
    with tempfile.TemporaryDirectory(prefix="kill-runs-") as name:
        folder = Path(name)
        (folder / "task.py").write_text(TASK)
        write_candidates(folder / "candidates", chosen.candidates)
        plain = undisturbed(folder, chosen.candidates, chosen.policy)
        steps, about = killed(
            folder, chosen.candidates, chosen.policy, chosen.kills, random.Random(chosen.seed)
        )
    needed = sum(1 for s in steps if s.verdict)
    result = about | {
        "equal": tree(plain) == tree(steps),
        "steps": len(steps),
        "verdicts": needed,
        "seconds": round(time.time() - begun),
    }
    print(json.dumps(result))
    for one, other in zip(tree(plain), tree(steps), strict=False):
        if one != other:
            print("differs:", one, other)
    if chosen.out:
        chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    if about["kills"] < chosen.kills:
        sys.exit(f"the run was over after {about['kills']} kills: give it more candidates")
    sys.exit(0 if result["equal"] and needed <= about["judged"] <= needed + 2 * about["kills"] else 1)


if __name__ == "__main__":
    main()
