"""What judging leaves on a machine: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TASK = """
import os, torch
with open({place!r}, "a") as file:
    print(os.getpid(), file=file)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
    def forward(self, x): return self.linear(x)
def get_inputs(): return [torch.randn(64, 64)]
def get_init_inputs(): return []
"""


def test_no_map_of_compiled_code_is_left(tmp_path: Path) -> None:
    """oneDNN writes one for each process to /tmp, whatever TMPDIR says: on aarch64, unless it is told not to."""
    place = tmp_path / "processes"
    options = {"effort": "quick", "baselines": ["eager_fp32"]}
    job = {
        "id": "p",
        "kind": "probe",
        "task": {"source": TASK.format(place=str(place))},
        "target": "cpu",
        "options": options,
    }
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_JIT_PROFILE"}
    environment["KERNELPRO_SANDBOX"] = "process"  # where nothing but good manners keeps children from /tmp
    command = [sys.executable, "-m", "kernelpro.lab.worker"]
    done = subprocess.run(
        command, input=json.dumps(job), env=environment, capture_output=True, text=True, timeout=120
    )
    assert json.loads(done.stdout.splitlines()[-1])["data"]["scorable"], done.stderr
    processes = set(place.read_text().split())
    assert len(processes) > 1, "the worker and its children"
    assert not [path for process in processes if (path := Path(f"/tmp/perf-{process}.map")).exists()]
