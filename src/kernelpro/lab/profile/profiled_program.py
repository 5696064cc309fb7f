"""The program that external profilers run: it calls the entries of a bundle inside the profiler's range.

    python -m kernelpro.lab.profile.profiled_program BUNDLE ncu|nsys|memcheck

The file holds a list of bundles (torch.save). Each has a task, a seed and entries, which are candidates and
variants of the reference. Each entry is loaded and warmed up outside the profiler's range.

ncu       Every entry is called once, after a marker kernel if there are several. So Python, torch and the
          profiler start only once. A variant that fails leaves only its marker, and the counters of earlier
          entries are kept.
nsys      The first entry is called several times, each call in a range.
memcheck  The first entry is called once, with every tensor in its own allocation, so that an access beyond
          one tensor does not hit the next.
"""

from __future__ import annotations

import functools
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
"""Time limit for compute-sanitizer. Under it, importing torch takes about 10 s, and a kernel 10 to 100 times
as long as without it."""


def run_once(bundle: dict[str, Any]) -> None:
    """Call the first entry once. An alarm ends a candidate that hangs."""
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # read when the first tensor is allocated
    signal.alarm(_MEMCHECK_SECONDS)
    form, leaves = Reference(bundle["task"], "cuda", bundle["seed"]).inputs(bundle["seed"] + 1)
    with torch.no_grad():
        _load_model(bundle, bundle["entries"][0])(*tree.unflatten(form, leaves))
    torch.cuda.synchronize()


def run(bundle: dict[str, Any], profiler: str, mark: bool) -> None:
    """Call the entries of a bundle under ncu or nsys. `mark`: launch a marker before each entry."""
    reference = Reference(bundle["task"], "cuda", bundle["seed"])
    form, leaves = reference.inputs(bundle["seed"] + 1)
    arguments = tree.unflatten(form, leaves)
    control: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    for entry in bundle["entries"]:
        with torch.no_grad():
            try:
                call = functools.partial(_load_model(bundle, entry), *arguments)
                for _ in range(_WARM_CALLS):
                    call()
                torch.cuda.synchronize()
            except Exception as error:  # compilers raise anything
                if "variant" not in entry:
                    raise
                print(f"{entry['variant']} failed: {error}", file=sys.stderr)
                call = None
            if call and profiler == "nsys":
                nsys.run_under_nsys(call, torch.cuda.synchronize)
                return
            control.cudaProfilerStart()
            if mark:
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
        baseline.load(entry["request"], entry["tail"])
        baseline.prepare({"variant": entry["variant"]}, b"")
        return baseline._model
    worker = CandidateServer([])
    worker.start(start, b"")
    worker.load(entry["request"], entry["tail"])
    worker.set_state({}, entry["state"])
    return worker._model


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    bundles = torch.load(sys.argv[1], weights_only=False)
    for loaded in bundles:
        if sys.argv[2] == "memcheck":
            run_once(loaded)
        else:
            run(loaded, sys.argv[2], sum(len(each["entries"]) for each in bundles) > 1)
