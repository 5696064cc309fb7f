"""The child that calls a candidate with guards around its buffers (guards.py).

It serves the requests of a candidate's child, with these differences:

    start       also the guards' library as tail (CPU)  -> whether buffers of the child have guards
    prepare     also the byte of the margins (`fill`)   -> ok
    damages     nothing                                 -> which margins were overwritten

The reported damages serve to find mistakes, not fraud: a candidate could forge them, but would only hide a
defect of its own. Its outputs are checked as usual.
"""

from __future__ import annotations

from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.sandbox.candidate_server import CandidateServer
from kernelpro.lab.sandbox.child import Reply, Request
from kernelpro.lab.sandbox.cpu_guards import CpuGuards
from kernelpro.lab.sandbox.cuda_guards import CudaGuards
from kernelpro.lab.sandbox.guards import most_telling


class GuardedServer(CandidateServer):
    """Holds one candidate, whose buffers have guards."""

    def __init__(self, shared_fds: list[int]):
        super().__init__(shared_fds)
        self._guards: CpuGuards | CudaGuards | None = None

    def start(self, request: Request, tail: bytes) -> Reply:
        """Replace torch's allocator, then start as a candidate's child does."""
        if request["device"] == "cpu" and tail:
            self._guards = CpuGuards(tail)
        if request["device"] == "cuda" and hasattr(torch._C, "_cuda_customAllocator"):
            self._guards = CudaGuards()
        super().start(request, b"")
        return {"guarded": self._guards is not None}, b""

    def prepare(self, request: Request, tail: bytes) -> Reply:
        """Prepare as a candidate's child does, then fill the margins."""
        reply = super().prepare(request, tail)
        if self._guards and "fill" in request:
            self._guards.fill(request["fill"])
        return reply

    def damages(self, request: Request, tail: bytes) -> Reply:
        """The margins that were overwritten since the last `prepare`."""
        self._device.synchronize()
        damages = self._guards.damages(self._buffer_names()) if self._guards else []
        return {"damages": [damage.to_json() for damage in most_telling(damages)]}, b""

    def _buffer_names(self) -> dict[int, str]:
        """Names of the buffers that this process knows, by address."""
        names = dict[int, str]()
        if isinstance(self._model, torch.nn.Module):
            for kind, tensors in (
                ("parameter", self._model.named_parameters()),
                ("buffer", self._model.named_buffers()),
            ):
                names |= {_address(tensor): f"{kind} {name}" for name, tensor in tensors}
        leaves: list[torch.Tensor] = []
        tree.flatten(self._outputs, leaves)
        return names | {_address(leaf): f"output {index}" for index, leaf in enumerate(leaves)}


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())
