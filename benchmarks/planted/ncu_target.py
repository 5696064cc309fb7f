"""The program under ncu: calls each candidate once inside the profiler's range.

    python -m planted.ncu_target JOBS.json FOLDER

The number of each candidate's launches is known from its trace, so no marker is launched between them; a
candidate that fails here launches a marker for each of them.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task
from planted.loading import load


def main() -> None:
    jobs, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    control: Any = torch.cuda.cudart()
    model: Any = None
    reference = arguments = None
    task = ""
    for job in jobs:
        call = None
        try:
            if job["task"] != task or reference is None:
                model = reference = arguments = None
                gc.collect()
                reference = Reference(Task(job["task"], job["name"]), "cuda", 0)
                arguments = tree.unflatten(*reference.inputs(1))
                task = job["task"]
            with torch.no_grad():
                model = load(job["source"], job["side"], folder / job["name"] / job["side"], reference)
                model(*arguments)
                torch.cuda.synchronize()
                call = model
        except Exception as error:  # its counters are missing, those of others are not
            print(f"{job['name']} failed: {error}", file=sys.stderr)
        torch.cuda.empty_cache()  # ncu saves all memory that a kernel could write, before each pass
        control.cudaProfilerStart()
        if call is not None:
            with torch.no_grad():
                call(*arguments)
        else:
            for _ in range(job["launches"]):
                torch.cuda._sleep(1)
        torch.cuda.synchronize()
        control.cudaProfilerStop()


if __name__ == "__main__":
    main()
