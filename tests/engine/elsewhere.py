"""A folder for exported files where kernelpro cannot be imported, and small tasks and candidates to export."""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from kernelpro.engine.export import Winner, standalone_file
from kernelpro.records import Task, Verdict

BLOCKED = """
import runpy, sys, warnings
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "kernelpro":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
sys.path.insert(0, "")
try:
    import kernelpro
except ImportError:
    pass
else:
    raise SystemExit("kernelpro can be imported")
"""
NEST = """
import json, os, signal, sys, torch
for line in sys.stdin:
    code, folder, environment, said, complained = json.loads(line)
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    raise SystemExit
signal.alarm(300)
os.chdir(folder)
os.environ.clear()
os.environ.update(environment)
for number, path in ((0, os.devnull), (1, said), (2, complained)):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
exec(code, {"__name__": "__main__"})
"""
"""Imports torch once, which takes longer than most tests, and runs each piece of code in a fork."""
LAYERNORM = Path(__file__).parents[2] / "examples" / "cpu" / "residual_layernorm"
SELF_TEST = "runpy.run_path('kernel.py', run_name='__main__')"


def fewer_rows(path: Path) -> Task:
    """An example's task on a sixteenth of its rows."""
    given = Task.from_file(path)
    rows = int(re.findall(r"^rows, \w+ = (\d+), ", given.source, re.MULTILINE)[0])
    return replace(given, source=given.source.replace(f" = {rows}, ", f" = {rows // 16}, "))


def task(body: str = "x * self.scale", init: str = "self.scale = nn.Parameter(torch.randn(8))") -> Task:
    return Task(
        f"""
import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, power=2):
        super().__init__()
        self.power = power
        {init}
    def forward(self, x):
        return {body}
def get_inputs(): return [torch.randn(16, 8)]
def get_init_inputs(): return [2]
"""
    )


def candidate(
    body: str = "x * self.scale", init: str = "self.scale = nn.Parameter(torch.randn(8))", head: str = ""
) -> str:
    return f"""{head}
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, power=2):
        super().__init__()
        {init}
    def forward(self, x):
        return {body}
"""


@cache
def _nest() -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    nest = subprocess.Popen(
        [sys.executable, "-W", "always", "-c", NEST], env=clean, stdin=-1, stdout=-1, text=True, cwd="/"
    )
    atexit.register(nest.communicate)
    return nest


class Elsewhere:
    """A folder with an exported file, where kernelpro cannot be imported."""

    def __init__(self, folder: Path):
        self.folder = folder

    def put(self, task: Task, source: str, verdict: Verdict | None = None, target: str = "cpu") -> str:
        text = standalone_file(Winner(task, source, verdict, {"target": target}))
        (self.folder / "kernel.py").write_text(text, encoding="utf-8")
        return text

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run code that cannot import kernelpro."""
        return self._run(BLOCKED + code, **environment)

    def prepare(self, code: str) -> None:
        """Run code that can."""
        done = self._run(code)
        assert done.returncode == 0, done.stdout + done.stderr

    def _run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
            "XDG_CACHE_HOME": str(self.folder / "cache")
        }
        said, complained = self.folder / "stdout", self.folder / "stderr"
        nest = _nest()
        assert nest.stdin and nest.stdout
        asked = [code, str(self.folder), clean | environment, str(said), str(complained)]
        print(json.dumps(asked), file=nest.stdin, flush=True)
        status = int(nest.stdout.readline())
        return subprocess.CompletedProcess(code, status, said.read_text(), complained.read_text())

    def passes(self, code: str, **environment: str) -> str:
        done = self.run(code, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr
