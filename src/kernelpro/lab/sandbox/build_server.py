"""The child that builds: it imports a candidate's source without a GPU, so that its compilers run.

build     source, time limits (task, device)   -> the files that compilers left in the build directories

With a task, the model is also constructed and called on tensors without data, in another process, because the
candidate's native code may crash. This compiles Triton kernels for their launches, and extensions that are
built in a constructor or in `forward`. Exceptions of the candidate are ignored here: the judge will see them.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import signal
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.languages import triton_ahead
from kernelpro.lab.sandbox import extensions, procfs
from kernelpro.lab.sandbox.artifacts import pack_artifacts
from kernelpro.lab.sandbox.child import Reply, Request, RequestServer
from kernelpro.lab.sandbox.compilation import (
    TimeLimitExceeded,
    TimeLimits,
    announced_compilation,
    is_compiling,
)
from kernelpro.lab.sandbox.stages import StageFailed, import_candidate
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task

_GPU_PRIORITY = 10
"""The niceness of compilers for a GPU, which run while a task is prepared. On a CPU a job waits for them."""


class BuildServer(RequestServer):
    """Builds one candidate."""

    def build(self, request: Request, tail: bytes) -> Reply:
        """Import the source and return the files of its compilers; a `note` reports another failure."""
        torch.set_num_threads(1)
        task: Task | None = torch.load(io.BytesIO(tail), weights_only=False)["task"] if tail else None
        device = request.get("device")
        if device:
            os.nice(_GPU_PRIORITY)
            triton_ahead.pretend_device(device)
        # if Triton has another interface, everything else is still built
        with contextlib.suppress(ImportError, AttributeError):
            triton_ahead.compile_only(device)
        if extensions.uses_extensions(request["source"]):
            extensions.reuse_by_content()
        try:
            module = import_candidate(request["source"])
        except StageFailed as error:
            if error.stage == "build":
                raise
            return {"note": str(error)}, pack_artifacts()
        if device:
            triton_ahead.compile_generated_kernels(module)
        if task:
            limits = TimeLimits(*(request.get(name, math.inf) for name in ("run_seconds", "compile_seconds")))
            _in_own_process(lambda: _call_on_meta(module, task, bool(device)), limits)
        return {}, pack_artifacts()


def _in_own_process(work: Callable[[], None], limits: TimeLimits) -> None:
    """Run `work` in a fork, so that this process survives however it ends."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException), announced_compilation():
            work()
        os._exit(0)

    def has_ended(seconds: float) -> bool:
        time.sleep(seconds)
        return bool(os.waitpid(pid, os.WNOHANG)[0])

    try:
        limits.wait(has_ended, lambda: is_compiling([pid, *procfs.descendants(pid)]))
    except TimeLimitExceeded:
        for number in (pid, *procfs.descendants(pid)):
            procfs.send_signal(number, signal.SIGKILL)
        os.waitpid(pid, 0)


def _call_on_meta(module: ModuleType, task: Task, as_cuda: bool) -> None:
    """Construct and call the model on tensors without data."""
    with torch.device("meta"):  # without weights: only their shapes are needed
        reference = Reference(task, "meta", 0)
    form, leaves = reference.inputs(0)
    with torch.no_grad():
        model = _construct(module.ModelNew, reference.init_inputs)
        if isinstance(model, torch.nn.Module):
            model = model.to("meta").train(task.mode == "train")
        with triton_ahead.MetaAsCuda() if as_cuda else contextlib.nullcontext():
            model(*tree.unflatten(form, leaves))


def _construct(factory: Any, init_inputs: list[Any]) -> Any:
    """A model without data if its constructor supports that, else with data."""
    with contextlib.suppress(Exception), torch.device("meta"):
        return factory(*init_inputs)
    return factory(*init_inputs)
