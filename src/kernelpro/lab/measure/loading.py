"""Loads a candidate into its process and gives it the reference's parameters.

The process constructs the candidate with the reference's seed, so that most parameters already have the right
values. Only those that differ are sent: on a GPU through the memory of its inputs, else as bytes.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.sandbox.builds import Builds
from kernelpro.lab.sandbox.memory import Slot, dtype_name
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.tasks.parameters import Source, State, StateEntry, describe_state
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Candidate, Options, Status

_MIN_STAGED_BYTES, _MAX_STAGED_BYTES = 1 << 20, 64 << 20
"""Parameters are sent through memory of inputs that has at least the first size, and at most the second size
at once. As bytes, 8 GB took 30 s."""
_ALIGN = 16


@dataclass(frozen=True)
class LoadedParameters:
    """Where the parameters of a loaded candidate come from."""

    source: Source
    overwritten: tuple[str, ...] = ()
    """Parameters whose values from the candidate's constructor were replaced by the reference's."""


class CandidateLoader:
    """Loads the candidates of one task, and its reference."""

    def __init__(self, reference: Reference, builds: Builds):
        self._reference, self._builds = reference, builds

    def request(self, candidate: Candidate, options: Options) -> tuple[dict[str, Any], bytes]:
        """The request that loads a candidate, and its binary tail. Builds the candidate if necessary."""
        reference = self._reference
        leaves: list[torch.Tensor] = []
        form = tree.flatten(reference.init_inputs, leaves)
        bundle = {
            "artifacts": self._builds.get(candidate, reference.device, options, reference.task),
            "init_form": form,
            "init_leaves": leaves,
            "entries": self._entries,
            "constants": reference.constants,
        }
        request = {
            "op": "load",
            "source": candidate.source,
            "seed": reference.seed,
            "mode": reference.task.mode,
            "init_device": reference.init_device,
        }
        return request, _saved(bundle)

    def reference_request(self) -> tuple[dict[str, Any], bytes]:
        """The request that loads the reference into the baselines' process, and its binary tail."""
        reference = self._reference
        request = {"op": "load", "seed": reference.seed, "init_device": reference.init_device}
        return request, _saved({"task": reference.task})

    @cached_property
    def _entries(self) -> dict[str, StateEntry]:
        return describe_state(self._reference.state())

    def saved_state(self, names: Collection[str] | None = None) -> bytes:
        """The reference's parameters and buffers for `set_state`: all, or those in `names`."""
        state = self._reference.state()
        return _saved({name: state[name].cpu() for name in (state if names is None else names)})

    def load(
        self, participant: Participant, candidate: Candidate, options: Options, keep_own_values: bool = False
    ) -> LoadedParameters:
        """Load the candidate and set its parameters to the reference's values.

        `keep_own_values`: parameters keep the values that the candidate's constructor gave them.
        """
        request, tail = self.request(candidate, options)
        with participant.may_compile(options.build_timeout):
            loaded = self._parse_reply(participant.request(request, options.call_timeout, tail))
            if loaded.source == "by seed":
                self._reject_seeded_module()
            if keep_own_values:
                loaded = LoadedParameters("by seed")
            self._send_state(participant, loaded.overwritten, options.call_timeout)
        return loaded

    def _send_state(self, participant: Participant, names: Collection[str], seconds: float) -> None:
        """Set these parameters of the loaded candidate to the reference's values."""
        region = participant.regions[0] if participant.regions else None
        if names and region and region.device == "cuda" and region.nbytes >= _MIN_STAGED_BYTES:
            self._stage_state(participant, names, seconds)
            names = ()
        tail = self.saved_state(names) if names else b""
        participant.request({"op": "set_state"}, seconds, tail)

    def _stage_state(self, participant: Participant, names: Collection[str], seconds: float) -> None:
        """Send parameters through the first region of inputs, whose contents are kept."""
        region, state = participant.regions[0], self._reference.state()
        window = region.raw[: min(region.nbytes, _MAX_STAGED_BYTES)]
        inputs = window.clone()
        try:
            for pieces in pieces_of({name: state[name] for name in names}, len(window)):
                for piece in pieces:
                    window[piece.slot.offset :][: piece.values.nbytes] = piece.values.view(torch.uint8)
                torch.cuda.synchronize()
                request = {
                    "op": "copy_state",
                    "region": {"nbytes": region.nbytes, "handle": region.handle},
                    "pieces": [piece.to_json() for piece in pieces],
                }
                participant.request(request, seconds)
        finally:
            window.copy_(inputs)
            torch.cuda.synchronize()

    def _parse_reply(self, reply: dict[str, Any]) -> LoadedParameters:
        source, different = reply.get("parameters"), reply.get("different")
        if (
            source not in ("by name", "by seed", "none")
            or not isinstance(different, list)
            or not all(isinstance(name, str) and name in self._entries for name in different)
        ):
            raise CandidateRejected(Status.CHEATING, "the reply to 'load' was forged")
        return LoadedParameters(source, tuple(dict.fromkeys(different)))

    def _reject_seeded_module(self) -> None:
        """Reject a candidate with parameters by seed if the task is a live module, whose weights no seed
        reproduces."""
        weights = [f"{name} {list(entry.shape)}" for name, entry in self._entries.items() if entry.required]
        if self._reference.task.form == "module" and weights:
            raise CandidateRejected(
                Status.WRONG,
                "the kernel needs parameters with the names and shapes of the module's own, but some differ: "
                f"the module has {', '.join(weights)[:500]}",
            )


@dataclass(frozen=True)
class Piece:
    """Some consecutive elements of a parameter."""

    name: str
    first: int
    """The index of the first one."""
    values: torch.Tensor
    slot: Slot
    """Where they lie in the region."""

    def to_json(self) -> dict[str, Any]:
        """The piece without its values."""
        return {"name": self.name, "first": self.first, "slot": self.slot.to_json()}


def pieces_of(state: State, size: int) -> Iterator[list[Piece]]:
    """The elements of a state in pieces, as many at a time as fit into `size` bytes."""
    pieces, used = list[Piece](), 0
    for name, tensor in state.items():
        values, first = tensor.contiguous().view(-1), 0
        while first < len(values):
            if used + _ALIGN > size:
                yield pieces
                pieces, used = [], 0
            count = min(len(values) - first, (size - used) // tensor.itemsize)
            slot = Slot(used, (count,), (1,), dtype_name(tensor.dtype))
            pieces.append(Piece(name, first, values[first : first + count], slot))
            used += -(-count * tensor.itemsize // _ALIGN) * _ALIGN
            first += count
    if pieces:
        yield pieces


def _saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
