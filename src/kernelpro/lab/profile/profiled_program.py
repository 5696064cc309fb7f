"""The program that external profilers run: it calls what a bundle holds, inside the profiler's range.

    python -m kernelpro.lab.profile.profiled_program BUNDLE ncu|nsys|memcheck

The file holds a list of bundles (torch.save): each a task, a seed and entries, which are candidates and variants of
the reference. Each entry is loaded and warmed up outside the profiler's range. For ncu, every entry is called once, with a marker
kernel before it: one start of Python, torch and the profiler serves all entries, and the marker tells them
apart. A variant that fails leaves its marker alone: what was counted before it is not lost. For nsys, the first entry is called
several times, each call in a range. For compute-sanitizer it is called once, with every tensor in an allocation of its own, so
that a step beyond one is not a step into the next.
"""

from __future__ import annotations

import functools
import io
import os
import signal
import sys
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.profile import nsys
from kernelpro.lab.sandbox.baseline_server import BaselineServer
from kernelpro.lab.sandbox.candidate_server import CandidateServer
from kernelpro.lab.tasks.reference import Reference

MARKER_KERNEL = "spin_kernel"
"""The kernel behind torch.cuda._sleep."""
_WARM_CALLS = 3
_MEMCHECK_SECONDS = 60
"""For compute-sanitizer: importing torch takes about ten, and a kernel that is checked runs ten to a hundred times as long."""


def run_once(bundle: dict[str, Any]) -> None:
    """One call of the first entry. The alarm ends a candidate that does not."""
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # read when the first tensor is made
    signal.alarm(_MEMCHECK_SECONDS)
    form, leaves = Reference(bundle["task"], "cuda", bundle["seed"]).inputs(bundle["seed"] + 1)
    with torch.no_grad():
        _load_model(bundle, bundle["entries"][0])(*tree.unpack(form, leaves))
    torch.cuda.synchronize()


def run(bundle: dict[str, Any], profiler: str) -> None:
    reference = Reference(bundle["task"], "cuda", bundle["seed"])
    form, leaves = reference.inputs(bundle["seed"] + 1)
    arguments = tree.unpack(form, leaves)
    control: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    for entry in bundle["entries"]:
        with torch.no_grad():
            try:
                call = functools.partial(_load_model(bundle, entry), *arguments)
                for _ in range(_WARM_CALLS):
                    call()
                torch.cuda.synchronize()
            except Exception as error:  # whatever a compiler raises
                if "variant" not in entry:
                    raise
                print(f"{entry['variant']} does not run: {error}", file=sys.stderr)
                call = None
            if call and profiler == "nsys":
                nsys.run_under_nsys(call, torch.cuda.synchronize)
                return
            control.cudaProfilerStart()
            torch.cuda._sleep(1000)  # type: ignore[no-untyped-call]
            if call:
                call()
            torch.cuda.synchronize()
            control.cudaProfilerStop()


def _load_model(bundle: dict[str, Any], entry: dict[str, Any]) -> Any:
    start = {"device": "cuda", "threads": torch.get_num_threads(), "tf32": bundle["tf32"]}
    if "variant" in entry:
        baseline = BaselineServer([])
        baseline.start(start, b"")
        buffer = io.BytesIO()
        torch.save({"task": bundle["task"]}, buffer)
        baseline.load({"seed": bundle["seed"]}, buffer.getvalue())
        baseline.prepare({"variant": entry["variant"]}, b"")
        return baseline._model
    worker = CandidateServer([])
    worker.start(start, b"")
    worker.load(entry["request"], entry["tail"])
    return worker._model


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    for one in torch.load(sys.argv[1], weights_only=False):
        if sys.argv[2] == "memcheck":
            run_once(one)
        else:
            run(one, sys.argv[2])
