"""The child that builds: imports a candidate's source so that its compilers run, without a GPU.

build     source (Triton: task, device)    -> what compilers left in the build directories
"""

from __future__ import annotations

import contextlib
import io
from types import ModuleType

import torch

from kernelpro.lab import tree
from kernelpro.lab.languages import triton_ahead
from kernelpro.lab.sandbox.artifacts import pack_artifacts
from kernelpro.lab.sandbox.child import Reply, Request, RequestServer
from kernelpro.lab.sandbox.stages import StageFailed, import_candidate
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task


class BuildServer(RequestServer):
    """Builds one candidate."""

    def build(self, request: Request, tail: bytes) -> Reply:
        """Import the source and return what its compilers made; a `note` says what failed beside them."""
        torch.set_num_threads(1)
        # a Triton with another interface: everything else is still built
        with contextlib.suppress(ImportError, AttributeError):
            triton_ahead.compile_only(request.get("device"))
        try:
            module = import_candidate(request["source"])
        except StageFailed as error:
            if error.stage == "build":
                raise
            return {"note": str(error)}, pack_artifacts()
        if request.get("device"):
            with contextlib.suppress(BaseException):  # the judge meets whatever a candidate raises here
                _call_on_meta(module, torch.load(io.BytesIO(tail), weights_only=False)["task"])
        return {}, pack_artifacts()


def _call_on_meta(module: ModuleType, task: Task) -> None:
    """Call the model on tensors without data, so that each of its Triton launches is compiled."""
    with torch.device("meta"):  # the reference's weights are not needed, and cost nothing there
        reference = Reference(task, "meta", 0)
    form, leaves = reference.inputs(0)
    with torch.no_grad():
        model = module.ModelNew(*reference.init_inputs)
        if isinstance(model, torch.nn.Module):
            model = model.to("meta").train(task.mode == "train")
        with triton_ahead.MetaAsCuda():
            model(*tree.unflatten(form, leaves))
