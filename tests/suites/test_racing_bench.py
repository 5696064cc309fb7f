"""The playbook on a suite with a race, for real: its C++ drafts race in one process, and one is judged."""

from __future__ import annotations

import json
from pathlib import Path

from in_process import WarmCommand

from kernelpro.engine.store import RunStore

TASK = """import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, a, b):
        return F.layer_norm(a + b, (512,))
def get_inputs():
    return [torch.randn(256, 512), torch.randn(256, 512)]
def get_init_inputs():
    return []
"""


def test_the_playbooks_designs_race_and_one_is_judged(tmp_path: Path, warm_kernelpro: WarmCommand) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "1_norm.py").write_text(TASK)
    options = "--target cpu --quick --no-baseline compile --no-compile-seed --author playbook --race 1"
    spending = "--budget candidates=1 --finalists 0 --tune-points 0 --format json"
    words = [
        "bench",
        str(tmp_path / "tasks"),
        "--out",
        str(tmp_path / "out"),
        *options.split(),
        *spending.split(),
    ]
    done = warm_kernelpro(*words)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["status"] == "passed" and row["author"] == "playbook" and row["language"] == "cpp"
    (run,) = (path.parent for path in (tmp_path / "out" / "runs").glob("*/run.db"))
    store = RunStore(run)
    steps, facts = store.steps(), store.task_facts()
    assert facts and len(facts.race) == len(steps) >= 2
    assert [step.state for step in steps].count("lost race") == len(steps) - 1
    assert {design.status.value for design in facts.race.values()} == {"passed"}, "the drafts are right"
    assert store.device_seconds["race"] > 0
    store.close()
