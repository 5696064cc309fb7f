"""The child that calls a candidate with guards around its buffers (guards.py).

It serves the requests of a candidate's child, with these differences:

    start       also the guards' library as tail (CPU)  -> whether buffers of the child have guards
    prepare     also the byte of the margins (`fill`)   -> ok
    damages     nothing                                 -> which margins were overwritten, which parameters
                                                           and buffers differ from their values before the
                                                           first call, and which settings of torch differ from
                                                           those before loading

The reported damages serve to find mistakes, not fraud: a candidate could forge them, but would only hide a
defect of its own. Its outputs are checked as usual.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.sandbox.candidate_server import CandidateServer
from kernelpro.lab.sandbox.child import Reply, Request
from kernelpro.lab.sandbox.cpu_guards import CpuGuards
from kernelpro.lab.sandbox.cuda_guards import CudaGuards
from kernelpro.lab.sandbox.guards import most_telling
from kernelpro.lab.tasks import parameters

_DENORMAL = 1e-40
"""In float32."""


class GuardedServer(CandidateServer):
    """Holds one candidate, whose buffers have guards."""

    def __init__(self, shared_fds: list[int]):
        super().__init__(shared_fds)
        self._guards: CpuGuards | CudaGuards | None = None
        self._state: dict[str, tuple[torch.Tensor, tuple[int, ...]]] = {}
        """The memory of each parameter and buffer before the first call, and the checksum of its values."""
        self._settings: dict[str, Any] = {}
        """torch's settings before the candidate was loaded."""

    def start(self, request: Request, tail: bytes) -> Reply:
        """Replace torch's allocator, then start as a candidate's child does."""
        if request["device"] == "cpu" and tail:
            self._guards = CpuGuards(tail)
        if request["device"] == "cuda" and hasattr(torch._C, "_cuda_customAllocator"):
            self._guards = CudaGuards()
        super().start(request, b"")
        self._settings = _settings()
        return {"guarded": self._guards is not None}, b""

    def before_construction(self) -> None:
        """Guard what its constructor allocates."""
        if self._guards:
            self._guards.watch()

    def set_state(self, request: Request, tail: bytes) -> Reply:
        """As a candidate's child does; then remember the values."""
        reply = super().set_state(request, tail)
        if isinstance(self._model, torch.nn.Module):
            self._state = {
                name: (tensor.detach(), parameters.checksum(tensor))
                for name, tensor in chain(self._model.named_parameters(), self._model.named_buffers())
            }
        self._settings |= _seed()  # constructors are called with a seed
        return reply

    def prepare(self, request: Request, tail: bytes) -> Reply:
        """Prepare as a candidate's child does, then fill the margins."""
        reply = super().prepare(request, tail)
        if self._guards and "fill" in request:
            self._guards.fill(request["fill"])
        return reply

    def damages(self, request: Request, tail: bytes) -> Reply:
        """The margins that were overwritten since the last `prepare`, and modified parameters and buffers.

        One that the model replaced is not modified: its memory may be shared with other modules.
        """
        self._device.synchronize()
        damages = self._guards.damages(self._buffer_names()) if self._guards else []
        known = self._state.items()
        modified = [name for name, (values, before) in known if parameters.checksum(values) != before]
        rows = [damage.to_json() for damage in most_telling(damages)]
        now = _settings() | _seed()
        settings = [name for name, value in now.items() if value != self._settings.get(name)]
        return {"damages": rows, "modified": modified, "settings": settings}, b""

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


def _settings() -> dict[str, Any]:
    """Settings of torch that hold for all code of a process, by name."""
    return {
        "the default type": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "autocast": [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the precision of matrix products": torch.get_float32_matmul_precision(),
        "the number of threads": torch.get_num_threads(),
        "the rounding of denormal numbers to zero": not torch.full((), _DENORMAL).mul(1.0).count_nonzero(),
    }


def _seed() -> dict[str, Any]:
    return {"the seed of random numbers": torch.initial_seed()}


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())
